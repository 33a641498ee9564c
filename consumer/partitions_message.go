package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/settle"
	"github.com/relaymq/relay/internal/away"
	"github.com/relaymq/relay/internal/failpoint"
	"github.com/relaymq/relay/internal/partition"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/supervisor"
)

// A message of a partition is a copy. To everybody outside it is what it is a copy of.

// ofPartition reads where a copy comes from. It returns false when the message is settled.
func (m *message) ofPartition(p *partOfRoute) bool {
	literal, moved, ok := partition.Own(m.Subject)
	if moved {
		origin, header, err := retry.Unwrap(m.Header)
		switch {
		case errors.Is(err, retry.ErrOtherVersion):
			m.Newer(err)
			return false
		case err != nil:
			m.foreign(err)
			return false
		}
		m.moved, m.Origin, m.Subject, m.Header = true, &origin, origin.Subject, header
		return true
	}
	sequence, copied := partition.Source(m.Header.Get(partition.SourceHeader))
	if !ok || !copied {
		m.foreign(fmt.Errorf("it is not a copied message: header %s is missing", partition.SourceHeader))
		return false
	}
	if delete(m.Header, partition.SourceHeader); len(m.Header) == 0 {
		m.Header = nil
	}
	m.Origin = &retry.Origin{
		Route: p.Route, Stream: p.Stream, Consumer: p.Durable, Sequence: sequence, Time: m.Delivery.Time, Subject: literal, Deliveries: m.Delivery.Deliveries,
	}
	m.Subject = literal
	return true
}

// toPartition puts a message that was replayed into its partition.
func (m *message) toPartition(p *partOfRoute) {
	rt := m.route
	rt.path.Go(func() {
		header := m.Delivery.Msg.Header
		err := rt.relay.putIntoPartition(rt.path.Work, p.Of, m.Subject, header, m.Delivery.Msg.Data)
		switch {
		case err == nil:
			m.Done()
			return
		case m.Delivery.Fenced():
			m.Delivery.Release()
			return
		}
		if others, ok := rt.said.undivided.May(time.Now()); ok {
			rt.log.Warn("cannot put a replayed message into its partition; retrying", m.Attrs("others", others, "error", err)...)
		}
		m.UnlessBounded(func() bool { return false }, func() { _ = m.Delivery.Nak(time.Now().Add(intoPartitionAgain)) })
	})
}

const intoPartitionAgain = time.Second

// formerFirst is whether generations between that of a part and the newest one are through.
type formerFirst struct {
	turn    chan struct{} // held by who asks the server
	through bool          // guarded by turn
	asked   time.Time     // likewise
}

const (
	askFormerEvery = 50 * time.Millisecond
	// waitForFormer is how long a message waits in its slot, which a drain waits for; then it waits outside, for formerAgain each time.
	waitForFormer, formerAgain = time.Second, 100 * time.Millisecond
)

var errFormerFirst = errors.New("messages that were handed over before come first")

// formersThrough waits until what this part handed over to generations between it and the newest one was handed over from there: it comes before what
// the part has still. When the number changes twice in a moment, both would go to the newest one side by side otherwise, and mix up the order of a key.
// Generations between are sealed by then, so that a holder who does not know the newest one adds nothing.
func (rt *route) formersThrough(ctx context.Context) error {
	p := rt.cfg.part
	if len(p.Between) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, waitForFormer, errFormerFirst)
	defer cancel()
	f := &rt.formerFirst
	select {
	case f.turn <- struct{}{}:
		defer func() { <-f.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for !f.through {
		if away.Pause(ctx, time.Until(f.asked.Add(askFormerEvery))); ctx.Err() != nil {
			return context.Cause(ctx)
		}
		f.asked = time.Now()
		for _, g := range p.Between {
			through, err := g.Through(ctx, rt.relay.js)
			if err != nil {
				return err
			}
			if f.through = through; !through {
				break
			}
		}
	}
	return nil
}

// handOver puts a message of a former generation into its partition of the newest one.
func (m *message) handOver(ctx context.Context) supervisor.Verdict {
	if err := m.route.formersThrough(ctx); err != nil {
		return supervisor.Verdict{Kind: supervisor.Snooze, Delay: formerAgain, Err: err}
	}
	if m.Delivery.FencedAt(time.Now()) || !m.source.mayStart() { // meanwhile
		return supervisor.Verdict{Kind: supervisor.Lost, Gone: m.source.isLost()}
	}
	origin := m.From()
	origin.Attempts, origin.FirstFailure, origin.LastError = m.Attempts, m.FirstFailure, settle.ErrorText(m.LastErr)
	origin.Due = m.due
	failpoint.At("handing over")
	if err := m.route.relay.putIntoPartition(ctx, *m.route.cfg.part.To, m.Subject, retry.Wrap(origin, m.Header), m.Data); err != nil {
		if errors.Is(err, nats.ErrMaxPayload) {
			return supervisor.Verdict{Kind: supervisor.Dead, Err: fmt.Errorf(
				"it cannot be handed over to %d partitions: with the headers that name its origin it is larger than max_payload of the server (%w)", m.route.cfg.part.To.Count, err)}
		}
		return supervisor.Verdict{Kind: supervisor.Snooze, Delay: intoPartitionAgain, Err: err}
	}
	failpoint.At("handed over")
	m.handedOver = true
	return supervisor.Verdict{Kind: supervisor.Ack}
}

// putIntoPartition stores a message that has the headers of its origin.
func (r *Relay) putIntoPartition(ctx context.Context, g partition.Generation, literal string, header nats.Header, data []byte) error {
	h := make(nats.Header, len(header))
	for name, values := range header {
		if len(name) < 5 || name[:5] != "Nats-" { // of the stream that it was in
			h[name] = values
		}
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, err := r.js.PublishMsg(ctx, &nats.Msg{Subject: g.Moved(literal), Header: h, Data: data}, jetstream.WithExpectStream(g.Name()))
	return err
}
