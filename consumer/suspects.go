package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/relaymq/relay/consumer/internal/suspects"
	"github.com/relaymq/relay/internal/away"
	"github.com/relaymq/relay/internal/retry"
)

// A message that may have ended a process is a suspect; see package suspects for how that is found out. Here is what that means for
// the message: its record, and when it may start.

// dying is how long a process that ran a suspect may take to be gone: a stack overflow first fills a gigabyte, and then
// writes what it did.
const dying = 30 * time.Second

// suspect is what is known of a message that may have ended a process.
type suspect struct {
	retry.Record
	mu      sync.Mutex // held while the server is asked
	accused bool       // its record says that it runs alone
	marked  uint64     // the revision that says so; 0 when it is not known
}

// judge completes the record of a message that came again: whether it is a suspect, and whether it has ended a process.
// since is when the question was first asked.
func (m *message) judge(ctx context.Context, rec retry.Record, since time.Time) (_ retry.Record, err error) {
	l := m.route.relay.stores.Lives.Load()
	if !m.route.guarded || l == nil {
		return rec, nil
	}
	switch {
	case rec.Solo != "":
		var ended bool
		ended, err = l.Ended(ctx, rec.Solo)
		if errors.Is(err, suspects.ErrThere) && time.Since(since) > dying {
			err = nil // nobody is charged
		}
		if err != nil {
			return rec, err // it is asked again, in a second
		}
		if ended {
			now := time.Now()
			rec.Crashes++
			rec.LastFailure, rec.LastError = now, fmt.Sprintf("the process ended while only this message ran in it (%d)", rec.Crashes)
			if rec.FirstFailure.IsZero() {
				rec.FirstFailure = now
			}
			m.route.log.Error("a message ended the process that ran it", m.attrs("crashes", rec.Crashes, "max_crashes", m.route.now().Retry.MaxCrashes)...)
		}
		rec.Solo, rec.Suspect = "", true
	case rec.Crashes > 0 || rec.Suspect:
		rec.Suspect = true
	case !rec.Known() || rec.Deliveries > 0 && m.delivery.Deliveries > rec.Deliveries+1, rec.Kept && m.delivery.Deliveries > rec.Deliveries:
		rec.Suspect, err = l.Recent(ctx)
	}
	return rec, err
}

// accuse writes down that the message is about to run and nothing else does. Without that the message must not start. It
// may block for some seconds.
func (m *message) accuse() error {
	rt := m.route
	l := rt.relay.stores.Lives.Load()
	l.Prolong()
	if !rt.relay.solo.Certain() {
		rt.log.Warn("a message that may have ended a process runs beside handlers that ignored their timeout: if the process ends, no message gets the crash counted", m.attrs()...)
		return nil
	}
	s := m.suspect
	s.mu.Lock()
	defer s.mu.Unlock()
	rec := s.Record
	rec.Solo = l.ID()
	ctx, cancel := context.WithTimeout(rt.work, settleTimeout)
	defer cancel()
	var err error
	s.marked, err = m.source.records.Mark(ctx, m.delivery.Sequence, m.delivery.Deliveries, rec)
	if !errors.Is(err, retry.ErrElsewhere) && !s.accused { // with another error it may be stored nevertheless
		s.accused = true
		rt.relay.solo.Accused()
	}
	return err
}

// acquit takes that back: the handler has returned, and the process lives. What was written since stays: the attempt, when
// the handler had been given up.
func (m *message) acquit() {
	s := m.suspect
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.accused {
		return
	}
	s.accused = false
	rt, seq, here := m.route, m.delivery.Sequence, m.delivery.Deliveries
	defer rt.relay.solo.Acquitted()
	for {
		// The slow paths end with the drain, but who is interrupted by that has ended nothing.
		work, limit := rt.work, settleTimeout
		if work.Err() != nil {
			work, limit = context.WithoutCancel(work), confirmTimeout
		}
		ctx, cancel := context.WithTimeout(work, limit)
		var err error
		if s.marked == 0 {
			s.marked, err = m.source.records.Marked(ctx, seq, here, rt.relay.stores.Lives.Load().ID())
		}
		if s.marked > 0 {
			err = m.source.records.Unmark(ctx, seq, here, s.Record, s.marked)
		}
		cancel()
		if err == nil || m.delivery.Fenced() || rt.work.Err() != nil {
			return
		}
		if others, ok := rt.unacquitted.May(time.Now()); ok {
			rt.log.Warn("cannot store that a suspected message did not end the process; retrying", m.attrs("others", others, "error", err)...)
		}
		away.Pause(rt.work, time.Second)
	}
}
