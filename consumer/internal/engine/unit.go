package engine

import (
	"context"
	"sync"

	"github.com/relaymq/relay/consumer/internal/reload"
	"github.com/relaymq/relay/consumer/internal/roster"
	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/consumer/internal/tally"
	"github.com/relaymq/relay/consumer/internal/tenure"
)

// Unit is what is set up and ended together: the durable of one or more routes, and those of their replays, which are of no use
// without it. Units come and go while others run.
type Unit struct {
	engine *Engine
	routes []*route.Route
	Main   *source.Source
	dues   []*source.Source

	roster.Member[*source.Source] // which of these are open, and whether it ends

	opening, work, slow             context.Context // it may be opened; it runs; its slow paths run
	stopOpening, stopWork, stopSlow context.CancelFunc
	living                          sync.WaitGroup
	tried                           chan struct{} // closed when its durable was opened, or could not be
	once                            sync.Once
	Tally                           *tally.Tally // set by prepare

	tenure      *tenure.Tenure // set by prepare; of use to a leased one only
	noPulls     sync.Once
	drained     sync.Once
	interrupted int // of the drain
}

// NewUnit is a unit without routes, whose main source this is.
func NewUnit(r *Engine, main *source.Source) *Unit {
	return &Unit{engine: r, Main: main, tried: make(chan struct{})}
}

// prepare gives the unit what it needs to run. It comes before anybody knows of its routes.
func (u *Unit) prepare() {
	r := u.engine
	u.opening, u.stopOpening = context.WithCancel(r.Phases.Ends)
	u.work, u.stopWork = context.WithCancel(r.Phases.Work)
	u.slow, u.stopSlow = context.WithCancel(r.Phases.Slow)
	u.tenure = tenure.New(u.work, u.tenureConfig())
	at := &route.Place{Owner: u, Main: u.Main, Tenure: u.tenure}
	for _, rt := range u.routes {
		rt.Path.Work = u.slow
		rt.Place.Store(at)
	}
	for _, s := range u.sources() {
		s.Join(u)
	}
	u.Tally = r.tallies.New(u.tallyOf())
}

// begin runs a unit that was prepared, unless relay drains.
func (u *Unit) begin() {
	begun := u.engine.Running.Add(u, func() {
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
func (u *Unit) Tried(s *source.Source) {
	if s == u.Main {
		u.once.Do(func() { close(u.tried) })
	}
}

// named is the unit by names alone.
func (u *Unit) named() reload.Unit {
	return reload.Unit{Place: u.Main.String(), Routes: u.Main.Names()}
}

// Tenure is for a unit that one instance at a time works on.
func (u *Unit) Tenure() *tenure.Tenure { return u.tenure }

func (u *Unit) sources() []*source.Source { return append([]*source.Source{u.Main}, u.dues...) }

// The end of a unit that is closing, in this order: nothing is pulled any more and what was not started goes back (stopPulling);
// handlers end (drain); settlements are confirmed (confirm); everything of it has ended (end).

func (u *Unit) stopPulling() { u.noPulls.Do(u.endPulls) }

func (u *Unit) endPulls() {
	u.stopOpening()
	var pulls sync.WaitGroup
	for _, s := range u.Open() {
		pulls.Go(s.Pulls.Stop)
	}
	for _, rt := range u.routes {
		rt.Drain()
	}
	pulls.Wait()
}

// drain lets handlers finish until ctx is done. It returns how many were interrupted.
func (u *Unit) drain(ctx context.Context) (interrupted int) {
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

func (u *Unit) endHandlers(ctx context.Context) (interrupted int) {
	stop := context.AfterFunc(ctx, u.stopSlow)
	defer stop()
	counts := make([]int, len(u.routes))
	var routes sync.WaitGroup
	for i, rt := range u.routes {
		routes.Go(func() {
			counts[i] = rt.Close(ctx)
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

func (u *Unit) confirm(ctx context.Context) {
	for _, s := range u.Open() {
		_ = s.Session.Wait(ctx)
	}
}

// end waits until nothing of the unit runs, and takes it out.
func (u *Unit) end() {
	u.stopSlow()
	u.stopWork()
	u.tenure.Close()
	u.living.Wait()
	r := u.engine
	for _, rt := range u.routes {
		r.Solo.Remove(rt.Group)
	}
	r.Running.Remove(u)
}

// close ends a unit while others run. It returns how many handlers were interrupted.
func (u *Unit) close() int {
	ctx, cancel := context.WithTimeout(u.work, u.engine.Phases.DrainTime())
	defer cancel()
	u.stopPulling()
	interrupted := u.drain(ctx)
	// Only this route knows the messages that it put aside. Its successor gets them at once, and may put them aside again.
	for _, rt := range u.routes {
		rt.Group.CallBackAll()
	}
	// Messages whose give-back is not confirmed come again only after AckWait.
	confirm, cancelConfirm := context.WithTimeout(u.work, askTimeout)
	defer cancelConfirm()
	u.confirm(confirm)
	lastTallies([]*Unit{u}, tally.Patience)
	u.end()
	return interrupted
}

// live runs the sources of the unit, each when it is open, until its work is done. None is opened after its opening is done.
func (u *Unit) live() {
	if !u.Main.Await(u.opening) {
		return
	}
	u.Tally.Begin(u.work)
	var running sync.WaitGroup
	for _, due := range u.dues {
		running.Go(func() {
			if due.Await(u.opening) {
				due.KeepOpen(u.work)
			}
		})
	}
	u.Main.KeepOpen(u.work)
	running.Wait()
}

// unitOf is that of a route; nil until a stream for the route is found.
func unitOf(rt *route.Route) *Unit {
	if p := rt.Place.Load(); p != nil {
		return p.Owner.(*Unit)
	}
	return nil
}
