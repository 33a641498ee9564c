package route

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/outcome"
	"github.com/relaymq/relay/consumer/internal/reply"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/consumer/internal/tally"
	"github.com/relaymq/relay/consumer/internal/usercode"
	"github.com/relaymq/relay/internal/failpoint"
	"github.com/relaymq/relay/internal/supervise"
)

// Message is one delivery on its way through its route.
type Message struct {
	source.Incoming

	plain bool  // it succeeded at once: whoever had it is through with it
	call  *call // nil: its publisher asked for nothing
	// result is what the last attempt returned, for the archive; nil: it is not kept, or its caller waits for it.
	result *reply.Result

	handedOver bool      // to the partition of another generation
	due        time.Time // before which it was not to start, for who hands it over
	lent       bool      // the fallback had it, and may still have its bytes
	replay     outcome.Replay

	// first is what the handler gets at the first attempt here; it may keep it, so a later attempt gets another.
	first Msg
}

var _ supervise.Work = (*Message)(nil)

// route is whose message it is.
func (m *Message) route() *Route { return m.Route.Owner.(*Route) }

// Clear makes it as new, for another message.
func (m *Message) Clear() { *m = Message{} }

// Do is one attempt.
func (m *Message) Do(ctx context.Context, number int, of any) supervise.Verdict {
	rt := m.route()
	if rt.HandsOver() {
		if m.Delivery.FencedAt(time.Now()) || !m.Source.MayStart() {
			return supervise.Verdict{Kind: supervise.Lost, Gone: m.Source.IsLost()}
		}
		return m.handOver(ctx)
	}
	var p part
	if c, shared := of.(*part); shared {
		p = *c
	} else {
		p = part{call: of.(*child).call, ownBytes: rt.Now().Code.OwnBytes}
	}
	p.timeout = rt.Now().Timeout
	return m.do(ctx, number, p)
}

// do is one attempt of the route's handler or of its fallback.
func (m *Message) do(ctx context.Context, number int, p part) supervise.Verdict {
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
	rt.Memory.Handling(m.Size)
	defer rt.Memory.Handling(-m.Size)
	rt.Standstill.begun.Store(began.UnixNano())
	msg := m.first
	if m.first = nil; msg == nil {
		msg = rt.Home.Config.NewMsg()
	}
	if rt.Spec.asks() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.timeout)
		defer cancel()
	}
	deadline, _ := ctx.Deadline()
	given := Given{
		Route: rt.Name(), Subject: m.Subject, Data: m.Data, Header: m.Header, Attempt: number, Deadline: deadline,
		Stream: m.Source.Stream, Consumer: m.Source.Name, Sequence: m.Delivery.Sequence, Time: m.Delivery.Time,
		Fence: m.Source.Fence(), ID: m.ID(),
	}
	if o := m.Origin; o != nil {
		given.Stream, given.Consumer, given.Sequence, given.Time, given.Replay = o.Stream, o.Consumer, o.Sequence, o.Time, o.Replay
	}
	if !p.fallback {
		given.Own = rt.own
	}
	if !p.ownBytes {
		given.Data, given.Header = slices.Clone(m.Data), cloneHeader(m.Header)
	}
	if m.call != nil {
		var stop func()
		ctx, given.Result, stop = m.attempt(ctx, number)
		defer stop()
		given.StillWanted = m.stillWanted
	}
	if rt.Home.Config.Results && given.Result == nil {
		given.Result = m.keepsResult()
		defer given.Result.Close()
	}
	msg.Give(given)
	// Counted here and not after the call: a panic does not return.
	defer func() {
		if !p.fallback {
			rt.Count.Took(time.Since(began))
		}
	}()
	err := p.shared.Begin(ctx)
	if err == nil {
		err = p.call(ctx, msg)
	} else {
		err = &usercode.Carrier{Verdict: supervise.Verdict{Kind: supervise.Retry, Err: err, NotStarted: true}}
	}
	v, timedOut := usercode.VerdictOf(err)
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
		m.replay.Ended(ctx, &m.Unsettled, number, v, rt.Home.Replayed)
		rt.Count.Verdicts[v.Kind].Add(1)
	}
	if rt.Log.Enabled(ctx, slog.LevelDebug) {
		rt.Log.Debug("handled", m.Attrs("attempt", number, "fallback", p.fallback, "verdict", v.Kind.String(), "took", time.Since(began).Round(time.Microsecond))...)
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
func (m *Message) Settle(o supervise.Outcome) {
	rt := m.route()
	if m.handedOver {
		rt.Count.Tally.Ended(tally.Dropped) // here
		m.Done()
		return
	}
	if m.call != nil {
		m.call.Leave()
		o = m.gated(o)
	}
	if o.Fallback && o.Action == supervise.AckMessage {
		rt.Count.Fallback.Add(1)
	} else {
		rt.Count.Settled[o.Action].Add(1)
	}
	m.replay.Settled(&m.Unsettled, o, m.route().Home.Replayed)
	m.Unsettled.Settle(o)
}

// Remember stores the failure of a message that waits in the stash.
func (m *Message) Remember(o supervise.Outcome, stored func(ok bool)) {
	m.replay.Settled(&m.Unsettled, o, m.route().Home.Replayed)
	m.Unsettled.Remember(o, stored)
}

// Confirmed has the record of a message deleted that is done for good.
func (m *Message) Confirmed() {
	if m.Recorded {
		m.Source.Forget(m.Delivery.Sequence)
	}
}

// Free has the memory of a message used again that nobody refers to.
func (m *Message) Free() {
	if m.plain && !m.Recorded {
		m.Source.Reuse(m)
	}
}
