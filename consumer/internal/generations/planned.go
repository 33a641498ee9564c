package generations

import (
	"context"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/partition"
	"github.com/relaymq/relay/internal/planned"
)

// Planned is what would become of the partitions of a route. Assumed is a stream that does not exist yet and that somebody makes; nil: it is there.
func (m Maker) Planned(ctx context.Context, w Wanted, assumed func(stream string) *jetstream.StreamConfig) (p planned.Divided, err error) {
	if err := w.find(ctx); err != nil {
		return p, err
	}
	list, err := partition.Find(ctx, m.JS, m.Service, w.Route)
	if err != nil {
		return p, err
	}
	g := m.Generation(w, 1)
	p = planned.Divided{Route: w.Route, Does: planned.Made, Partitions: g.Count}
	switch n := len(list); {
	case n == 0:
		start, err := m.first(ctx, w, assumed(w.Stream))
		if err != nil {
			return p, err
		}
		p.Start = start.String()
	case list[n-1].Equal(g.Layout):
		g, p.Does, p.Before = list[n-1].Generation, planned.Stays, g.Count
	default:
		g.Number, p.Does, p.Before = list[n-1].Number+1, planned.Changed, list[n-1].Count
	}
	p.Stream = g.Name()
	return p, nil
}

// first is where the first generation would begin. Made is the stream of the user when somebody is to make it.
func (m Maker) first(ctx context.Context, w Wanted, made *jetstream.StreamConfig) (partition.Start, error) {
	if made != nil {
		return partition.Start{Sequence: 1}, Copyable(*made)
	}
	from, err := m.JS.Stream(ctx, w.Stream)
	if err == nil {
		err = Copyable(from.CachedInfo().Config)
	}
	if err != nil {
		return partition.Start{}, err
	}
	return m.Start(ctx, w, from)
}
