package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/strays"
	"github.com/relaymq/relay/consumer/internal/unstored"
	"github.com/relaymq/relay/internal/provision"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/subject"
)

// Strays are messages that arrive where no route of this instance wants them; see package strays. One that is kept waits in the retry stream for its
// route, unless a route of this instance gets it from another durable.

// unkeptDelay is how long a stray stays away that the retry stream does not take.
const unkeptDelay = time.Minute

// learn notes what the durable is for beside the subjects of the routes that are here, by a look that began then. What another
// instance has for a route that is here too is kept for no route: here, it would be handled by the wrong one.
func (s *source) learn(c jetstream.StreamConfig, m provision.Mark, began time.Time) {
	var gone []strays.Wanted
	for name, patterns := range m.Routes {
		to := name
		if slices.ContainsFunc(s.relay.routes.all(), func(rt *route) bool { return rt.cfg.Name == name }) {
			to = retry.NoRoute
		}
		for _, p := range patterns {
			if !slices.ContainsFunc(s.patterns, func(d dispatch) bool { return d.route.cfg.Name == name && subject.Covers(d.pattern, p) }) {
				gone = append(gone, strays.Wanted{Pattern: p, Route: to})
			}
		}
	}
	s.strays.Learn(c.Subjects, gone, began)
	for _, rt := range s.routes {
		if s.strays.Empty(rt.cfg.Name, s.unheld(c, rt)) {
			rt.log.Warn("no subject of this route is on the stream: nothing can arrive", "stream", s.stream, "holds", c.Subjects, "subjects", rt.cfg.Subjects)
		}
	}
}

// stray settles a message that no route of this instance wants. The origin of one that was wrapped is its own.
func (m *message) stray(origin *retry.Origin) {
	s, d := m.source, m.Delivery
	if m.route == nil {
		m.on(s.routes[0]) // which holds it, if it must be held
	}
	s.count.Strays.Add(1)
	to := retry.NoRoute
	if origin != nil {
		to = origin.Route
		s.strays.Came(fmt.Sprintf("%s of stream %s", origin.Route, origin.Stream), origin.Subject)
	} else {
		var pattern string
		var known bool
		if pattern, to, known = s.strays.WantedBy(m.Subject); !known && !s.strays.Unknown().Swap(true) {
			s.watchdog.Doubt() // the stream may have got more subjects, which the durable need not deliver
		}
		s.strays.Came(pattern, m.Subject)
	}
	if m.bodyless {
		m.returnBodyless()
		return
	}
	after, back, doubt := s.strays.GoesBack(to, d.Deliveries, s.Session.AckPending())
	if doubt {
		s.watchdog.Doubt()
	}
	if back && !s.Health.IsBounded() {
		_ = d.Nak(time.Now().Add(after)) // fenced: somebody else has it
		return
	}
	if origin == nil && s.isElsewhere(m.Subject, d.Sequence) {
		s.count.tally.Elsewhere()
		m.Done()
		return
	}
	s.strays.Keep(func() { m.keep(origin, to) })
}

// isElsewhere tells whether a route of this instance gets a message from another durable of the stream: one that moved away from this durable, which
// goes on delivering its subjects. To keep it would have it handled twice, should the route come back.
func (s *source) isElsewhere(literal string, sequence uint64) bool {
	return !s.due && slices.ContainsFunc(s.relay.running.sources(), func(o *source) bool {
		return o != s && !o.due && o.stream == s.stream && sequence >= o.delivers && o.routeOf(literal) != nil
	})
}

// noteDelivers notes from which sequence on the durable certainly delivers what the routes want: it has their subjects by now.
func (s *source) noteDelivers(ctx context.Context, stream jetstream.Stream) error {
	if s.due {
		return nil
	}
	info, err := stream.Info(ctx)
	if err == nil {
		s.delivers = info.State.LastSeq + 1
	}
	return err
}

// keep has the retry stream keep a stray: for the route it came for, or for nobody.
func (m *message) keep(origin *retry.Origin, to string) {
	s, d := m.source, m.Delivery
	if d.Fenced() {
		d.Release()
		return
	}
	ctx, cancel := context.WithTimeout(m.Path.Work, askTimeout)
	defer cancel()
	var err error
	if origin != nil {
		err = s.relay.stores.Retries.Forward(ctx, *origin, m.Header, m.Data)
	} else {
		err = m.keepUnwrapped(ctx, to)
	}
	if err != nil {
		s.log.Debug("cannot keep a message that no route here wants in the retry stream", "subject", m.Subject, "seq", d.Sequence, "error", err)
		if s.Health.IsBounded() {
			m.Hold(time.Now().Add(unstored.Every), err, func() { m.keep(origin, to) })
			return
		}
		_ = d.Nak(time.Now().Add(unkeptDelay))
		return
	}
	m.Done()
}

func (m *message) keepUnwrapped(ctx context.Context, to string) error {
	s, d := m.source, m.Delivery
	rec, err := s.Records.Get(ctx, d.Sequence, d.Deliveries)
	switch {
	case err != nil:
		return err
	case rec.Crashes > 0:
		return errors.New("it may have ended a process, and its crash count would be lost")
	}
	m.Recorded = rec.Known()
	return s.relay.stores.Retries.Park(ctx, retry.Origin{
		Route: to, Stream: s.stream, Consumer: s.durable, Sequence: d.Sequence, Time: d.Time, Subject: m.Subject, Deliveries: d.Deliveries,
		Attempts: rec.Attempts, FirstFailure: rec.FirstFailure, LastFailure: rec.LastFailure, LastError: rec.LastError,
	}, m.Header, m.Data, time.Now(), m.Path.Room(), 0)
}

// strayTrouble says that strays came lately, if so.
func (s *source) strayTrouble() string {
	since, example, lately := s.strays.Lately()
	if !lately {
		return ""
	}
	return fmt.Sprintf("durable %s on %s: it delivers messages that no route of this instance wants, such as %q, since %s (%d in all); those that no other instance takes are kept in the retry stream",
		s.durable, s.stream, example, since.UTC().Format(time.RFC3339), s.count.Strays.Load())
}

// claimsOf is how what the routes of the source want is found among what is kept for no route.
func (s *source) claimsOf() *strays.Claims {
	return strays.NewClaims(strays.ClaimsConfig{
		Log: s.log, Stream: s.stream, Durable: s.durable, Looks: s.relay.streams, Pool: s.tidying,
		Retries: func() *retry.Stream { return s.relay.stores.Retries },
		Work:    func() context.Context { return s.routes[0].path.Work },
		Wants: func(subject string) string {
			if rt := s.routeOf(subject); rt != nil {
				return rt.cfg.Name
			}
			return ""
		},
	})
}

// othersWant tells whether a message that came due for a route here is for another instance, whose route of the same name has
// more subjects. What an operator replayed to the route is always for it.
func (s *source) othersWant(o retry.Origin) bool {
	if o.Replay > 0 {
		return false
	}
	for _, main := range s.relay.running.sources() {
		if !main.due && main.stream == s.origin && main.durable == o.Consumer && main.serves(s.routes[0]) && main.routeOf(o.Subject) == nil {
			_, to, known := main.strays.WantedBy(o.Subject)
			return known && to == retry.NoRoute
		}
	}
	return false
}
