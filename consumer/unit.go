package consumer

import (
	"context"
	"sync"

	"github.com/relaymq/relay/consumer/internal/reload"
	"github.com/relaymq/relay/consumer/internal/roster"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/consumer/internal/tally"
	"github.com/relaymq/relay/consumer/internal/tenure"
)

// unit is what is set up and ended together: the durable of one or more routes, and those of their replays, which are of no use
// without it. Units come and go while others run.
type unit struct {
	relay  *Relay
	routes []*route
	main   *source.Source
	dues   []*source.Source

	roster.Member[*source.Source] // which of these are open, and whether it ends

	opening, work, slow             context.Context // it may be opened; it runs; its slow paths run
	stopOpening, stopWork, stopSlow context.CancelFunc
	living                          sync.WaitGroup
	tried                           chan struct{} // closed when its durable was opened, or could not be
	once                            sync.Once
	tally                           *tally.Tally // set by prepare

	tenure      *tenure.Tenure // set by prepare; of use to a leased one only
	noPulls     sync.Once
	drained     sync.Once
	interrupted int // of the drain
}

func newUnit(r *Relay, main *source.Source) *unit {
	return &unit{relay: r, main: main, tried: make(chan struct{})}
}

// prepare gives the unit what it needs to run. It comes before anybody knows of its routes.
func (u *unit) prepare() {
	r := u.relay
	u.opening, u.stopOpening = context.WithCancel(r.phases.ends)
	u.work, u.stopWork = context.WithCancel(r.phases.work)
	u.slow, u.stopSlow = context.WithCancel(r.phases.slow)
	u.tenure = tenure.New(u.work, u.tenureConfig())
	for _, rt := range u.routes {
		rt.path.Work = u.slow
		rt.unit.Store(u)
	}
	for _, s := range u.sources() {
		s.Join(u)
	}
	u.tally = r.tallies.New(u.tallyOf())
}

// begin runs a unit that was prepared, unless relay drains.
func (u *unit) begin() {
	begun := u.relay.running.Add(u, func() {
		if u.leased() {
			u.living.Go(u.lead)
		} else {
			u.living.Go(u.live)
		}
	})
	if !begun || u.leased() { // one that is leased was looked at, and is opened when this instance has the claim
		u.once.Do(func() { close(u.tried) })
	}
}

// Tried notes that the main source was opened, or could not be, for whoever waits for that.
func (u *unit) Tried(s *source.Source) {
	if s == u.main {
		u.once.Do(func() { close(u.tried) })
	}
}

// named is the unit by names alone.
func (u *unit) named() reload.Unit {
	return reload.Unit{Place: u.main.String(), Routes: u.main.Names()}
}

// Tenure is for a unit that one instance at a time works on.
func (u *unit) Tenure() *tenure.Tenure { return u.tenure }

func (u *unit) sources() []*source.Source { return append([]*source.Source{u.main}, u.dues...) }

// The end of a unit that is closing, in this order: nothing is pulled any more and what was not started goes back (stopPulling);
// handlers end (drain); settlements are confirmed (confirm); everything of it has ended (end).

func (u *unit) stopPulling() { u.noPulls.Do(u.endPulls) }

func (u *unit) endPulls() {
	u.stopOpening()
	var pulls sync.WaitGroup
	for _, s := range u.Open() {
		pulls.Go(s.Pulls.Stop)
	}
	for _, rt := range u.routes {
		rt.group.Drain()
		rt.callers.gates.Close()
	}
	pulls.Wait()
}

// drain lets handlers finish until ctx is done. It returns how many were interrupted.
func (u *unit) drain(ctx context.Context) (interrupted int) {
	u.drained.Do(func() {
		if !u.leased() {
			u.interrupted = u.endHandlers(ctx)
			return
		}
		u.tenure.Drain(ctx, func(ctx context.Context) { u.interrupted = u.endHandlers(ctx) }, func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			u.confirm(ctx)
		})
	})
	return u.interrupted
}

func (u *unit) endHandlers(ctx context.Context) (interrupted int) {
	stop := context.AfterFunc(ctx, u.stopSlow)
	defer stop()
	counts := make([]int, len(u.routes))
	var routes sync.WaitGroup
	for i, rt := range u.routes {
		routes.Go(func() {
			rt.settings.end()
			counts[i] = rt.group.Close(ctx)
			rt.settings.equipment.Load().end(ctx, rt)
			rt.settings.formers.Wait()
			rt.looks.Wait() // before those that it submits to
			rt.path.End()
			rt.callers.holding.Wait() // after whatever settles
		})
	}
	routes.Wait()
	for _, s := range u.Open() {
		s.Wait()
	}
	for _, n := range counts {
		interrupted += n
	}
	return interrupted
}

func (u *unit) confirm(ctx context.Context) {
	for _, s := range u.Open() {
		_ = s.Session.Wait(ctx)
	}
}

// end waits until nothing of the unit runs, and takes it out.
func (u *unit) end() {
	u.stopSlow()
	u.stopWork()
	u.tenure.Close()
	u.living.Wait()
	r := u.relay
	for _, rt := range u.routes {
		r.solo.Remove(rt.group)
	}
	r.running.Remove(u)
}

// close ends a unit while others run. It returns how many handlers were interrupted.
func (u *unit) close() int {
	ctx, cancel := context.WithTimeout(u.work, u.relay.phases.drainTime())
	defer cancel()
	u.stopPulling()
	interrupted := u.drain(ctx)
	// Only this route knows the messages that it put aside. Its successor gets them at once, and may put them aside again.
	for _, rt := range u.routes {
		rt.group.CallBackAll()
	}
	// Messages whose give-back is not confirmed come again only after AckWait.
	confirm, cancelConfirm := context.WithTimeout(u.work, askTimeout)
	defer cancelConfirm()
	u.confirm(confirm)
	lastTallies([]*unit{u}, tally.Patience)
	u.end()
	return interrupted
}

// live runs the sources of the unit, each when it is open, until its work is done. None is opened after its opening is done.
func (u *unit) live() {
	if !u.main.Await(u.opening) {
		return
	}
	u.tally.Begin(u.work)
	var running sync.WaitGroup
	for _, due := range u.dues {
		running.Go(func() {
			if due.Await(u.opening) {
				due.KeepOpen(u.work)
			}
		})
	}
	u.main.KeepOpen(u.work)
	running.Wait()
}
