package settle

import (
	"context"
	"errors"
	"time"

	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/supervise"
)

// A message that may have ended a process is a suspect; see package suspects.

// Judge completes the record of a message that came again: whether it is a suspect, and whether it has ended a process.
// Asked is when the question was first asked. It asks the server, and blocks for some seconds at most; with an error it must be asked again.
func (m *Unsettled) Judge(ctx context.Context, rec retry.Record, asked time.Time) (retry.Record, error) {
	l := m.Path.Stores.Lives.Load()
	if !m.Path.Guarded || l == nil {
		return rec, nil
	}
	rec, charged, err := l.Judge(ctx, rec, m.Delivery.Deliveries, asked)
	if charged {
		m.Path.Log.Error("a message ended the process that ran it", m.Attrs("crashes", rec.Crashes, "max_crashes", m.Path.Policy().MaxCrashes)...)
	}
	return rec, err
}

var _ supervise.Preparer = (*Unsettled)(nil)

// Prepare accuses a suspect before it is started.
func (m *Unsettled) Prepare() (supervise.Verdict, bool) {
	if m.Suspect == nil {
		return supervise.Verdict{}, true
	}
	switch err := m.accuse(); {
	case errors.Is(err, retry.ErrElsewhere):
		return supervise.Verdict{Kind: supervise.Lost, Err: err}, false
	case err != nil:
		return supervise.Verdict{Kind: supervise.Snooze, Delay: time.Second, Err: err}, false
	}
	return supervise.Verdict{}, true
}

// accuse writes down that the message is about to run and nothing else does. Without that the message must not start. It
// may block for some seconds.
func (m *Unsettled) accuse() error {
	p := m.Path
	l := p.Stores.Lives.Load()
	l.Prolong()
	if !p.Solo.Certain() {
		p.Log.Warn("a message that may have ended a process runs beside handlers that ignored their timeout: if the process ends, no message gets the crash counted", m.Attrs()...)
		return nil
	}
	return m.Suspect.Accuse(p.Work, l, p.Solo)
}

// Acquit takes that back: the handler has returned, and the process lives. It blocks until that is stored.
func (m *Unsettled) Acquit() {
	p := m.Path
	m.Suspect.Acquit(p.Work, p.Stores.Lives.Load(), p.Solo, m.Delivery.Fenced, func(err error) {
		if others, ok := p.said.unacquitted.Allow(time.Now()); ok {
			p.Log.Warn("cannot store that a suspected message did not end the process; retrying", m.Attrs("others", others, "error", err)...)
		}
	})
}

// crashes is how often the message ended its process.
func (m *Unsettled) crashes() int {
	if m.Suspect == nil {
		return 0
	}
	return m.Suspect.Crashes
}
