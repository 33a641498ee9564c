package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/relaymq/relay/internal/partition"
)

// Partitions move between instances so that each has its share.

// fairPart is how many partitions each instance is to have at most, and how many this one has.
func (r *Relay) fairPart(g partition.Generation) (most, has int) {
	f := r.grid.now()
	if f == nil {
		return g.Count, 0
	}
	members, _ := f.Members()
	first, n := g.RouteOf(0), 0
	for _, m := range members {
		if m.Gone.IsZero() && !stateOf(m).Draining && stateOf(m).has(first) {
			n++
		}
	}
	for i := range g.Count {
		if h, ok := f.Holder(resourceOf(g.Name(), g.DurableOf(i))); ok && h.Mine {
			has++
		}
	}
	n = max(n, 1)
	return (g.Count + n - 1) / n, has
}

// reluctant is how long this instance leaves a partition to others that have fewer.
func (u *unit) reluctant() time.Duration {
	p := u.main.routes[0].cfg.part
	if p == nil {
		return 0
	}
	if most, has := u.relay.fairPart(p.Of); has >= most {
		return reluctance
	}
	return 0
}

const reluctance = 300 * time.Millisecond

// balance hands over partitions that other instances are to have.
func (r *Relay) balance(ctx context.Context, d *divided) {
	f := r.grid.now()
	if f == nil || r.isDraining() {
		return
	}
	g := d.newest().Generation
	most, has := r.fairPart(g)
	if has <= most {
		return
	}
	var units []*unit
	for _, rt := range r.partsOf(d.head.Name) {
		u := rt.unit.Load()
		if u == nil || rt.cfg.part.Of.Number != g.Number || len(units) >= has-most {
			continue
		}
		if l := u.tenure.lease.Load(); l != nil && l.Valid() && len(rt.holder().Standbys) > 0 {
			f.Rest(u.resource(), time.Now().Add(r.drainTime()+2*r.cfg.Fleet.lease()))
			units = append(units, u)
		}
	}
	if len(units) == 0 {
		return
	}
	r.log.Info("partitions are handed over to instances that have fewer", "route", d.head.Name, "count", len(units), "has", has, "fair", most)
	if err := r.restart(ctx, units...); err != nil && !errors.Is(err, ErrNotRunning) {
		r.log.Warn("partitions were not handed over; they stay", "route", d.head.Name, "error", err)
		for _, u := range units {
			f.Rest(u.resource(), time.Time{})
		}
	}
}
