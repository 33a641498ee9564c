package engine

import (
	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/internal/retry"
)

// dueSourceOf is where a route gets what comes due of its stream: what it parked, and what is replayed to it. It is a durable on the retry
// stream for each route and stream: two deployments may have a route of the same name, each on a stream of its own.
//
// Of a route with partitions the first one gets it, and puts it into the partition of its key, once no former generation is left whose messages are before it.
func dueSourceOf(r *Engine, rt *route.Route, stream string) *source.Source {
	name := rt.Spec.Name
	if p := rt.Spec.Part; p != nil {
		if p.Number > 0 || p.To != nil || p.After {
			return nil
		}
		name, stream = p.Route, p.Stream
	}
	due := source.NewDue(r.Sources, retry.DueDurable(name, stream), stream)
	due.Add(&rt.Source, r.Stores.Retries.DueSubjects(name, stream))
	return due
}
