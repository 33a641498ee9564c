package consumer

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
	relay    *Relay
	log      *slog.Logger
	stream   string
	durable  string
	idPrefix []byte     // of the ids of its messages
	due      bool       // on the retry stream
	origin   string     // of a due one: the stream whose messages come due here
	patterns []dispatch // most specific first
	routes   []*route
}

type dispatch struct {
	pattern string
	route   *route
}

// add routes the subjects of rt here.
func (b *binding) add(rt *route, patterns ...string) {
	b.routes = append(b.routes, rt)
	for _, p := range patterns {
		b.patterns = append(b.patterns, dispatch{p, rt})
	}
	slices.SortStableFunc(b.patterns, func(x, y dispatch) int { return subject.Compare(x.pattern, y.pattern) })
}

func (b *binding) serves(rt *route) bool { return slices.Contains(b.routes, rt) }

// names are those of the routes.
func (b *binding) names() (list []string) {
	for _, rt := range b.routes {
		list = append(list, rt.cfg.Name)
	}
	return list
}

// routeOf is the route with the most specific subject that matches; nil when there is none.
func (b *binding) routeOf(literal string) *route {
	for _, d := range b.patterns {
		if subject.Matches(d.pattern, literal) {
			return d.route
		}
	}
	return nil
}

// routeFor is the route of a message that arrives on this subject.
func (b *binding) routeFor(literal string) *route {
	if b.due {
		return b.routes[0]
	}
	return b.routeOf(literal)
}

// id is retry.Origin.ID for a message of this durable, without its cost.
func (b *binding) id(d *ack.Delivery) string {
	return string(retry.AppendID(append(make([]byte, 0, 96), b.idPrefix...), d.Sequence, d.Time))
}

func (b *binding) String() string { return fmt.Sprintf("%s/%s", b.stream, b.durable) }

// routeOfPattern is the route of this configuration that has such a subject; nil when it has been changed meanwhile.
func (b *binding) routeOfPattern(pattern string) *route {
	for _, d := range b.patterns {
		if d.pattern == pattern {
			return d.route
		}
	}
	return nil
}

// subjects are the patterns of its routes.
func (b *binding) subjects() []string {
	list := make([]string, len(b.patterns))
	for i, d := range b.patterns {
		list[i] = d.pattern
	}
	return list
}

// unheld tells whether no message of the stream can be for the route. What a stream gets from others may have any subject.
func (b *binding) unheld(c jetstream.StreamConfig, rt *route) bool {
	if b.due || len(c.Subjects) == 0 || c.Mirror != nil || len(c.Sources) > 0 || c.SubjectTransform != nil {
		return false
	}
	return !slices.ContainsFunc(rt.cfg.Subjects, func(p string) bool {
		return slices.ContainsFunc(c.Subjects, func(held string) bool { return subject.Overlaps(p, held) })
	})
}

// newerGeneration says that a part must not begin: there is a newer generation, to which what is before may have been handed over.
func (b *binding) newerGeneration(ctx context.Context) error {
	p := b.routes[0].cfg.part
	if p == nil || b.due {
		return nil
	}
	behind, err := b.relay.divided.maker.IsBehind(ctx, p)
	if err == nil && behind {
		b.relay.generations.Soon()
		err = transient.Made(fmt.Errorf("route %s has a newer generation of partitions: %w", p.Route, jetstream.ErrStreamNotFound))
	}
	return err
}

// leased tells whether one instance at a time works on its messages.
func (b *binding) leased() bool { return b.routes[0].cfg.Leased() }
