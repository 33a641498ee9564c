package consumer

import (
	"context"

	"github.com/relaymq/relay/dlq"
	letters "github.com/relaymq/relay/internal/dlq"
)

// The commands of operators, for programs.

// Pause lets nothing of a route start until [Relay.Resume], or with a key nothing of that key: on every instance, and over restarts, as
// the command relay pause does. Handlers that run finish. An empty key means the whole route. It returns when the order is stored and
// this instance follows it.
func (r *Relay) Pause(ctx context.Context, route, key string) error {
	return r.engine.Pause(ctx, route, key)
}

// Resume ends at once, on every instance, whatever keeps the messages of a route from starting, as the command relay resume does: a
// pause, also of single keys, the wait after failures, a suspension, a stop. With a key it does so for that key alone. It returns when
// the order is stored and this instance follows it.
func (r *Relay) Resume(ctx context.Context, route, key string) error {
	return r.engine.Resume(ctx, route, key)
}

// Replay hands dead letters back to the routes of this relay that failed, as the command relay dlq replay does, and returns when all
// are handed over and, where the job waits for what becomes of them, that is known. Dead letters of routes that this relay does not have, and of streams
// that these routes do not read, stay, and count as Refused. Without any that match, nothing is done and the id of the job is empty.
//
// The job is recorded, so that the command relay replay shows and cancels it; whatever stops it loses nothing. The error is ErrJobCancelled of
// package dlq, or a StoppedError of it with what stopped the job, beside those of the server.
func (r *Relay) Replay(ctx context.Context, job dlq.Job) (dlq.Progress, error) {
	did, err := r.engine.Replay(ctx, letters.Job{
		Filter: letters.Filter(job.Filter), Numbers: job.Numbers, Subject: job.Subject,
		Rate: job.Rate, Staged: job.Staged, StopAfter: job.StopAfter, Wait: job.Wait,
	})
	return dlq.Progress{
		ID: did.ID, Total: did.Total, Routes: did.Routes, Oldest: did.Oldest, Newest: did.Newest,
		Handed: did.Handed, Gone: did.Gone, Refused: did.Refused, Reasons: did.Reasons,
		Succeeded: did.Verdicts.OK, Failed: did.Verdicts.Failed, Lost: did.Lost,
	}, err
}
