package durables

import (
	"cmp"
	"context"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/provision"
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

// handledBefore finds them for a durable that does not exist yet.
func (d *Durable) handledBefore(ctx context.Context, stream jetstream.Stream, want jetstream.ConsumerConfig) (list []control.Again, err error) {
	if d.cfg.Due || isQueue(stream) { // which holds only what nobody has handled
		return nil, nil
	}
	all := d.cfg.Start().isAll()
	if f, ok := d.cfg.Floors.Before(ctx, stream.CachedInfo().Created); ok {
		if n, err := d.handledUpTo(ctx, stream, want, f.Seq, d.Waiting.Chosen); err != nil || n > 0 {
			return []control.Again{{Messages: n, Durable: d.cfg.Durable, Deleted: true, Next: f.Seq + 1, All: all}}, err
		}
	}
	return d.handledElsewhere(ctx, stream, brought{d.subjects(), want, all})
}

// passedAgain finds them for a durable that exists, and that is to hand over what it has passed.
func (d *Durable) passedAgain(ctx context.Context, stream jetstream.Stream, have jetstream.ConsumerConfig) ([]control.Again, error) {
	if d.cfg.Due || isQueue(stream) {
		return nil, nil
	}
	var list []brought
	last := stream.CachedInfo().State.LastSeq
	for _, g := range d.cfg.CatchUp.Gap(have, last) {
		c := d.Want
		c.DeliverPolicy, c.OptStartSeq, c.OptStartTime = jetstream.DeliverAllPolicy, 0, nil
		switch {
		case g.Next() > last:
			continue
		case !g.Since.IsZero():
			c.DeliverPolicy, c.OptStartTime = jetstream.DeliverByStartTimePolicy, &g.Since
		case g.Next() > 1:
			c.DeliverPolicy, c.OptStartSeq = jetstream.DeliverByStartSequencePolicy, g.Next()
		}
		list = append(list, brought{[]string{g.Pattern}, c, d.of(g.Pattern).Start.isAll()})
	}
	if len(list) == 0 {
		return nil, nil
	}
	return d.handledElsewhere(ctx, stream, list...)
}

// handledElsewhere are those that other durables have delivered.
func (d *Durable) handledElsewhere(ctx context.Context, stream jetstream.Stream, bring ...brought) (list []control.Again, err error) {
	others, last, err := d.cfg.Listings.Of(ctx, stream)
	if err != nil {
		return nil, err
	}
	for _, info := range others {
		m := provision.MarkOf(info.Config.Metadata)
		if info.Name == d.cfg.Durable || m.Service == "" {
			continue
		}
		upTo := info.Delivered.Stream
		if info.NumPending == 0 { // also what was handed over that it had passed
			upTo = max(upTo, last)
		}
		a := control.Again{Durable: info.Name, Next: upTo + 1}
		if m.Service != d.cfg.Service {
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
				n, err := d.count(ctx, stream, c)
				if err == nil {
					n, err = d.handledUpTo(ctx, stream, c, upTo, n)
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
func (d *Durable) handledUpTo(ctx context.Context, stream jetstream.Stream, c jetstream.ConsumerConfig, seq, n uint64) (uint64, error) {
	if n == 0 || c.DeliverPolicy == jetstream.DeliverByStartSequencePolicy && c.OptStartSeq > seq {
		return 0, nil
	}
	c.DeliverPolicy, c.OptStartTime, c.OptStartSeq = jetstream.DeliverByStartSequencePolicy, nil, seq+1
	after, err := d.count(ctx, stream, c)
	return n - min(n, after), err
}
