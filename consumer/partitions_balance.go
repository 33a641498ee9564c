package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/consumer/internal/peers"
)

// Partitions move between instances so that each has its share.

// reluctant is how long this instance leaves a partition to others that have fewer.
func (u *unit) reluctant() time.Duration {
	p := u.main.routes[0].cfg.part
	if p == nil {
		return 0
	}
	d := peers.Divide(u.relay.membership.Now(), p.Of)
	switch least, most := d.Fair(); {
	case d.Own() >= most:
		return reluctance
	case d.Own() >= max(least, 1):
		return reluctance / 2
	}
	return 0
}

const reluctance = 300 * time.Millisecond

// balance hands over partitions that other instances are to have.
func (r *Relay) balance(ctx context.Context, d *generations.Route) {
	f := r.membership.Now()
	if f == nil || r.running.isDraining() {
		return
	}
	g := d.Newest().Generation
	now := peers.Divide(f, g)
	over := now.Over()
	if over == 0 {
		return
	}
	var units []*unit
	for _, rt := range r.routes.called(d.Name) {
		u := rt.unit.Load()
		if u == nil || rt.cfg.part.Of.Number != g.Number || len(units) >= over {
			continue
		}
		if u.tenure.Has() && len(rt.holder().Standbys) > 0 {
			u.tenure.Leave()
			units = append(units, u)
		}
	}
	if len(units) == 0 {
		return
	}
	r.log.Info("handing partitions over to instances that have fewer", "route", d.Name, "count", len(units), "has", now.Own())
	if err := r.restart(ctx, units...); err != nil && !errors.Is(err, ErrNotRunning) {
		r.log.Warn("partitions were not handed over; this instance keeps them", "route", d.Name, "error", err)
		for _, u := range units {
			u.tenure.Keep()
		}
	}
}
