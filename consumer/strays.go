package consumer

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/intake"
	"github.com/relaymq/relay/consumer/internal/strays"
	"github.com/relaymq/relay/internal/provision"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/subject"
)

// straysOf is how the messages are settled that no route of this instance wants.
func (s *source) straysOf() *intake.Strays {
	return &intake.Strays{
		Strays: strays.New(s.log, s.pulls.Wake), Durable: &s.Durable, Count: func() { s.count.Strays.Add(1) }, Doubt: s.watchdog.Doubt,
		Elsewhere: s.isElsewhere, Moved: func() { s.count.tally.Elsewhere() },
	}
}

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

// isElsewhere tells whether a route of this instance gets a message from another durable of the stream: one that moved away from this durable, which
// goes on delivering its subjects. To keep it would have it handled twice, should the route come back.
func (s *source) isElsewhere(literal string, sequence uint64) bool {
	return !s.due && slices.ContainsFunc(s.relay.running.Sources(), func(o *source) bool {
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
	for _, main := range s.relay.running.Sources() {
		if !main.due && main.stream == s.origin && main.durable == o.Consumer && main.serves(s.routes[0]) && main.routeOf(o.Subject) == nil {
			_, to, known := main.strays.WantedBy(o.Subject)
			return known && to == retry.NoRoute
		}
	}
	return false
}
