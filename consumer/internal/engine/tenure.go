package engine

import (
	"context"
	"errors"
	"time"

	"github.com/relaymq/relay/consumer/internal/peers"
	"github.com/relaymq/relay/consumer/internal/roster"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/consumer/internal/tenure"
	"github.com/relaymq/relay/internal/transient"
)

// A unit whose routes have instances: one works on it at a time, and the others stand by; see package tenure. When a unit lost the claim, or handed it over,
// it ends, and a fresh one takes its place and stands by.
//
// Whoever takes over throws the pulls of the holder before out (the pin of the durable), and gives back in its name what it had in hand: the
// server goes by the sequence of a message, whoever sends the NAK.

// leased tells whether one instance at a time works on the unit.
func (u *Unit) leased() bool { return u.Main.Leased() }

// tenureConfig is what is done while this instance has the claim.
func (u *Unit) tenureConfig() tenure.Config {
	r := u.engine
	return tenure.Config{
		Membership: r.Fleet, Instance: r.Config.Instance, Resource: peers.Resource(u.Main.Stream, u.Main.Name), Lease: r.Config.Lease,
		DrainTime: r.Phases.DrainTime, Reluctant: u.reluctant,
		Begin: u.hold, Fence: u.fenceOff, End: func() {
			ctx, cancel := context.WithTimeout(u.work, r.Phases.DrainTime())
			defer cancel()
			u.stopPulling()
			u.drain(ctx)
		},
	}
}

// lead stands by until this instance has the claim, and works until it is over.
func (u *Unit) lead() {
	if u.tenure.Run(u.opening) {
		u.standByAgain()
	}
}

// hold begins the work on the unit.
func (u *Unit) hold(fence uint64) {
	for _, rt := range u.routes {
		rt.Log.Info("this instance now has the route; the others stand by", "fence", fence)
		rt.Home.Reports.Holder(rt.Name(), rt.Spec.InWords(), rt.Home.Config.Instance, fence)
	}
	if p := u.routes[0].Spec.Part; p != nil && p.Number == 0 {
		u.engine.generations.Soon() // this instance looks after the streams now
	}
	u.living.Go(u.live)
}

// fenceOff ends the work on a unit whose claim is lost: running handlers are cancelled, which spends no attempt, and nothing is settled any
// more but what is done.
func (u *Unit) fenceOff() {
	for _, s := range u.Open() {
		s.Session.Fence()
	}
	for _, rt := range u.routes {
		rt.Log.Warn("this instance lost the route: its lease was not renewed in time; running handlers are cancelled")
	}
}

// standByAgain replaces a unit that had the claim by a fresh one. It tries for as long as relay runs and nobody else ends the unit.
func (u *Unit) standByAgain() {
	r := u.engine
	r.Running.Change(u, func() {
		var look transient.Spans
		for p := new(transient.Patience); ; {
			ctx, cancel := context.WithTimeout(r.Phases.Ends, look.Next(source.LookFor, source.SetupTimeout))
			err := restart(ctx, r, u)
			cancel()
			if err == nil || errors.Is(err, roster.ErrNotRunning) {
				return
			}
			for _, rt := range u.routes {
				rt.Standstill.Troubles.Note("standing by for "+u.Main.String(), err, time.Now())
			}
			transient.Pause(r.Phases.Ends, p.Next(source.RestBefore(&look)))
		}
	})
}

// restart ends units, unless they are ending, and begins them anew as they are.
func restart(ctx context.Context, r *Engine, units ...*Unit) error {
	leave, err := r.enterChange(ctx)
	if err != nil {
		return err
	}
	defer leave()
	c := Change{anew: true}
	for _, u := range units {
		if !r.Running.Has(u) {
			continue
		}
		for _, rt := range u.routes {
			c.Update = append(c.Update, *rt.Now())
		}
	}
	if len(c.Update) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, source.SetupTimeout)
	defer cancel()
	p, err := c.check(ctx, r)
	if err != nil {
		return err
	}
	return p.make()
}
