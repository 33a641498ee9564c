package source

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/subject"
	"github.com/relaymq/relay/internal/transient"
)

// binding is what the configuration says of a source: a durable of a stream, and the routes that get its messages. It is fixed when the source
// begins, and a source that takes over from another one has the same.
type binding struct {
	in       *Instance
	log      *slog.Logger
	stream   string
	durable  string
	idPrefix []byte     // of the ids of its messages
	due      bool       // on the retry stream
	origin   string     // of a due one: the stream whose messages come due here
	patterns []dispatch // most specific first
	routes   []*Route
}

type dispatch struct {
	pattern string
	route   *Route
}

// Add routes the subjects of rt here.
func (b *binding) Add(rt *Route, patterns ...string) {
	b.routes = append(b.routes, rt)
	for _, p := range patterns {
		b.patterns = append(b.patterns, dispatch{p, rt})
	}
	slices.SortStableFunc(b.patterns, func(x, y dispatch) int { return subject.Compare(x.pattern, y.pattern) })
}

// Serves tells whether the route gets messages from here.
func (b *binding) Serves(rt *Route) bool { return slices.Contains(b.routes, rt) }

// Names are those of the routes.
func (b *binding) Names() (list []string) {
	for _, rt := range b.routes {
		list = append(list, rt.Name)
	}
	return list
}

// RouteOf is the route with the most specific subject that matches; nil when there is none.
func (b *binding) RouteOf(literal string) *Route {
	for _, d := range b.patterns {
		if subject.Matches(d.pattern, literal) {
			return d.route
		}
	}
	return nil
}

// routeFor is the route of a message that arrives on this subject.
func (b *binding) routeFor(literal string) *Route {
	if b.due {
		return b.routes[0]
	}
	return b.RouteOf(literal)
}

// id is retry.Origin.ID for a message of this durable, without its cost.
func (b *binding) id(d *ack.Delivery) string {
	return string(retry.AppendID(append(make([]byte, 0, 96), b.idPrefix...), d.Sequence, d.Time))
}

func (b *binding) String() string { return fmt.Sprintf("%s/%s", b.stream, b.durable) }

// RouteOfPattern is the route of this configuration that has such a subject; nil when it has been changed meanwhile.
func (b *binding) RouteOfPattern(pattern string) *Route {
	for _, d := range b.patterns {
		if d.pattern == pattern {
			return d.route
		}
	}
	return nil
}

// Subjects are the patterns of its routes.
func (b *binding) Subjects() []string {
	list := make([]string, len(b.patterns))
	for i, d := range b.patterns {
		list[i] = d.pattern
	}
	return list
}

// unheld tells whether no message of the stream can be for the route. What a stream gets from others may have any subject.
func (b *binding) unheld(c jetstream.StreamConfig, rt *Route) bool {
	if b.due || len(c.Subjects) == 0 || c.Mirror != nil || len(c.Sources) > 0 || c.SubjectTransform != nil {
		return false
	}
	return !slices.ContainsFunc(rt.Subjects, func(p string) bool {
		return slices.ContainsFunc(c.Subjects, func(held string) bool { return subject.Overlaps(p, held) })
	})
}

// newerGeneration says that a part must not begin: there is a newer generation, to which what is before may have been handed over.
func (b *binding) newerGeneration(ctx context.Context) error {
	p := b.routes[0].Part
	if p == nil || b.due {
		return nil
	}
	behind, err := b.in.IsBehind(ctx, p)
	if err == nil && behind {
		b.in.GenerationsChanged()
		err = transient.Made(fmt.Errorf("route %s has a newer generation of partitions: %w", p.Route, jetstream.ErrStreamNotFound))
	}
	return err
}

// leased tells whether one instance at a time works on its messages.
func (b *binding) leased() bool { return b.routes[0].Leased }

// Routes are those that get messages from here.
func (b *binding) Routes() []*Route { return b.routes }

// Log is that of the durable.
func (b *binding) Log() *slog.Logger { return b.log }
