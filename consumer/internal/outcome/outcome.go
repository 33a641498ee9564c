// Package outcome says what became of a message, to all who hear of it: its caller, the archive, and the replay job that sent it.
package outcome

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/consumer/internal/caller"
	"github.com/relaymq/relay/consumer/internal/settle"
	"github.com/relaymq/relay/internal/archive"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/supervise"
)

// Why is the reason of an outcome, for people; empty if there is none.
func Why(o supervise.Outcome) string {
	if o.Why == "" && o.Err != nil {
		return o.Err.Error()
	}
	return o.Why
}

// IsReplay tells whether an operator had the message replayed.
func IsReplay(m *settle.Unsettled) bool { return m.Origin != nil && m.Origin.Replay > 0 }

// Record is what the archive keeps of a message of that stream, but for its result.
func Record(m *settle.Unsettled, o supervise.Outcome) (stream string, r archive.Record) {
	from := m.From()
	r = archive.Record{
		Route: m.Path.Route, Durable: from.Consumer, Sequence: from.Sequence, Published: from.Time, Replay: from.Replay, Ended: time.Now(), Attempts: o.Attempts,
	}
	switch {
	case o.Action == supervise.AckMessage && o.Fallback:
		r.Outcome = archive.Fallback
	case o.Action == supervise.AckMessage:
		r.Outcome, r.Attempts = archive.Done, o.Attempts+1 // those that failed, and this one
	case o.Action == supervise.DeadLetter:
		r.Outcome, r.Reason = archive.Dead, o.Reason
	case o.Err == caller.ErrExpired:
		r.Outcome = archive.Expired
	case errors.Is(o.Err, caller.ErrForgotten):
		r.Outcome = archive.Forgotten
	default:
		r.Outcome = archive.Dropped
	}
	return from.Stream, r
}

// Attempt is the one that was started last of a message with a caller.
type Attempt struct {
	Number int  // 0: none was started
	Over   bool // the deadline of the message has passed
}

// Reply is what the caller is told, but for the result.
func Reply(m *settle.Unsettled, id string, o supervise.Outcome, last Attempt) caller.Reply {
	r := caller.Reply{ID: id, Outcome: caller.Dropped, Attempts: o.Attempts, Error: retry.CleanText(Why(o), control.MaxText)}
	if IsReplay(m) {
		r.Replay = m.Origin.Replay
	}
	switch {
	case errors.Is(o.Err, caller.ErrForgotten):
		r.Outcome = caller.Forgotten
	case o.Err == caller.ErrExpired || o.Reason == supervise.ReasonExpired && last.Over:
		r.Outcome = caller.Expired
	case o.Action == supervise.AckMessage:
		r.Outcome, r.Attempts = caller.Done, max(last.Number, 1)
	case o.Action == supervise.DeadLetter:
		r.Outcome = caller.Dead
	}
	return r
}

// Replay tells the job that replayed a message how its first attempt ended, once.
type Replay struct{ told atomic.Bool }

// Jobs are told the verdicts.
type Jobs interface {
	Add(job string, v dlq.Verdict)
}

// Ended is the end of an attempt that gave that verdict. Ctx is that of the attempt.
func (r *Replay) Ended(ctx context.Context, m *settle.Unsettled, number int, v supervise.Verdict, jobs Jobs) {
	if m.Origin == nil || m.Origin.Job == "" || number > 1 {
		return
	}
	switch v.Kind {
	case supervise.Ack, supervise.Drop:
		r.tell(m, dlq.Verdict{OK: true}, jobs)
	case supervise.Dead:
		r.tell(m, failure(m, v.Err), jobs)
	case supervise.Retry:
		// A run that was interrupted says nothing of the message, and what never began neither.
		if !v.NotStarted && !errors.Is(ctx.Err(), context.Canceled) {
			r.tell(m, failure(m, v.Err), jobs)
		}
	}
}

// Settled is for attempts that gave no verdict: panics and hangs, and keys that gave up.
func (r *Replay) Settled(m *settle.Unsettled, o supervise.Outcome, jobs Jobs) {
	if m.Origin != nil && m.Origin.Job != "" && o.Attempts <= 1 && (o.Action == supervise.RetryLater || o.Action == supervise.DeadLetter) {
		r.tell(m, failure(m, o.Err), jobs)
	}
}

func failure(m *settle.Unsettled, err error) dlq.Verdict {
	return dlq.Verdict{Route: m.Path.Route, Error: retry.CleanText(settle.ErrorText(err), 256)}
}

func (r *Replay) tell(m *settle.Unsettled, v dlq.Verdict, jobs Jobs) {
	if r.told.Swap(true) {
		return
	}
	v.Message = dlq.MessageToken(*m.Origin)
	jobs.Add(m.Origin.Job, v)
}
