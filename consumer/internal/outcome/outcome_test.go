package outcome

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/caller"
	"github.com/relaymq/relay/consumer/internal/settle"
	"github.com/relaymq/relay/internal/archive"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/supervise"
)

// fresh is a message that comes straight from its stream, and replayed one that an operator had replayed by a job.
func fresh() *settle.Unsettled {
	return &settle.Unsettled{
		Path: &settle.Path{Config: settle.Config{Route: "billing"}}, Durable: &settle.Durable{Stream: "ORDERS", Name: "billing"},
		Delivery: &ack.Delivery{Sequence: 7, Time: time.Unix(100, 0), Deliveries: 1}, Subject: "orders.eu",
	}
}

func replayed() *settle.Unsettled {
	m := fresh()
	m.Origin = &retry.Origin{Route: "billing", Stream: "EARLIER", Consumer: "before", Sequence: 3, Time: time.Unix(50, 0), Subject: "orders.us", Replay: 2, Job: "j1"}
	return m
}

// What became of a message is one thing to its caller, and to the archive.
func TestOutcome(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	for name, c := range map[string]struct {
		outcome  supervise.Outcome
		last     Attempt
		archived archive.Outcome
		told     caller.Outcome
		attempts [2]int // of the record, and of the reply
		says     string
	}{
		"done at once":       {supervise.Outcome{Action: supervise.AckMessage}, Attempt{Number: 1}, archive.Done, caller.Done, [2]int{1, 1}, ""},
		"done at the third":  {supervise.Outcome{Action: supervise.AckMessage, Attempts: 2}, Attempt{Number: 3}, archive.Done, caller.Done, [2]int{3, 3}, ""},
		"by the fallback":    {supervise.Outcome{Action: supervise.AckMessage, Fallback: true, Attempts: 2}, Attempt{}, archive.Fallback, caller.Done, [2]int{2, 1}, ""},
		"dead":               {supervise.Outcome{Action: supervise.DeadLetter, Reason: supervise.ReasonDead, Err: down, Attempts: 1}, Attempt{Number: 1}, archive.Dead, caller.Dead, [2]int{1, 1}, "down"},
		"expired":            {supervise.Outcome{Action: supervise.DropMessage, Err: caller.ErrExpired}, Attempt{}, archive.Expired, caller.Expired, [2]int{}, caller.ErrExpired.Error()},
		"a dead letter late": {supervise.Outcome{Action: supervise.DeadLetter, Reason: supervise.ReasonExpired, Attempts: 4}, Attempt{4, true}, archive.Dead, caller.Expired, [2]int{4, 4}, ""},
		"too old":            {supervise.Outcome{Action: supervise.DeadLetter, Reason: supervise.ReasonExpired, Attempts: 4}, Attempt{4, false}, archive.Dead, caller.Dead, [2]int{4, 4}, ""},
		"forgotten":          {supervise.Outcome{Action: supervise.DropMessage, Err: fmt.Errorf("it said so: %w", caller.ErrForgotten)}, Attempt{}, archive.Forgotten, caller.Forgotten, [2]int{}, "it said so: " + caller.ErrForgotten.Error()},
		"dropped":            {supervise.Outcome{Action: supervise.DropMessage, Why: "not ours", Err: down}, Attempt{Number: 1}, archive.Dropped, caller.Dropped, [2]int{}, "not ours"},
	} {
		t.Run(name, func(t *testing.T) {
			for stream, m := range map[string]*settle.Unsettled{"ORDERS": fresh(), "EARLIER": replayed()} {
				to, r := Record(m, c.outcome)
				from := m.From()
				if to != stream || r.Outcome != c.archived || r.Attempts != c.attempts[0] || r.Sequence != from.Sequence || !r.Published.Equal(from.Time) || r.Replay != from.Replay || r.Route != "billing" {
					t.Errorf("archived on %s: %+v", to, r)
				}
				a := Reply(m, "id", c.outcome, c.last)
				if a.ID != "id" || a.Outcome != c.told || a.Attempts != c.attempts[1] || a.Error != c.says || a.Replay != from.Replay {
					t.Errorf("told: %+v", a)
				}
			}
		})
	}
}

type jobs []string

func (j *jobs) Add(job string, v dlq.Verdict) {
	*j = append(*j, fmt.Sprintf("%s %v %s %s", job, v.OK, v.Route, v.Error))
}

// A job hears of the first attempt that said something, once.
func TestReplay(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		of   *settle.Unsettled
		do   func(r *Replay, m *settle.Unsettled, j *jobs)
		want string
	}{
		"success": {replayed(), func(r *Replay, m *settle.Unsettled, j *jobs) {
			r.Ended(t.Context(), m, 1, supervise.Verdict{Kind: supervise.Ack}, j)
			r.Ended(t.Context(), m, 1, supervise.Verdict{Kind: supervise.Dead, Err: down}, j)
		}, "[j1 true  ]"},
		"failure": {replayed(), func(r *Replay, m *settle.Unsettled, j *jobs) {
			r.Ended(t.Context(), m, 1, supervise.Verdict{Kind: supervise.Retry, Err: down}, j)
		}, "[j1 false billing down]"},
		"dead": {replayed(), func(r *Replay, m *settle.Unsettled, j *jobs) {
			r.Ended(t.Context(), m, 1, supervise.Verdict{Kind: supervise.Dead, Err: down}, j)
		}, "[j1 false billing down]"},
		"a panic": {replayed(), func(r *Replay, m *settle.Unsettled, j *jobs) {
			r.Settled(m, supervise.Outcome{Action: supervise.RetryLater, Attempts: 1, Err: down}, j)
		}, "[j1 false billing down]"},
		"it says nothing": {replayed(), func(r *Replay, m *settle.Unsettled, j *jobs) {
			r.Ended(t.Context(), m, 2, supervise.Verdict{Kind: supervise.Ack}, j)
			r.Ended(t.Context(), m, 1, supervise.Verdict{Kind: supervise.Snooze}, j)
			r.Ended(t.Context(), m, 1, supervise.Verdict{Kind: supervise.Retry, NotStarted: true}, j)
			r.Ended(ended, m, 1, supervise.Verdict{Kind: supervise.Retry, Err: down}, j)
			r.Settled(m, supervise.Outcome{Action: supervise.RetryLater, Attempts: 2, Err: down}, j)
			r.Settled(m, supervise.Outcome{Action: supervise.GiveBack}, j)
		}, "[]"},
		"not replayed": {fresh(), func(r *Replay, m *settle.Unsettled, j *jobs) {
			r.Ended(t.Context(), m, 1, supervise.Verdict{Kind: supervise.Ack}, j)
			r.Settled(m, supervise.Outcome{Action: supervise.DeadLetter, Attempts: 1}, j)
		}, "[]"},
	} {
		var r Replay
		j := jobs{}
		c.do(&r, c.of, &j)
		if got := fmt.Sprint(j); got != c.want {
			t.Errorf("%s: told %s, want %s", name, got, c.want)
		}
	}
}
