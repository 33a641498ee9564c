package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/caller"
	"github.com/relaymq/relay/consumer/internal/suspects"
	"github.com/relaymq/relay/consumer/internal/tally"
	"github.com/relaymq/relay/internal/failpoint"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/supervisor"
)

// message is one delivery on its way through its route.
type message struct {
	supervisor.Message
	route    *route
	source   *source
	delivery *ack.Delivery
	arrival  ack.Delivery // what delivery points to, without an allocation of its own
	// As they were published. For a message from the retry stream they differ from those of the delivery.
	subject string
	header  nats.Header
	data    []byte
	// origin of a message from the retry stream; nil for one that comes straight from its stream.
	origin   *retry.Origin
	bodyless bool  // its body is to be fetched from the stream
	recorded bool  // it has a record of attempts, to be deleted when it is done
	doubtful bool  // it came again, and no record says why; see isOld
	plain    bool  // it succeeded at once: whoever had it is through with it
	reserved bool  // the ledger has its body, which was kept elsewhere
	call     *call // nil: its publisher asked for nothing
	// result is what the last attempt returned, for the archive; nil: it is not kept, or its caller waits for it.
	result *Result
	ahead  chan answer // what is known of it, of an ordered route: it was asked for before its turn
	// suspect is for a message that may have ended a process, and must run alone; nil for all others.
	suspect    *suspects.Suspect
	called     atomic.Pointer[time.Time] // the group called it back, to come then
	moved      bool                      // of a partition: relay put it there
	handedOver bool                      // to the partition of another generation
	due        time.Time                 // before which it was not to start, for who hands it over
	lent       bool                      // the fallback had it, and may still have its bytes
	hasTold    atomic.Bool               // its replay job knows its first verdict
	// first is what the handler gets at the first attempt here; it may keep it, so a later attempt gets another.
	first *handed
}

// handed is what a handler gets and may keep: the context and the message of one attempt, in one piece.
type handed struct {
	attempt supervisor.Attempt
	msg     Msg
}

var _ supervisor.Work = (*message)(nil)

// from is where the message was first stored.
func (m *message) from() retry.Origin {
	if m.origin != nil {
		return *m.origin
	}
	return retry.Origin{
		Route: m.route.name(), Stream: m.source.stream, Consumer: m.source.durable, Sequence: m.delivery.Sequence,
		Time: m.delivery.Time, Subject: m.subject, Deliveries: m.delivery.Deliveries,
	}
}

// published is when the message was first stored. A replay does not change that.
func (m *message) published() time.Time {
	if m.origin != nil {
		return m.origin.Time
	}
	return m.delivery.Time
}

var _ supervisor.Preparer = (*message)(nil)

// Prepare accuses a suspect before it is started.
func (m *message) Prepare() (supervisor.Verdict, bool) {
	if m.suspect == nil {
		return supervisor.Verdict{}, true
	}
	switch err := m.accuse(); {
	case errors.Is(err, retry.ErrElsewhere):
		return supervisor.Verdict{Kind: supervisor.Lost, Err: err}, false
	case err != nil:
		return supervisor.Verdict{Kind: supervisor.Snooze, Delay: time.Second, Err: err}, false
	}
	return supervisor.Verdict{}, true
}

