package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/outcome"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/consumer/internal/tally"
	"github.com/relaymq/relay/internal/failpoint"
	"github.com/relaymq/relay/internal/supervise"
)

// message is one delivery on its way through its route.
type message struct {
	source.Incoming

	plain bool  // it succeeded at once: whoever had it is through with it
	call  *call // nil: its publisher asked for nothing
	// result is what the last attempt returned, for the archive; nil: it is not kept, or its caller waits for it.
	result *Result

	handedOver bool      // to the partition of another generation
	due        time.Time // before which it was not to start, for who hands it over
	lent       bool      // the fallback had it, and may still have its bytes
	replay     outcome.Replay

	// first is what the handler gets at the first attempt here; it may keep it, so a later attempt gets another.
	first *handed
}

// handed is what a handler gets and may keep: the context and the message of one attempt, in one piece.
type handed struct {
	attempt supervise.Attempt
	msg     Msg
}

var _ supervise.Work = (*message)(nil)

// route is whose message it is.
func (m *message) route() *route { return m.Route.Owner.(*route) }

// Clear makes it as new, for another message.
func (m *message) Clear() { *m = message{} }

// Do is one attempt.
func (m *message) Do(ctx context.Context, number int, child any) supervise.Verdict {
	rt := m.route()
	if rt.handsOver() {
		if m.Delivery.FencedAt(time.Now()) || !m.Source.MayStart() {
			return supervise.Verdict{Kind: supervise.Lost, Gone: m.Source.IsLost()}
		}
		return m.handOver(ctx)
	}
	var p part
	if c, shared := child.(*part); shared {
		p = *c
	} else {
		p = part{handler: child.(Handler), ownBytes: rt.now().OwnBytes}
	}
	p.timeout = rt.now().Timeout
	return m.do(ctx, number, p)
}

// do is one attempt of the route's handler or of its fallback.
func (m *message) do(ctx context.Context, number int, p part) supervise.Verdict {
	rt := m.route()
	began := time.Now()
	// By its age since receipt a delivery could look young that a stalled link has brought late.
	if m.Delivery.FencedAt(began) || !m.Source.MayStart() {
		return supervise.Verdict{Kind: supervise.Lost, Gone: m.Source.IsLost()}
	}
	if m.Suspect != nil {
		// Not here: the attempt's clock still runs, and a success must not become a hang because a bucket does not answer.
		// Also for what does not start: a message of an ordered key stays in its group until it is asked again.
		defer func() { m.Path.Go(m.Acquit) }()
	}
	if m.call != nil {
		if d := m.call.MayStart(ctx); !d.Start {
			return m.decided(d)
		}
		// The question took time.
		if began = time.Now(); m.Delivery.FencedAt(began) || !m.Source.MayStart() {
			return supervise.Verdict{Kind: supervise.Lost, Gone: m.Source.IsLost()}
		}
	}
	rt.memory.Handling(m.Size)
	defer rt.memory.Handling(-m.Size)
	rt.standstill.begun.Store(began.UnixNano())
	var msg *Msg
	if m.first != nil {
		msg, m.first = &m.first.msg, nil
	} else {
		msg = new(Msg)
	}
	if rt.cfg.asks() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.timeout)
		defer cancel()
	}
	deadline, _ := ctx.Deadline()
	*msg = Msg{
		Route: rt.name(), Subject: m.Subject, Data: m.Data, Header: m.Header, Attempt: number, Deadline: deadline,
		Stream: m.Source.Stream, Consumer: m.Source.Name, Sequence: m.Delivery.Sequence, Time: m.Delivery.Time,
		Fence: m.Source.Fence(), ID: m.ID(),
	}
	if o := m.Origin; o != nil {
		msg.Stream, msg.Consumer, msg.Sequence, msg.Time, msg.Replay = o.Stream, o.Consumer, o.Sequence, o.Time, o.Replay
	}
	if !p.fallback {
		msg.paced = rt
	}
	if !p.ownBytes {
		msg.Data, msg.Header = slices.Clone(m.Data), cloneHeader(m.Header)
	}
	if m.call != nil {
		var stop func()
		ctx, stop = m.attempt(ctx, msg)
		defer stop()
		msg.gate = m.stillWanted
	}
	if rt.relay.cfg.Archive.Results && msg.result == nil {
		defer m.keepsResult(msg).close()
	}
	// Counted here and not after the call: a panic does not return.
	defer func() {
		if !p.fallback {
			rt.count.Took(time.Since(began))
		}
	}()
	err := p.shared.Begin(ctx)
	if err == nil {
		err = p.handler.Handle(ctx, msg)
	} else {
		err = NotStarted(err)
	}
	v, timedOut := verdictOf(err)
	if timedOut && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		v.Err = fmt.Errorf("timeout of %v: %w", p.timeout, v.Err)
	}
	failpoint.At("handled")
	if m.call != nil {
		if n := (*notWanted)(nil); errors.As(err, &n) {
			return n.verdict
		}
		if forgotten(ctx, v) {
			return m.decided(m.call.Forgotten())
		}
	}
	if !p.fallback {
		m.replay.Ended(ctx, &m.Unsettled, number, v, rt.relay.replayed)
		rt.count.Verdicts[v.Kind].Add(1)
	}
	if rt.log.Enabled(ctx, slog.LevelDebug) {
		rt.log.Debug("handled", m.Attrs("attempt", number, "fallback", p.fallback, "verdict", v.Kind.String(), "took", time.Since(began).Round(time.Microsecond))...)
	}
	return v
}

func cloneHeader(h nats.Header) nats.Header {
	if h == nil {
		return nil
	}
	c := make(nats.Header, len(h))
	for k, v := range h {
		c[k] = slices.Clone(v)
	}
	return c
}

// Settle ends the message. What may block goes to the route's slow path.
func (m *message) Settle(o supervise.Outcome) {
	rt := m.route()
	if m.handedOver {
		rt.count.tally.Ended(tally.Dropped) // here
		m.Done()
		return
	}
	if m.call != nil {
		m.call.Leave()
		o = m.gated(o)
	}
	if o.Fallback && o.Action == supervise.AckMessage {
		rt.count.Fallback.Add(1)
	} else {
		rt.count.Settled[o.Action].Add(1)
	}
	m.replay.Settled(&m.Unsettled, o, m.route().relay.replayed)
	m.Unsettled.Settle(o)
}

// Remember stores the failure of a message that waits in the stash.
func (m *message) Remember(o supervise.Outcome, stored func(ok bool)) {
	m.replay.Settled(&m.Unsettled, o, m.route().relay.replayed)
	m.Unsettled.Remember(o, stored)
}

// Confirmed has the record of a message deleted that is done for good.
func (m *message) Confirmed() {
	if m.Recorded {
		m.Source.Forget(m.Delivery.Sequence)
	}
}

// Free has the memory of a message used again that nobody refers to.
func (m *message) Free() {
	if m.plain && !m.Recorded {
		m.Source.Reuse(m)
	}
}
