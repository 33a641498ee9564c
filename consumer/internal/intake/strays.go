package intake

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relaymq/relay/consumer/internal/settle"
	"github.com/relaymq/relay/consumer/internal/strays"
	"github.com/relaymq/relay/consumer/internal/unstored"
	"github.com/relaymq/relay/internal/retry"
)

// unkeptDelay is how long a stray stays away that the retry stream does not take.
const unkeptDelay = time.Minute

// Strays are the messages of a durable that no route of this instance wants; see package strays. One that is kept waits in the retry stream for its
// route, unless a route of this instance gets it from another durable.
type Strays struct {
	*strays.Strays
	Durable *settle.Durable
	Count   func() // there is one more
	Doubt   func() // the durable should be looked at
	// Elsewhere tells whether a route of this instance gets the message from another durable. Moved is called if that is so.
	Elsewhere func(subject string, sequence uint64) bool
	Moved     func()
}

// Take settles a message that no route of this instance wants. The origin of one that was wrapped is its own.
func (s *Strays) Take(m *Arrival, origin *retry.Origin) {
	s.Count()
	to := retry.NoRoute
	if origin != nil {
		to = origin.Route
		s.Came(fmt.Sprintf("%s of stream %s", origin.Route, origin.Stream), origin.Subject)
	} else {
		var pattern string
		var known bool
		if pattern, to, known = s.WantedBy(m.Subject); !known && !s.Unknown().Swap(true) {
			s.Doubt() // the stream may have got more subjects, which the durable need not deliver
		}
		s.Came(pattern, m.Subject)
	}
	if m.Bodyless {
		m.ReturnBodyless()
		return
	}
	after, back, doubt := s.GoesBack(to, m.Delivery.Deliveries, s.Durable.Session.AckPending())
	if doubt {
		s.Doubt()
	}
	if back && !s.Durable.Health.IsBounded() {
		_ = m.Delivery.Nak(time.Now().Add(after)) // fenced: somebody else has it
		return
	}
	if origin == nil && s.Elsewhere(m.Subject, m.Delivery.Sequence) {
		s.Moved()
		m.Done()
		return
	}
	s.Keep(func() { s.keep(m, origin, to) })
}

// keep has the retry stream keep a stray: for the route it came for, or for nobody.
func (s *Strays) keep(m *Arrival, origin *retry.Origin, to string) {
	if m.Delivery.Fenced() {
		m.Delivery.Release()
		return
	}
	ctx, cancel := context.WithTimeout(m.Path.Work, settle.Timeout)
	defer cancel()
	var err error
	if origin != nil {
		err = m.Path.Stores.Retries.Forward(ctx, *origin, m.Header, m.Data)
	} else {
		err = s.keepUnwrapped(ctx, m, to)
	}
	if err != nil {
		m.Path.Log.Debug("cannot keep a message that no route here wants in the retry stream", "subject", m.Subject, "seq", m.Delivery.Sequence, "error", err)
		if s.Durable.Health.IsBounded() {
			m.Hold(time.Now().Add(unstored.Every), err, func() { s.keep(m, origin, to) })
			return
		}
		_ = m.Delivery.Nak(time.Now().Add(unkeptDelay))
		return
	}
	m.Done()
}

func (s *Strays) keepUnwrapped(ctx context.Context, m *Arrival, to string) error {
	d := m.Delivery
	rec, err := s.Durable.Records.Get(ctx, d.Sequence, d.Deliveries)
	switch {
	case err != nil:
		return err
	case rec.Crashes > 0:
		return errors.New("it may have ended a process, and its crash count would be lost")
	}
	m.Recorded = rec.Known()
	return m.Path.Stores.Retries.Park(ctx, retry.Origin{
		Route: to, Stream: s.Durable.Stream, Consumer: s.Durable.Name, Sequence: d.Sequence, Time: d.Time, Subject: m.Subject, Deliveries: d.Deliveries,
		Attempts: rec.Attempts, FirstFailure: rec.FirstFailure, LastFailure: rec.LastFailure, LastError: rec.LastError,
	}, m.Header, m.Data, time.Now(), m.Path.Room(), 0)
}
