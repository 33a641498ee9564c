package durables

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/catchup"
	"github.com/relaymq/relay/internal/planned"
	"github.com/relaymq/relay/internal/provision"
	"github.com/relaymq/relay/internal/subject"
)

// PlannedAnew is what becomes of the durable of these routes when it is made on a stream without messages.
func (d *Durable) PlannedAnew(routes []string) planned.Durable {
	return planned.Durable{Stream: d.cfg.Stream, Durable: d.cfg.Durable, Routes: routes, Does: planned.Made, Start: d.cfg.Start().Text}
}

// Planned is what becomes of the durable of these routes, by what Look has found and said. It changes nothing.
func (d *Durable) Planned(ctx context.Context, routes []string, looked error) (p planned.Durable, err error) {
	p = d.PlannedAnew(routes)
	if looked != nil {
		p.Does, p.Start, p.Why = planned.Refused, "", []string{looked.Error()}
		return p, nil //nolint:nilerr // that the look failed is what the plan says
	}
	p.Again = d.Again
	if w := d.Waiting; d.Have == nil {
		p.Waits, p.Skipped = w.Chosen, w.All-min(w.All, w.Chosen)
		return p, nil
	}
	info := d.Have.CachedInfo()
	p.Does, p.Start, p.Waits, p.Outstanding = planned.Stays, "", info.NumPending, info.NumAckPending
	c := d.JudgeToUse(info.Config, d.On)
	if p.Why = c.Differs(); len(p.Why) > 0 {
		p.Does = planned.Changed
	}
	if !d.cfg.Adopt && info.Config.AckWait != c.Want.AckWait {
		p.Why = append(p.Why, "which a reload changes, and a start refuses without --adopt")
	}
	if p.CatchUp, err = d.passed(ctx, info); err != nil || d.cfg.Adopt {
		return p, err
	}
	m := provision.MarkOf(info.Config.Metadata)
	if m.Service != d.cfg.Service {
		p.Service = m.Service
		return p, nil
	}
	wanted := d.cfg.Patterns()
	for name, patterns := range m.Routes {
		for _, had := range patterns {
			if !slices.ContainsFunc(wanted, func(w Pattern) bool { return w.Route == name && subject.Covers(w.Subject, had) }) {
				p.Unwanted = append(p.Unwanted, fmt.Sprintf("%s (route %s)", had, name))
			}
		}
	}
	slices.Sort(p.Unwanted)
	return p, nil
}

// passed is what a durable that is widened has passed.
func (d *Durable) passed(ctx context.Context, info *jetstream.ConsumerInfo) (list []planned.CatchUp, err error) {
	ranges, err := d.cfg.CatchUp.WouldBegin(ctx, info, d.On.CachedInfo().State.LastSeq)
	if err != nil {
		return nil, err
	}
	for _, g := range ranges {
		to, err := d.inRange(ctx, g)
		if err != nil {
			return nil, err
		}
		all := g
		all.From, all.Since = 0, time.Time{}
		held, err := d.inRange(ctx, all)
		if err != nil {
			return nil, err
		}
		if held > 0 {
			list = append(list, planned.CatchUp{Route: d.of(g.Pattern).Route, Subjects: g.Pattern, Messages: to, Skipped: held - min(held, to)})
		}
	}
	return list, nil
}

// inRange is how many messages of a range the stream holds. On a work queue, which lets nobody else count, it is all on its subjects.
func (d *Durable) inRange(ctx context.Context, g catchup.Range) (uint64, error) {
	st := d.On.CachedInfo()
	if st.State.Msgs == 0 || g.Next() > st.State.LastSeq {
		return 0, nil
	}
	if isQueue(d.On) {
		return d.cfg.CatchUp.Holds(ctx, g)
	}
	several := func(patterns []string) (n uint64, err error) {
		for _, p := range patterns {
			c := d.Want
			c.FilterSubject, c.FilterSubjects = p, nil
			c.DeliverPolicy, c.OptStartSeq, c.OptStartTime = jetstream.DeliverByStartSequencePolicy, g.Next(), nil
			more, err := d.count(ctx, d.On, c)
			if err != nil {
				return 0, err
			}
			if !g.Since.IsZero() && more > 0 {
				c.DeliverPolicy, c.OptStartSeq, c.OptStartTime = jetstream.DeliverByStartTimePolicy, 0, &g.Since
				later, err := d.count(ctx, d.On, c)
				if err != nil {
					return 0, err
				}
				more = min(more, later)
			}
			n += more
		}
		return n, nil
	}
	n, err := several([]string{g.Pattern})
	if err != nil || n == 0 {
		return n, err
	}
	had, err := several(common([]string{g.Pattern}, g.Except)) // which the durable was for
	return n - min(n, had), err
}
