package route

import (
	"errors"
	"log/slog"
	"time"

	"github.com/relaymq/relay/consumer/internal/caller"
	"github.com/relaymq/relay/consumer/internal/outcome"
	"github.com/relaymq/relay/consumer/internal/reply"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/supervise"
)

// replyHeaders is room for the headers of a reply in the server's max_payload.
const replyHeaders = 8<<10 + reply.MaxHeaderBytes

// Finish ends a message of which it is settled what becomes of it: its caller is told, if one waits, and it is acknowledged.
func (m *Message) Finish(o supervise.Outcome) {
	switch o.Action {
	case supervise.AckMessage:
		m.plain = m.Origin == nil && o.Attempts == 0 && m.Suspect == nil && m.call == nil && !m.lent
	case supervise.DropMessage:
		level := slog.LevelInfo
		if errors.Is(o.Err, caller.ErrForgotten) || o.Err == caller.ErrExpired {
			level = slog.LevelDebug // counted; it is no event
		}
		m.route().Log.Log(m.Path.Work, level, "message dropped", m.Attrs("why", outcome.Why(o))...)
	}
	m.route().Count.Through(time.Since(m.Published()))
	m.route().Count.ended(o)
	if a := m.route().Home.Archive; a != nil {
		m.ToArchive(a, o)
	}
	if m.call == nil || m.call.ReplyTo == "" {
		m.Done()
		return
	}
	rt, reply := m.route(), m.reply(o)
	unwanted := o.Err == caller.ErrForgotten // its caller is there, and has said so
	rt.Home.Line.Tell(rt.Callers.Holding.Hold(&caller.Telling{
		// A reply that cannot be delivered does not fail the message.
		Msg: reply.To(m.call.ReplyTo), Confirm: m.call.Confirm, Once: unwanted, Held: rt.Path.Work,
		Until: time.Now().Add(rt.Spec.AckWait), // as long as nobody else has the message
	}, m.Size, o.Err, m.Done, func(told caller.Told) {
		if unwanted && told == caller.NotThere {
			return
		}
		rt.Count.Replies[told].Add(1)
		if told != caller.Delivered {
			rt.Log.Debug("cannot tell the caller the outcome of its message", "id", reply.ID, "outcome", reply.Outcome, "why", told.String())
		}
	}))
}

// reply is what the caller is told.
func (m *Message) reply(o supervise.Outcome) caller.Reply {
	c := m.call
	r := outcome.Reply(&m.Unsettled, m.ID(), o, outcome.Attempt{Number: c.number, Over: c.IsOver(time.Now())})
	if r.Outcome == caller.Done && c.result != nil {
		r.Header = c.result.Header()
		r.Data, r.Cut = c.result.Data()
	}
	return r
}

// CallersStatus is what the status says of callers; nil: there were none.
func (rt *Route) CallersStatus() *control.CallersStatus {
	c := rt.Count
	s := control.CallersStatus{
		Expired: c.Expired.Load(), Forgotten: c.Forgotten.Load(), Asking: rt.Callers.Gates.Asking(), Again: c.Answers[caller.CountedAgain].Load(),
		Silent: c.Answers[caller.CountedUnknown].Load(), Replied: c.Replies[caller.Delivered].Load(),
		Undelivered: c.Replies[caller.NotThere].Load() + c.Replies[caller.Failed].Load(), Unsure: c.Replies[caller.Sent].Load(),
		Telling: rt.Callers.Holding.Telling(), Refused: c.Refused.Load(),
	}
	if s == (control.CallersStatus{}) && c.Answers[caller.CountedYes].Load() == 0 {
		return nil
	}
	return &s
}

// maxResult is how many bytes of a result go to the caller.
func (m *Message) maxResult() int {
	return min(m.route().Spec.MaxResult, max(0, int(m.route().Home.Conn.MaxPayload())-replyHeaders))
}
