package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/internal/failpoint"
	"github.com/relaymq/relay/internal/partition"
	"github.com/relaymq/relay/supervisor"
)

// A message of a partition is a copy. To everybody outside it is what it is a copy of.

// ofPartition reads where a copy comes from. It returns false when the message is settled.
func (m *message) ofPartition(p *partOfRoute) bool {
	literal, moved, ok := partition.Own(m.subject)
	if moved {
		origin, header, err := ack.Unwrap(m.header)
		switch {
		case errors.Is(err, ack.ErrOtherVersion):
			m.newer(err)
			return false
		case err != nil:
			m.foreign(err)
			return false
		}
		m.moved, m.origin, m.subject, m.header = true, &origin, origin.Subject, header
		return true
	}
	sequence, copied := partition.Source(m.header.Get(partition.SourceHeader))
	if !ok || !copied {
		m.foreign(fmt.Errorf("it is not a copied message: header %s is missing", partition.SourceHeader))
		return false
	}
	if delete(m.header, partition.SourceHeader); len(m.header) == 0 {
		m.header = nil
	}
	m.origin = &ack.Origin{
		Route: p.Route, Stream: p.Stream, Consumer: p.Durable, Sequence: sequence, Time: m.delivery.Time, Subject: literal, Deliveries: m.delivery.Deliveries,
	}
	m.subject = literal
	return true
}

// toPartition puts a message that was replayed into its partition.
func (m *message) toPartition(p *partOfRoute) {
	rt := m.route
	rt.slow.Go(func() {
		header := m.delivery.Msg.Header
		err := rt.relay.putIntoPartition(rt.work, p.Of, m.subject, header, m.delivery.Msg.Data)
		switch {
		case err == nil:
			m.done()
			return
		case m.delivery.Fenced():
			m.delivery.Release()
			return
		}
		if others, ok := rt.unparked.may(time.Now()); ok {
			rt.log.Warn("cannot put a replayed message into its partition; retrying", m.attrs("others", others, "error", err)...)
		}
		m.unlessBounded(func() bool { return false }, func() { _ = m.delivery.Nak(time.Now().Add(intoPartitionAgain)) })
	})
}

const intoPartitionAgain = time.Second

// handOver puts a message of a former generation into its partition of the newest one.
func (m *message) handOver(ctx context.Context) supervisor.Verdict {
	origin := m.from()
	origin.Attempts, origin.FirstFailure, origin.LastError = m.Attempts, m.FirstFailure, errorText(m.LastErr)
	origin.Due = m.due
	failpoint.At("handing over")
	if err := m.route.relay.putIntoPartition(ctx, *m.route.cfg.part.To, m.subject, ack.Wrap(origin, m.header), m.data); err != nil {
		if errors.Is(err, nats.ErrMaxPayload) {
			return supervisor.Verdict{Kind: supervisor.Dead, Err: fmt.Errorf(
				"it could not be handed over to %d partitions: with the headers that tell where it comes from it is larger than max_payload of the server (%w)", m.route.cfg.part.To.Count, err)}
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
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	_, err := r.js.PublishMsg(ctx, &nats.Msg{Subject: g.Moved(literal), Header: h, Data: data}, jetstream.WithExpectStream(g.Name()))
	return err
}
