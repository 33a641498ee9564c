package source

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

// Unwanted is what a durable delivers that no route of this instance wants, and what is kept for no route that they want.
type Unwanted struct {
	*Source
	strays   *intake.Strays
	claims   *strays.Claims // of a durable on a stream of the user
	delivers uint64         // from this sequence on the durable delivers all that the routes want, for certain; fixed when it is open
}

func newUnwanted(s *Source) *Unwanted {
	u := &Unwanted{Source: s}
	u.strays, u.claims = u.straysOf(), u.claimsOf()
	return u
}

// straysOf is how the messages are settled that no route of this instance wants.
func (u *Unwanted) straysOf() *intake.Strays {
	return &intake.Strays{
		Strays: strays.New(u.log, u.Pulls.Wake), Durable: &u.Durable, Count: func() { u.Count.Strays.Add(1) }, Doubt: u.Watchdog.Doubt,
		Elsewhere: u.isElsewhere, Moved: func() { u.Count.tally.Elsewhere() },
	}
}

// learn notes what the durable is for beside the subjects of the routes that are here, by a look that began then. What another
// instance has for a route that is here too is kept for no route: here, it would be handled by the wrong one.
func (u *Unwanted) learn(c jetstream.StreamConfig, m provision.Mark, began time.Time) {
	var gone []strays.Wanted
	for name, patterns := range m.Routes {
		to := name
		if u.in.HasRoute(name) {
			to = retry.NoRoute
		}
		for _, p := range patterns {
			if !slices.ContainsFunc(u.patterns, func(d dispatch) bool { return d.route.Name == name && subject.Covers(d.pattern, p) }) {
				gone = append(gone, strays.Wanted{Pattern: p, Route: to})
			}
		}
	}
	u.strays.Learn(c.Subjects, gone, began)
	for _, rt := range u.routes {
		if !u.unheld(c, rt) {
			u.strays.NotEmpty(rt.Name)
		} else if u.strays.Empty(rt.Name) {
			rt.Log.Warn("no subject of this route is on the stream: nothing can arrive", "stream", u.stream, "holds", c.Subjects, "subjects", rt.Subjects)
		}
	}
}

// isElsewhere tells whether a route of this instance gets a message from another durable of the stream: one that moved away from this durable, which
// goes on delivering its subjects. To keep it would have it handled twice, should the route come back.
func (u *Unwanted) isElsewhere(literal string, sequence uint64) bool {
	return !u.due && slices.ContainsFunc(u.in.Open(), func(o *Source) bool {
		return o != u.Source && !o.due && o.stream == u.stream && sequence >= o.Unwanted.delivers && o.RouteOf(literal) != nil
	})
}

// noteDelivers notes from which sequence on the durable certainly delivers what the routes want: it has their subjects by now.
func (u *Unwanted) noteDelivers(ctx context.Context, stream jetstream.Stream) error {
	if u.due {
		return nil
	}
	info, err := stream.Info(ctx)
	if err == nil {
		u.delivers = info.State.LastSeq + 1
	}
	return err
}

// IsEmpty tells whether no subject of the route is on the stream.
func (u *Unwanted) IsEmpty(route string) bool { return u.strays.IsEmpty(route) }

// Trouble says that strays came lately, if so.
func (u *Unwanted) Trouble() string {
	since, example, lately := u.strays.Lately()
	if !lately {
		return ""
	}
	return fmt.Sprintf("durable %s on %s: it delivers messages that no route of this instance wants, such as %q, since %s (%d in all); those that no other instance takes are kept in the retry stream",
		u.durable, u.stream, example, since.UTC().Format(time.RFC3339), u.Count.Strays.Load())
}

// claimsOf is how what the routes of the source want is found among what is kept for no route.
func (u *Unwanted) claimsOf() *strays.Claims {
	return strays.NewClaims(strays.ClaimsConfig{
		Log: u.log, Stream: u.stream, Durable: u.durable, Looks: u.in.Streams, Pool: u.tidying,
		Retries: func() *retry.Stream { return u.in.Stores.Retries },
		Work:    func() context.Context { return u.routes[0].Path.Work },
		Wants: func(subject string) string {
			if rt := u.RouteOf(subject); rt != nil {
				return rt.Name
			}
			return ""
		},
	})
}

// othersWant tells whether a message that came due for a route here is for another instance, whose route of the same name has
// more subjects. What an operator replayed to the route is always for it.
func (u *Unwanted) othersWant(o retry.Origin) bool {
	if o.Replay > 0 {
		return false
	}
	for _, main := range u.in.Open() {
		if !main.due && main.stream == u.origin && main.durable == o.Consumer && main.Serves(u.routes[0]) && main.RouteOf(o.Subject) == nil {
			_, to, known := main.Unwanted.strays.WantedBy(o.Subject)
			return known && to == retry.NoRoute
		}
	}
	return false
}
