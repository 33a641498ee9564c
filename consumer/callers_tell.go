package consumer

import (
	"errors"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/caller"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/supervisor"
)

const (
	// replyHeaders is room for the headers of a reply in the server's max_payload.
	replyHeaders = 8<<10 + maxResultHeaderBytes
	// maxHeldBytes bounds the bodies of messages of a route that are held until their callers are told: they are room that is kept from others.
	maxHeldBytes = 4 << 20
)

// finish ends a message of which it is settled what becomes of it: its caller is told, if one waits, and it is acknowledged.
func (m *message) finish(o supervisor.Outcome) {
	m.route.count.Through(time.Since(m.published()))
	m.route.count.ended(o)
	if a := m.route.relay.archive; a != nil {
		m.toArchive(a, o)
	}
	if m.call == nil || m.call.ReplyTo == "" {
		m.done()
		return
	}
	rt, size := m.route, int64(m.Size)
	reply, outcome := m.reply(o)
	unwanted := o.Err == ErrForgotten // its caller is there, and has said so
	// For as long as nobody else has the message. A reply that cannot be delivered does not fail it.
	until := time.Now().Add(rt.cfg.AckWait)
	if held := rt.callers.heldBytes.Add(size); held > maxHeldBytes || errors.Is(o.Err, caller.ErrAbsent) {
		until = time.Now() // it has waited already, or others would wait for the room: the first try is the only one before the ack
	}
	rt.callers.held.Add(1)
	rt.callers.telling.Add(1)
	rt.relay.line.Tell(&caller.Telling{
		Msg: reply, Confirm: m.call.Confirm, Once: unwanted, Held: rt.work, Until: until,
		Released: func() {
			rt.callers.heldBytes.Add(-size)
			m.done()
			rt.callers.held.Done()
		},
		Over: func(told caller.Told) {
			rt.callers.telling.Add(-1)
			if unwanted && told == caller.NotThere {
				return
			}
			rt.count.Replies[told].Add(1)
			if told != caller.Delivered {
				rt.log.Debug("cannot tell the caller the outcome of its message", "id", reply.Header.Get(caller.HeaderID), "outcome", outcome, "why", told.String())
			}
		},
	})
}

// reply is what the caller is told.
func (m *message) reply(o supervisor.Outcome) (reply *nats.Msg, outcome string) {
	c, id, attempts := m.call, m.id(), o.Attempts
	reply = &nats.Msg{Subject: c.ReplyTo}
	switch {
	case errors.Is(o.Err, ErrForgotten):
		outcome = outcomeForgotten
	case o.Err == caller.ErrExpired || o.Reason == supervisor.ReasonExpired && c.IsOver(time.Now()):
		outcome = outcomeExpired
	case o.Action == supervisor.AckMessage:
		outcome, attempts = outcomeDone, max(c.number, 1)
		if c.result != nil {
			reply.Header = c.result.Header()
			var cut bool
			if reply.Data, cut = c.result.Data(); cut {
				if reply.Header == nil {
					reply.Header = nats.Header{}
				}
				reply.Header.Set(caller.HeaderTruncated, "true")
			}
		}
	case o.Action == supervisor.DeadLetter:
		outcome = outcomeDead
	default:
		outcome = outcomeDropped
	}
	if reply.Header == nil {
		reply.Header = nats.Header{}
	}
	copyID := id + "." + outcome
	if m.isReplay() {
		copyID += "." + strconv.Itoa(m.origin.Replay) // the outcome of a replay is no copy of that of the first delivery
	}
	h := reply.Header
	h.Set(caller.HeaderID, id)
	h.Set(caller.HeaderOutcome, outcome)
	h.Set(caller.HeaderAttempts, strconv.Itoa(attempts))
	h.Set("Nats-Msg-Id", copyID)
	if text := retry.CleanText(why(o), control.MaxText); outcome != outcomeDone && text != "" {
		h.Set(caller.HeaderError, text)
	}
	return reply, outcome
}

func (rt *route) callersStatus() *control.CallersStatus {
	c := rt.count
	s := control.CallersStatus{
		Expired: c.Expired.Load(), Forgotten: c.Forgotten.Load(), Asking: rt.callers.gates.Asking(), Again: c.Answers[caller.CountedAgain].Load(),
		Silent: c.Answers[caller.CountedUnknown].Load(), Replied: c.Replies[caller.Delivered].Load(),
		Undelivered: c.Replies[caller.NotThere].Load() + c.Replies[caller.Failed].Load(), Unsure: c.Replies[caller.Sent].Load(),
		Telling: int(rt.callers.telling.Load()), Refused: c.Refused.Load(),
	}
	if s == (control.CallersStatus{}) && c.Answers[caller.CountedYes].Load() == 0 {
		return nil
	}
	return &s
}

// maxResult is how many bytes of a result go to the caller.
func (m *message) maxResult() int {
	return min(int(m.route.cfg.Caller.MaxResult), max(0, int(m.route.relay.nc.MaxPayload())-replyHeaders))
}

// id is the message's Relay-Id.
func (m *message) id() string {
	if m.origin != nil {
		return m.origin.ID()
	}
	return m.source.id(m.delivery)
}
