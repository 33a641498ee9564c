package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/consumer/internal/settle"
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
		err := p.Of.Put(rt.path.Work, rt.relay.js, m.Subject, header, m.Delivery.Msg.Data)
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

// handOver puts a message of a former generation into its partition of the newest one.
func (m *message) handOver(ctx context.Context) supervisor.Verdict {
	if err := m.route.formers.Wait(ctx, m.route.relay.js); err != nil {
		return supervisor.Verdict{Kind: supervisor.Snooze, Delay: generations.FormersAgain, Err: err}
	}
	if m.Delivery.FencedAt(time.Now()) || !m.source.mayStart() { // meanwhile
		return supervisor.Verdict{Kind: supervisor.Lost, Gone: m.source.isLost()}
	}
	origin := m.From()
	origin.Attempts, origin.FirstFailure, origin.LastError = m.Attempts, m.FirstFailure, settle.ErrorText(m.LastErr)
	origin.Due = m.due
	failpoint.At("handing over")
	if err := m.route.cfg.part.To.Put(ctx, m.route.relay.js, m.Subject, retry.Wrap(origin, m.Header), m.Data); err != nil {
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
