package consumer

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/ack"
)

// What a route parked, and what is replayed to it, comes due on the retry stream, on a durable for each route and stream.
// Earlier versions had one durable for each route, whatever the stream: two deployments with a route of the same name, each on a
// stream of its own, got one another's messages. The durable of the earlier version is kept for messages that it parked.

// dueSources are those from which a route gets what comes due of its stream.
func (r *Relay) dueSources(rt *route, stream string, old bool) []*source {
	due := newSource(r, r.retries.Name(), ack.DueDurable(rt.cfg.Name, stream), true)
	due.origin = stream
	due.add(rt, r.retries.DueSubjects(rt.cfg.Name, stream))
	if !old {
		return []*source{due}
	}
	earlier := newSource(r, r.retries.Name(), rt.cfg.Name, true)
	earlier.origin = stream
	earlier.add(rt, r.retries.OldDueSubjects(rt.cfg.Name))
	return []*source{earlier, due}
}

// oldDue is the durable of an earlier version, if there is one.
func (r *Relay) oldDue(ctx context.Context, route string) (c jetstream.ConsumerConfig, has bool, err error) {
	durable, err := r.js.Consumer(ctx, r.retries.Name(), route)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound), errors.Is(err, jetstream.ErrNotPullConsumer), errors.Is(err, jetstream.ErrStreamNotFound):
		return c, false, nil
	case err != nil:
		return c, false, err
	}
	c = durable.CachedInfo().Config
	return c, c.FilterSubject == r.retries.OldFilter(route) || c.FilterSubject == r.retries.OldDueSubjects(route), nil
}

// narrowOldDue leaves that durable with what only earlier versions park: nothing else may be consumed of a work queue while
// its filter matches it too.
func (r *Relay) narrowOldDue(ctx context.Context, route string) error {
	c, has, err := r.oldDue(ctx, route)
	if err != nil || !has || c.FilterSubject == r.retries.OldDueSubjects(route) {
		return err
	}
	c.FilterSubject = r.retries.OldDueSubjects(route)
	_, err = r.js.UpdateConsumer(ctx, r.retries.Name(), c)
	return err
}
