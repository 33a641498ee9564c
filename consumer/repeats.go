package consumer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/provision"
	"github.com/relaymq/relay/internal/subject"
)

// A durable that is made for a route which has another durable already, or had one, delivers what was handled before: the route was renamed, its
// durable was, it moved from a durable that it shared, or its durable was deleted. So does a durable that the route joins, when it hands over what it has
// passed. Nobody else can tell, so relay counts these messages before it makes or widens the durable.

// brought are messages that a durable is to bring: those of some subjects that a consumer with this start would get.
type brought struct {
	subjects []string
	by       jetstream.ConsumerConfig
	all      bool
}

// handledBefore finds them for a durable that does not exist yet. w is what waits for it.
func (s *setup) handledBefore(ctx context.Context, stream jetstream.Stream, want jetstream.ConsumerConfig, w waiting) (list []control.Again, err error) {
	if s.due || stream.CachedInfo().Config.Retention == jetstream.WorkQueuePolicy { // which holds only what nobody has handled
		return nil, nil
	}
	all := s.routes[0].cfg.Start.Policy == "all"
	if f, ok := s.before(ctx, stream); ok {
		want := want
		if n, err := s.handledUpTo(ctx, stream, want, f.Seq, w.chosen); err != nil || n > 0 {
			return []control.Again{{Messages: n, Durable: s.durable, Deleted: true, Next: f.Seq + 1, All: all}}, err
		}
	}
	return s.handledElsewhere(ctx, stream, brought{s.subjects(), want, all})
}

// passedAgain finds them for a durable that exists, and that is to hand over what it has passed.
func (s *setup) passedAgain(ctx context.Context, stream jetstream.Stream, have jetstream.ConsumerConfig) ([]control.Again, error) {
	if s.due || stream.CachedInfo().Config.Retention == jetstream.WorkQueuePolicy {
		return nil, nil
	}
	var list []brought
	last := stream.CachedInfo().State.LastSeq
	for _, g := range s.catchUp.Gap(have, last) {
		c := s.want
		c.DeliverPolicy, c.OptStartSeq, c.OptStartTime = jetstream.DeliverAllPolicy, 0, nil
		switch {
		case g.Next() > last:
			continue
		case !g.Since.IsZero():
			c.DeliverPolicy, c.OptStartTime = jetstream.DeliverByStartTimePolicy, &g.Since
		case g.Next() > 1:
			c.DeliverPolicy, c.OptStartSeq = jetstream.DeliverByStartSequencePolicy, g.Next()
		}
		list = append(list, brought{[]string{g.Pattern}, c, s.routeOfPattern(g.Pattern).cfg.Start.Policy == "all"})
	}
	if len(list) == 0 {
		return nil, nil
	}
	return s.handledElsewhere(ctx, stream, list...)
}

// handledElsewhere are those that other durables have delivered.
func (s *setup) handledElsewhere(ctx context.Context, stream jetstream.Stream, bring ...brought) (list []control.Again, err error) {
	others, last, err := s.relay.listings.of(ctx, stream)
	if err != nil {
		return nil, err
	}
	for _, info := range others {
		m := provision.MarkOf(info.Config.Metadata)
		if info.Name == s.durable || m.Service == "" {
			continue
		}
		upTo := info.Delivered.Stream
		if info.NumPending == 0 { // also what was handed over that it had passed
			upTo = max(upTo, last)
		}
		a := control.Again{Durable: info.Name, Next: upTo + 1}
		if m.Service != s.relay.cfg.Service {
			if info.NumWaiting > 0 {
				continue // it handles the same messages for itself
			}
			a.Service = m.Service
		}
		var subjects []string
		for _, b := range bring {
			subjects = append(subjects, b.subjects...)
			for _, p := range common(m.Patterns(), b.subjects) {
				c := b.by
				c.FilterSubject, c.FilterSubjects = p, nil
				n, err := s.countOf(ctx, stream, c)
				if err == nil {
					n, err = s.handledUpTo(ctx, stream, c, upTo, n)
				}
				if err != nil {
					return nil, err
				}
				a.Messages += n
				a.All = a.All || b.all && n > 0
			}
		}
		if a.Messages == 0 { // those in flight count, too: which these are nobody tells
			continue
		}
		for name, patterns := range m.Routes {
			if len(common(patterns, subjects)) > 0 {
				a.Routes = append(a.Routes, name)
			}
		}
		slices.Sort(a.Routes)
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b control.Again) int { return cmp.Compare(b.Messages, a.Messages) })
	return list, nil
}

// handledUpTo is how many of n messages that a durable would get are up to a sequence.
func (s *setup) handledUpTo(ctx context.Context, stream jetstream.Stream, c jetstream.ConsumerConfig, seq, n uint64) (uint64, error) {
	if n == 0 || c.DeliverPolicy == jetstream.DeliverByStartSequencePolicy && c.OptStartSeq > seq {
		return 0, nil
	}
	c.DeliverPolicy, c.OptStartTime, c.OptStartSeq = jetstream.DeliverByStartSequencePolicy, nil, seq+1
	after, err := s.countOf(ctx, stream, c)
	return n - min(n, after), err
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

// repeats are the errors of durables that would bring again what was handled, where the configuration does not say that this is meant: start: all
// may be a habit, and a sequence or a time is not.
func (s *setup) repeats() (faults []error) {
	does := "does not exist yet, and with start: all it delivers again"
	if s.have != nil {
		does = "has passed what the route joins it for, and with start: all it hands over"
	}
	for _, a := range s.again {
		if a.All {
			faults = append(faults, &SetupError{s.routes[0].cfg.Name, fmt.Errorf(
				"durable %s %s what was handled: %v. To have them delivered again: relay reload --deliver-again, or start: {seq: 1}", s.durable, does, a)})
		}
	}
	return faults
}

// listings are the durables of streams, for the moment of a start in which many are made.
type listings struct {
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

// forget is for a change: what the one before it made counts.
func (l *listings) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.by = nil
}

// of are the durables of a stream, and its last message before they were asked for: what came later none of them counts as delivered.
func (l *listings) of(ctx context.Context, stream jetstream.Stream) (list []*jetstream.ConsumerInfo, last uint64, err error) {
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
