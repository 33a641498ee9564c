package dlq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"time"
)

// Plan is what was chosen for a replay, in the order in which it will be handed over: that of the original sequences, so
// that the messages of a key keep their order. It takes 48 bytes of memory for an entry.
type Plan struct {
	Total          int
	Routes         map[string]int
	Oldest, Newest time.Time // stored
	Last           uint64    // the number of the newest, also of one that is refused: what comes later is not part of it
	Refused        int
	Refusals       []Refusal      // the first 100
	Reasons        map[string]int // of refusals; at most 20

	items []item
}

// item is an entry in short.
type item struct {
	number   uint64
	stored   uint64 // hash of its subject in the dead letters
	key      uint64 // hash of route and key
	sequence uint64
	replay   int32
	stream   int32
	size     int32 // of the body, at most 64 MiB as max_payload is
}

// Choice says what to replay.
type Choice struct {
	Filter  Filter
	Numbers []uint64 // instead of Filter
	// Last is the newest number that belongs to it; 0: up to the newest there is.
	Last uint64
	// Refuse says why an entry is not to be replayed, or nothing. It may be nil.
	Refuse func(Entry) string
	// ToRoute says that they go to their routes: those that nobody would take there are refused.
	ToRoute bool
	// Subject, when set, is where they are published instead. When nothing can be replayed to it, Plan returns an error that is [ErrRefused].
	Subject string
	// Key is what is supervised together in the route of an entry; nil: its subject.
	Key func(Entry) string
}

// Plan looks at what was chosen. Numbers that hold no entry are an error that is [ErrNotFound].
func (s *Store) Plan(ctx context.Context, c Choice) (*Plan, error) {
	if c.Subject != "" && c.Subject != ToOriginal {
		if err := s.publishable(c.Subject); err != nil {
			return nil, err
		}
	}
	p := &Plan{Routes: make(map[string]int), Reasons: make(map[string]int)}
	streams := make(map[string]int32)
	note := func(e Entry, err error) error {
		var bad *EntryError
		switch {
		case errors.As(err, &bad):
			p.refuse(bad.Sequence, bad.Err.Error())
			return nil
		case err != nil:
			return err
		}
		if c.Refuse != nil {
			if why := c.Refuse(e); why != "" {
				p.refuse(e.StoredSequence, why)
				return nil
			}
		}
		if c.ToRoute {
			why, err := s.untaken(ctx, e.Route, e.Stream)
			if err != nil {
				return err
			}
			if why != "" {
				p.refuse(e.StoredSequence, why)
				return nil
			}
		}
		stream, ok := streams[e.Stream]
		if !ok {
			stream = int32(len(streams))
			streams[e.Stream] = stream
		}
		key := e.Subject
		if c.Key != nil {
			key = c.Key(e)
		}
		p.items = append(p.items, item{
			number: e.StoredSequence, stored: hash(e.StoredSubject), key: hash(e.Route + " " + key), sequence: e.Sequence,
			replay: int32(e.Replay), stream: stream, size: int32(min(e.Size, math.MaxInt32)),
		})
		p.Total++
		p.Last = max(p.Last, e.StoredSequence)
		p.Routes[e.Route]++
		if p.Oldest.IsZero() || e.StoredTime.Before(p.Oldest) {
			p.Oldest = e.StoredTime
		}
		if e.StoredTime.After(p.Newest) {
			p.Newest = e.StoredTime
		}
		return nil
	}
	if len(c.Numbers) > 0 {
		for _, n := range slices.Compact(slices.Sorted(slices.Values(c.Numbers))) {
			e, err := s.Get(ctx, n)
			if err = note(e, err); err != nil {
				return nil, fmt.Errorf("dead letter %d: %w", n, err)
			}
		}
	} else {
		for e, err := range s.List(ctx, c.Filter) {
			if err == nil && c.Last != 0 && e.StoredSequence > c.Last {
				break
			}
			if err = note(e, err); err != nil {
				return nil, err
			}
		}
	}
	slices.SortFunc(p.items, func(a, b item) int {
		return cmp.Or(cmp.Compare(a.stream, b.stream), cmp.Compare(a.sequence, b.sequence), cmp.Compare(a.replay, b.replay),
			cmp.Compare(a.number, b.number))
	})
	return p, nil
}

// Numbers are those of the entries, in the order of the plan.
func (p *Plan) Numbers() iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for _, it := range p.items {
			if !yield(it.number) {
				return
			}
		}
	}
}

func (p *Plan) refuse(number uint64, why string) {
	p.Refused++
	p.Last = max(p.Last, number)
	if len(p.Refusals) < maxRefusals {
		p.Refusals = append(p.Refusals, Refusal{number, why})
	}
	countReason(p.Reasons, why)
}
