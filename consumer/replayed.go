package consumer

import (
	"context"
	"errors"

	"github.com/relaymq/relay/consumer/internal/settle"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/supervisor"
)

// told is the end of an attempt: of a replayed message's first one, its job hears.
func (m *message) told(ctx context.Context, number int, v supervisor.Verdict) {
	if m.Origin == nil || m.Origin.Job == "" || number > 1 {
		return
	}
	switch v.Kind {
	case supervisor.Ack, supervisor.Drop:
		m.tell(true, nil)
	case supervisor.Dead:
		m.tell(false, v.Err)
	case supervisor.Retry:
		// A run that was interrupted says nothing of the message, and what never began neither.
		if !v.NotStarted && !errors.Is(ctx.Err(), context.Canceled) {
			m.tell(false, v.Err)
		}
	}
}

// toldBySettlement is for attempts that gave no verdict: panics and hangs, and keys that gave up.
func (m *message) toldBySettlement(o supervisor.Outcome) {
	if m.Origin != nil && m.Origin.Job != "" && o.Attempts <= 1 &&
		(o.Action == supervisor.RetryLater || o.Action == supervisor.DeadLetter) {
		m.tell(false, o.Err)
	}
}

func (m *message) tell(ok bool, err error) {
	if m.hasTold.Swap(true) {
		return
	}
	v := dlq.Verdict{Message: dlq.MessageToken(*m.Origin), OK: ok}
	if !ok {
		v.Route, v.Error = m.route.name(), retry.CleanText(settle.ErrorText(err), 256)
	}
	m.route.relay.replayed.Add(m.Origin.Job, v)
}
