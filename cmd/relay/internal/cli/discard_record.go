package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/dlq"
)

// RecordDiscard keeps who discards what, before the first entry goes, and how many went.
func RecordDiscard(ctx context.Context, cl *Client, record *dlq.Job, total int, discard func() (int, error)) error {
	jobs, err := dlq.OpenJobs(ctx, cl.JS, cl.Config.Service, cl.Config.NATS.Replicas)
	if err != nil {
		return fmt.Errorf("nothing was discarded, because the discard could not be recorded: %w", err)
	}
	now := time.Now()
	record.ID, record.State, record.By, record.Runner, record.Created, record.Total = dlq.NewJobID(now), dlq.JobRunning, Or(record.By, Caller()), Runner(), now.UTC(), total
	if err := jobs.Create(ctx, record); err != nil {
		return fmt.Errorf("nothing was discarded, because the discard could not be recorded: %w", err)
	}
	done, err := discard()
	what := "discarded from the dead letters"
	if record.Kind == dlq.RetriesDiscard {
		what = "discarded while they waited for their retry"
	}
	cl.Tell(event.Audit, event.Data{By: record.By, Job: record.ID, Text: fmt.Sprintf("%d of %d %s", done, total, what)})
	record.Handed, record.State = done, dlq.JobDone
	if err != nil {
		record.State, record.Why = dlq.JobStopped, err.Error()
	} else {
		record.Gone = total - done
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second) // after Ctrl-C too
	defer cancel()
	return errors.Join(err, jobs.End(end, record))
}
