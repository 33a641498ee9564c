package consumer

import "github.com/relaymq/relay/ack"

// dueSource is where a route gets what comes due of its stream: what it parked, and what is replayed to it. It is a durable on the retry
// stream for each route and stream: two deployments may have a route of the same name, each on a stream of its own.
func (r *Relay) dueSource(rt *route, stream string) *source {
	due := newSource(r, r.retries.Name(), ack.DueDurable(rt.cfg.Name, stream), true)
	due.origin = stream
	due.add(rt, r.retries.DueSubjects(rt.cfg.Name, stream))
	return due
}
