package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/relaymq/relay/consumer/internal/caller"
	"github.com/relaymq/relay/consumer/internal/tally"
	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/supervise"
)

// tallyConfig is how counts are written to the ledgers.
func tallyConfig(r *Engine) tally.Config {
	return tally.Config{
		Conn: r.Conn, JS: r.JS, API: r.API, Looks: r.streams, Service: r.Config.Service, Instance: r.Config.Instance, Retry: r.Stores.RetryStream(), Upkeep: r.Upkeep,
		Tallies: func() (list []*tally.Tally) {
			for _, u := range r.Running.Units() {
				list = append(list, u.Tally)
			}
			return list
		},
	}
}

// tallyOf is what is counted of the unit.
func (u *Unit) tallyOf() tally.Of {
	of := tally.Of{Log: u.Main.Log(), Stream: u.Main.Stream, Durable: u.Main.Name, Open: func() (list []*tally.Source) {
		for _, s := range u.Open() {
			list = append(list, s.Tally)
		}
		return list
	}}
	for _, rt := range u.routes {
		of.Routes = append(of.Routes, tally.Route{Name: rt.Spec.Name, Count: &rt.Count.tally, Ended: rt.Count.ends, Hand: func() int {
			messages, _ := rt.Memory.Ledger.Held()
			return messages
		}})
	}
	return of
}

// ended counts what becomes of a message for good, but for those that are done or dead, which others count.
func (c *counters) ended(o supervise.Outcome) {
	switch {
	case o.Action != supervise.DropMessage:
	case o.Err == caller.ErrExpired:
		c.tally.Ended(tally.Expired)
	case errors.Is(o.Err, caller.ErrForgotten):
		c.tally.Ended(tally.Forgotten)
	default:
		c.tally.Ended(tally.Dropped)
	}
}

// ends are the messages that ended, but for those of ended.
func (c *counters) ends() audit.Counts {
	return audit.Counts{Done: c.Settled[supervise.AckMessage].Load(), Fallback: c.Fallback.Load(), Dead: c.Stored()}
}

// lastTallies writes what the units counted, and how far their durables are, when they are through.
func lastTallies(units []*Unit, patience time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var writing sync.WaitGroup
	for _, u := range units {
		writing.Go(func() { _ = u.Tally.Finish(ctx) })
		writing.Go(func() { u.Main.NoteLastFloor(ctx) })
	}
	writing.Wait()
}
