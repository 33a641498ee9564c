package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/eventkind"
)

// Record keeps who does what its kind says, before the first message is touched, and with how many it was done.
func Record(ctx context.Context, cl *Client, record *dlq.Job, total int, do func() (int, error)) error {
	noun, verb := "discard", "discarded from the dead letters"
	switch record.Kind {
	case dlq.RetriesDiscard:
		verb = "discarded while they waited for their retry"
	case dlq.OrphansMove:
		noun, verb = "move", "moved to another route: "+record.Why
	}
	jobs, err := dlq.OpenJobs(ctx, cl.JS, cl.Config.Service, cl.Config.NATS.Replicas)
	if err != nil {
		return fmt.Errorf("nothing was done, because the %s could not be recorded: %w", noun, err)
	}
	now := time.Now()
	record.ID, record.State, record.By, record.Runner, record.Created, record.Total = dlq.NewJobID(now), dlq.JobRunning, Or(record.By, Caller()), Runner(), now.UTC(), total
	if err := jobs.Create(ctx, record); err != nil {
		return fmt.Errorf("nothing was done, because the %s could not be recorded: %w", noun, err)
	}
	done, err := do()
	cl.Tell(eventkind.Audit, event.Data{By: record.By, Job: record.ID, Text: fmt.Sprintf("%d of %d %s", done, total, verb)})
	record.Handed, record.State = done, dlq.JobDone
	if err != nil {
		record.State, record.Why = dlq.JobStopped, err.Error()
	} else {
		record.Gone = max(0, total-done)
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second) // after Ctrl-C too
	defer cancel()
	return errors.Join(err, jobs.End(end, record))
}
