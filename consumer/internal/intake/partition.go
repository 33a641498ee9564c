package intake

import (
	"errors"
	"fmt"
	"time"

	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/internal/partition"
	"github.com/relaymq/relay/internal/retry"
)

// IntoPartitionAgain is how long a message stays away that could not be put into its partition.
const IntoPartitionAgain = time.Second

// OfPartition reads where a message of a partition comes from: it is a copy, and to everybody outside it is what it is a copy of. It returns false when
// the message is settled.
func (m *Arrival) OfPartition(p *generations.Part) bool {
	literal, moved, ok := partition.Own(m.Subject)
	if moved {
		origin, header, err := retry.Unwrap(m.Header)
		switch {
		case errors.Is(err, retry.ErrOtherVersion):
			m.Newer(err)
			return false
		case err != nil:
			m.Foreign(err)
			return false
		}
		m.Moved, m.Origin, m.Subject, m.Header = true, &origin, origin.Subject, header
		return true
	}
	sequence, copied := partition.Source(m.Header.Get(partition.SourceHeader))
	if !ok || !copied {
		m.Foreign(fmt.Errorf("it is not a copied message: header %s is missing", partition.SourceHeader))
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

// ToPartition puts a message that was replayed into its partition, soon.
func (m *Arrival) ToPartition(r *Route, p *generations.Part) {
	r.Go(func() {
		err := p.Of.Put(r.Work, r.JS, m.Subject, m.Delivery.Msg.Header, m.Delivery.Msg.Data)
		switch {
		case err == nil:
			m.Done()
			return
		case m.Delivery.Fenced():
			m.Delivery.Release()
			return
		}
		if others, ok := r.undivided.Allow(time.Now()); ok {
			r.Log.Warn("cannot put a replayed message into its partition; retrying", m.Attrs("others", others, "error", err)...)
		}
		m.UnlessBounded(never, func() { _ = m.Delivery.Nak(time.Now().Add(IntoPartitionAgain)) })
	})
}