// Do is one attempt.
func (m *message) Do(ctx context.Context, number int, child any) supervisor.Verdict {
	rt := m.route
	if rt.handsOver() {
		if m.delivery.FencedAt(time.Now()) || !m.source.mayStart() {
			return supervisor.Verdict{Kind: supervisor.Lost, Gone: m.source.isLost()}
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
func (m *message) do(ctx context.Context, number int, p part) supervisor.Verdict {
	rt := m.route
	began := time.Now()
	// By its age since receipt a delivery could look young that a stalled link has brought late.
	if m.delivery.FencedAt(began) || !m.source.mayStart() {
		return supervisor.Verdict{Kind: supervisor.Lost, Gone: m.source.isLost()}
	}
	if m.suspect != nil {
		// Not here: the attempt's clock still runs, and a success must not become a hang because a bucket does not answer.
		// Also for what does not start: a message of an ordered key stays in its group until it is asked again.
		defer func() { rt.slow.Go(m.acquit) }()
	}
	if m.call != nil {
		if d := m.call.MayStart(ctx); !d.Start {
			return m.decided(d)
		}
		// The question took time.
		if began = time.Now(); m.delivery.FencedAt(began) || !m.source.mayStart() {
			return supervisor.Verdict{Kind: supervisor.Lost, Gone: m.source.isLost()}
		}
	}
	rt.memory.Handling(m.Size)
	defer rt.memory.Handling(-m.Size)
	rt.begun.Store(began.UnixNano())
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
		Route: rt.name(), Subject: m.subject, Data: m.data, Header: m.header, Attempt: number, Deadline: deadline,
		Stream: m.source.stream, Consumer: m.source.durable, Sequence: m.delivery.Sequence, Time: m.delivery.Time,
		Fence: m.source.fence(),
	}
	if o := m.origin; o != nil {
		msg.Stream, msg.Consumer, msg.Sequence, msg.Time, msg.Replay = o.Stream, o.Consumer, o.Sequence, o.Time, o.Replay
		msg.ID = o.ID()
	} else {
		msg.ID = m.source.id(m.delivery)
	}
	if !p.fallback {
		msg.paced = rt
	}
	if !p.ownBytes {
		msg.Data, msg.Header = slices.Clone(m.data), cloneHeader(m.header)
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
		m.told(ctx, number, v)
		rt.count.Verdicts[v.Kind].Add(1)
	}
	if rt.log.Enabled(ctx, slog.LevelDebug) {
		rt.log.Debug("handled", m.attrs("attempt", number, "fallback", p.fallback, "verdict", v.Kind.String(), "took", time.Since(began).Round(time.Microsecond))...)
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
func (m *message) Settle(o supervisor.Outcome) {
	rt := m.route
	if m.handedOver {
		rt.count.tally.Ended(tally.Dropped) // here
		m.done()
		return
	}
	if m.call != nil {
		m.call.Leave()
		o = m.gated(o)
	}
	if o.Fallback && o.Action == supervisor.AckMessage {
		rt.count.Fallback.Add(1)
	} else {
		rt.count.Settled[o.Action].Add(1)
	}
	m.toldBySettlement(o)
	if m.suspect != nil {
		m.settleSuspect(o)
		return
	}
	m.settle(o)
}

// settleSuspect settles on the route's slow path. It is a function of its own so that only here the outcome is on the heap.
func (m *message) settleSuspect(o supervisor.Outcome) {
	m.route.slow.Go(func() {
		m.acquit() // its handler has returned, or was given up: that is no crash
		m.settle(o)
	})
}

func (m *message) settle(o supervisor.Outcome) {
	rt := m.route
	switch o.Action {
	case supervisor.AckMessage:
		m.plain = m.origin == nil && o.Attempts == 0 && m.suspect == nil && m.call == nil && !m.lent
		m.finish(o)
	case supervisor.DropMessage:
		level := slog.LevelInfo
		if errors.Is(o.Err, ErrForgotten) || o.Err == caller.ErrExpired {
			level = slog.LevelDebug // counted; it is no event
		}
		rt.log.Log(rt.work, level, "message dropped", m.attrs("why", why(o))...)
		m.finish(o)
	case supervisor.GiveBack:
		failpoint.At("giving back")
		m.comeAgain(o)
	case supervisor.LetGo:
		m.delivery.Release()
	case supervisor.RetryLater:
		m.slowly(o)
	case supervisor.DeadLetter:
		m.toLetters(o)
	}
}

// slowly settles on the route's slow path. It is a function of its own so that only here the outcome is on the heap.
func (m *message) slowly(o supervisor.Outcome) {
	m.route.slow.Go(func() { m.retry(o) })
}

func why(o supervisor.Outcome) string {
	if o.Why == "" && o.Err != nil {
		return o.Err.Error()
	}
	return o.Why
}

// bounce is how long a message stays away that goes back at the end of an instance, and came for more than the second time: the last pulls of that
// one may get it again and again.
const bounce = 100 * time.Millisecond

// giveBack returns a message that spent no attempt; zero means at once.
func (m *message) giveBack(due time.Time) {
	if m.route.guarded && !m.recorded {
		m.source.records.Returned(m.delivery.Sequence, m.delivery.Deliveries, m.suspect != nil)
	}
	if due.IsZero() && m.delivery.Deliveries <= 2 {
		_ = m.delivery.GiveBack() // fenced: somebody else has it
		return
	}
	if due.IsZero() {
		due = time.Now().Add(bounce)
	}
	_ = m.delivery.Nak(due)
	m.givenBack()
}

// done acknowledges the message. Nothing may be done with it afterwards.
func (m *message) done() {
	_ = m.delivery.Ack(m) // settled before: a bug that has no effect here
	failpoint.At("acked")
}

// Confirmed has the record of a message deleted that is done for good, and its memory used again.
func (m *message) Confirmed(free bool) {
	if m.recorded {
		src, seq := m.source, m.delivery.Sequence
		src.tidying.Go(func() { src.forget(src.routes[0].work, seq) })
	} else if free && m.plain {
		m.source.recycle(m)
	}
}

// attrs describe the message in the log.
func (m *message) attrs(more ...any) []any {
	return append([]any{"subject", m.subject, "seq", m.from().Sequence}, more...)
}
