package durables

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/plain"
	"github.com/relaymq/relay/internal/provision"
	"github.com/relaymq/relay/internal/subject"
)

// Waiting are the messages that a durable would get.
type Waiting struct {
	All    uint64 // that match in the stream
	Chosen uint64 // those from the chosen start on
}

// isQueue tells whether a stream holds only what nobody has handled, and refuses a second consumer on the same subjects.
func isQueue(stream jetstream.Stream) bool {
	return stream.CachedInfo().Config.Retention == jetstream.WorkQueuePolicy
}

// mayShareQueue tells who has the messages of a work queue already: it lets only one consumer have each subject.
func (d *Durable) mayShareQueue(ctx context.Context, stream jetstream.Stream, want jetstream.ConsumerConfig) error {
	if !isQueue(stream) {
		return nil
	}
	list, _, err := d.cfg.Listings.Of(ctx, stream)
	if err != nil {
		return err
	}
	filters := func(c jetstream.ConsumerConfig) []string {
		if f := provision.Filters(c); len(f) > 0 {
			return f
		}
		return []string{">"}
	}
	for _, info := range list {
		if both := common(filters(info.Config), filters(want)); info.Name != d.cfg.Durable && len(both) > 0 {
			return fmt.Errorf("durable %s cannot be made: stream %s is a work queue, where only one consumer may have a subject, and consumer %s has %s: give the route that durable (durable: %s), or other subjects",
				d.cfg.Durable, d.cfg.Stream, info.Name, plain.And(both), info.Name)
		}
	}
	return nil
}

// countWaiting counts the messages that a durable would get.
func (d *Durable) countWaiting(ctx context.Context, stream jetstream.Stream, want jetstream.ConsumerConfig) (w Waiting, err error) {
	n := stream.CachedInfo().State.Msgs
	if n == 0 || isQueue(stream) {
		return Waiting{n, n}, nil
	}
	if w.Chosen, err = d.count(ctx, stream, want); err != nil {
		return w, err
	}
	all := want
	all.DeliverPolicy, all.OptStartTime, all.OptStartSeq = jetstream.DeliverAllPolicy, nil, 0
	w.All, err = d.count(ctx, stream, all)
	return w, err
}

// count is how many messages a durable would get now, by a consumer that delivers nothing and goes away.
func (d *Durable) count(ctx context.Context, stream jetstream.Stream, c jetstream.ConsumerConfig) (uint64, error) {
	c.Durable, c.Metadata, c.MemoryStorage, c.InactiveThreshold = "", nil, true, countTimeout
	consumer, err := stream.CreateConsumer(ctx, c)
	if err != nil {
		return 0, fmt.Errorf("counting the messages of stream %s: %w", d.cfg.Stream, err)
	}
	info := consumer.CachedInfo()
	return info.NumPending, stream.DeleteConsumer(ctx, info.Name)
}

// common are the subjects that are in both lists, as patterns that do not cover one another.
func common(a, b []string) (list []string) {
	for _, p := range a {
		for _, q := range b {
			both, ok := subject.Intersect(p, q)
			if !ok || slices.ContainsFunc(list, func(had string) bool { return subject.Covers(had, both) }) {
				continue
			}
			list = append(slices.DeleteFunc(list, func(had string) bool { return subject.Covers(both, had) }), both)
		}
	}
	return list
}

// Listings are the durables of streams, for the moment of a start in which many are made.
type Listings struct {
	mu sync.Mutex
	by map[string]listing
}

type listing struct {
	at   time.Time
	list []*jetstream.ConsumerInfo
	last uint64 // message of the stream, before they were asked for
}

// listingFor is how long one counts.
const listingFor = time.Second

// Forget is for a change: what the one before it made counts.
func (l *Listings) Forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.by = nil
}

// Of are the durables of a stream, and its last message before they were asked for: what came later none of them counts as delivered.
func (l *Listings) Of(ctx context.Context, stream jetstream.Stream) (list []*jetstream.ConsumerInfo, last uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := stream.CachedInfo().Config.Name
	if had, ok := l.by[name]; ok && time.Since(had.at) < listingFor {
		return had.list, had.last, nil
	}
	info, err := stream.Info(ctx)
	if err != nil {
		return nil, 0, err
	}
	next := listing{at: time.Now(), last: info.State.LastSeq}
	durables := stream.ListConsumers(ctx)
	for info := range durables.Info() {
		next.list = append(next.list, info)
	}
	if err := durables.Err(); err != nil {
		return nil, 0, fmt.Errorf("listing the durables of stream %s: %w", name, err)
	}
	if l.by == nil {
		l.by = make(map[string]listing)
	}
	l.by[name] = next
	return next.list, next.last, nil
}
