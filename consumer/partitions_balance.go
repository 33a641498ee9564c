package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/relaymq/relay/internal/partition"
)

// Partitions move between instances so that each has its share.

// dividing is how a generation's partitions are divided just now: how many each instance has that may have some.
type dividing struct {
	count int // of partitions
	own   string
	has   map[string]int // by session
}

func (r *Relay) dividing(g partition.Generation) dividing {
	d := dividing{count: g.Count, has: make(map[string]int)}
	f := r.membership.Now()
	if f == nil {
		return d
	}
	members, _ := f.Members()
	first := g.RouteOf(0)
	for _, m := range members {
		if m.Gone.IsZero() && !stateOf(m).Draining && stateOf(m).has(first) {
			d.has[m.Session] = 0
		}
	}
	for i := range g.Count {
		h, ok := f.Holder(resourceOf(g.Name(), g.DurableOf(i)))
		if _, stays := d.has[h.Session]; !ok || !stays {
			continue // nobody has it, or soon
		}
		if d.has[h.Session]++; h.Mine {
			d.own = h.Session
		}
	}
	return d
}

// fair is how many each instance is to have.
func (d dividing) fair() (least, most int) {
	n := max(len(d.has), 1)
	return d.count / n, (d.count + n - 1) / n
}

// over is how many this instance is to hand over: what it has too many, or one when others have too few and nobody has too many. All instances come
// to the same answer of who that is, but for moments after a change.
func (d dividing) over() int {
	least, most := d.fair()
	own := d.has[d.own]
	if own > most {
		return own - most
	}
	if own <= least {
		return 0
	}
	lack := 0
	free, before := d.count, 0
	for session, has := range d.has {
		lack += max(least-has, 0) - max(has-most, 0)
		free -= has
		if has == own && session < d.own {
			before++
		}
	}
	if before < lack-free { // what nobody has just now goes to those with too few first
		return 1
	}
	return 0
}

// reluctant is how long this instance leaves a partition to others that have fewer.
func (u *unit) reluctant() time.Duration {
	p := u.main.routes[0].cfg.part
	if p == nil {
		return 0
	}
	d := u.relay.dividing(p.Of)
	switch least, most := d.fair(); {
	case d.has[d.own] >= most:
		return reluctance
	case d.has[d.own] >= max(least, 1):
		return reluctance / 2
	}
	return 0
}

const reluctance = 300 * time.Millisecond

// balance hands over partitions that other instances are to have.
func (r *Relay) balance(ctx context.Context, d *divided) {
	f := r.membership.Now()
	if f == nil || r.isDraining() {
		return
	}
	g := d.newest().Generation
	now := r.dividing(g)
	over := now.over()
	if over == 0 {
		return
	}
	var units []*unit
	for _, rt := range r.partsOf(d.head.Name) {
		u := rt.unit.Load()
		if u == nil || rt.cfg.part.Of.Number != g.Number || len(units) >= over {
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
	r.log.Info("partitions are handed over to instances that have fewer", "route", d.head.Name, "count", len(units), "has", now.has[now.own])
	if err := r.restart(ctx, units...); err != nil && !errors.Is(err, ErrNotRunning) {
		r.log.Warn("partitions were not handed over; they stay", "route", d.head.Name, "error", err)
		for _, u := range units {
			f.Rest(u.resource(), time.Time{})
		}
	}
}
