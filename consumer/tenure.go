package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/consumer/internal/peers"
	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/away"
	"github.com/relaymq/relay/internal/fleet"
)

// A unit whose routes have instances: one is worked on by one instance at a time, which has the claim of its durable. The others stand by: their
// durables are made and looked at, and nothing is pulled. A unit has the claim once: when it lost it, or handed it over, it ends, and a fresh one
// takes its place and stands by.
//
// Whoever takes over throws the pulls of the holder before out (the pin of the durable), and gives back in its name what it had in hand: the
// server goes by the sequence of a message, whoever sends the NAK.

// tenure is the part of a unit that one instance at a time works on.
type tenure struct {
	lease   atomic.Pointer[fleet.Lease] // nil: it stands by
	over    context.Context             // done when the lease is lost
	lose    context.CancelFunc
	settled chan struct{} // closed when what was in hand is settled
}

// leased tells whether one instance at a time works on the unit.
func (u *unit) leased() bool { return u.main.leased() }

// resource is what is claimed of the fleet. The name of a stream may hold what a key of a bucket may not.
func (u *unit) resource() string { return peers.Resource(u.main.stream, u.main.durable) }

// mayStart tells whether handlers may be started for messages of the source: always, or while this instance certainly has the claim.
func (s *source) mayStart() bool {
	if !s.leased() {
		return true
	}
	l := s.unit.tenure.lease.Load()
	return l != nil && l.Valid()
}

// fence is the number of this holder; 0: the route has none.
func (s *source) fence() uint64 {
	if s.leased() {
		if l := s.unit.tenure.lease.Load(); l != nil {
			return l.Fence
		}
	}
	return 0
}

// lead stands by until this instance has the claim, and works until it is over.
func (u *unit) lead() {
	f := u.relay.membership.Await(u.opening)
	if f == nil {
		return
	}
	f.Hold(u.opening, u.resource(), u.reluctant, func(_ context.Context, l fleet.Lease) { u.hold(l) })
	if u.tenure.lease.Load() != nil {
		u.relay.standByAgain(u)
	}
}

// hold works on the unit, and returns when others may.
func (u *unit) hold(l fleet.Lease) {
	t := &u.tenure
	t.lease.Store(&l)
	u.tellHolder(l)
	if p := u.main.routes[0].cfg.part; p != nil && p.Number == 0 {
		u.relay.generations.Soon() // this instance looks after the streams now
	}
	u.living.Go(func() { u.relay.live(u.work, u.opening, u) })
	u.living.Go(func() {
		select {
		case <-l.Lost():
			u.fenceOff()
		case <-t.settled:
		}
	})
	select {
	case <-t.over.Done():
	case <-u.opening.Done(): // whoever ends the unit drains it
		<-t.settled
		return
	}
	ctx, cancel := context.WithTimeout(u.work, u.relay.drainTime())
	defer cancel()
	u.stopPulling()
	u.drain(ctx)
}

// fenceOff ends the work on a unit whose claim is lost: running handlers are cancelled, which spends no attempt, and nothing is settled any
// more but what is done.
func (u *unit) fenceOff() {
	for _, s := range u.open() {
		s.session.Fence()
	}
	for _, rt := range u.main.routes {
		rt.log.Warn("this instance lost the route: its lease was not renewed in time; running handlers are cancelled")
	}
	u.tenure.lose()
}

// finish is the end of a drain: the next holder is not to start what is done here.
func (u *unit) finish() {
	if !u.leased() {
		return
	}
	ctx, cancel := context.WithTimeout(u.tenure.over, settleTimeout)
	defer cancel()
	u.confirm(ctx)
	close(u.tenure.settled)
}

// standByAgain replaces a unit that had the claim by a fresh one. It tries for as long as relay runs and nobody else ends the unit.
func (r *Relay) standByAgain(u *unit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining || u.closing {
		return
	}
	r.changes.Go(func() {
		var look away.Spans
		for p := new(away.Patience); ; {
			ctx, cancel := context.WithTimeout(r.ends, look.Next(lookFor, setupTimeout))
			err := r.restart(ctx, u)
			cancel()
			if err == nil || errors.Is(err, ErrNotRunning) {
				return
			}
			for _, rt := range u.main.routes {
				rt.troubles.Note("standing by for "+u.main.String(), err, time.Now())
			}
			away.Pause(r.ends, p.Next(restBefore(&look)))
		}
	})
}

// restart ends units, unless they are ending, and begins them anew as they are.
func (r *Relay) restart(ctx context.Context, units ...*unit) error {
	leave, err := r.enterChange(ctx)
	if err != nil {
		return err
	}
	defer leave()
	c := Change{anew: true}
	for _, u := range units {
		r.mu.Lock()
		there := slices.Contains(r.units, u) && !u.closing
		r.mu.Unlock()
		if !there {
			continue
		}
		for _, rt := range u.main.routes {
			c.Update = append(c.Update, *rt.now())
		}
	}
	if len(c.Update) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	p, err := r.plot(ctx, c)
	if err != nil {
		return err
	}
	if !r.commit(p) {
		return ErrNotRunning
	}
	p.run()
	return nil
}

// tellHolder says that this instance has the claim.
func (u *unit) tellHolder(l fleet.Lease) {
	for _, rt := range u.main.routes {
		rt.log.Info("this instance now has the route; the others stand by", "fence", l.Fence)
		rt.relay.events.Report(event.RouteHolder, event.Data{
			Route: rt.name(), Text: fmt.Sprintf("instance %s has route %s now (fence %d)", rt.relay.cfg.Instance, rt.called(), l.Fence),
		})
	}
}
