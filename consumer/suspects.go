package consumer

import (
	"context"
	"time"

	"github.com/relaymq/relay/internal/retry"
)

// A message that may have ended a process is a suspect; see package suspects.

// judge completes the record of a message that came again: whether it is a suspect, and whether it has ended a process.
// asked is when the question was first asked.
func (m *message) judge(ctx context.Context, rec retry.Record, asked time.Time) (retry.Record, error) {
	l := m.route.relay.stores.Lives.Load()
	if !m.route.guarded || l == nil {
		return rec, nil
	}
	rec, charged, err := l.Judge(ctx, rec, m.delivery.Deliveries, asked)
	if charged {
		m.route.log.Error("a message ended the process that ran it", m.attrs("crashes", rec.Crashes, "max_crashes", m.route.now().Retry.MaxCrashes)...)
	}
	return rec, err
}

// accuse writes down that the message is about to run and nothing else does. Without that the message must not start. It
// may block for some seconds.
func (m *message) accuse() error {
	rt := m.route
	l, solo := rt.relay.stores.Lives.Load(), rt.relay.solo
	l.Prolong()
	if !solo.Certain() {
		rt.log.Warn("a message that may have ended a process runs beside handlers that ignored their timeout: if the process ends, no message gets the crash counted", m.attrs()...)
		return nil
	}
	return m.suspect.Accuse(rt.work, l, solo)
}

// acquit takes that back: the handler has returned, and the process lives.
func (m *message) acquit() {
	rt := m.route
	m.suspect.Acquit(rt.work, rt.relay.stores.Lives.Load(), rt.relay.solo, m.delivery.Fenced, func(err error) {
		if others, ok := rt.said.unacquitted.May(time.Now()); ok {
			rt.log.Warn("cannot store that a suspected message did not end the process; retrying", m.attrs("others", others, "error", err)...)
		}
	})
}
