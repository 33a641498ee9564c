package consumer

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
func tallyConfig(r *Relay) tally.Config {
	return tally.Config{
		Conn: r.nc, JS: r.js, API: r.api, Looks: r.streams, Service: r.cfg.Service, Instance: r.cfg.Instance, Retry: r.stores.RetryStream(), Upkeep: r.upkeep,
		Tallies: func() (list []*tally.Tally) {
			for _, u := range r.running.Units() {
				list = append(list, u.tally)
			}
			return list
		},
	}
}

// tallyOf is what is counted of the unit.
func (u *unit) tallyOf() tally.Of {
	of := tally.Of{Log: u.main.Log(), Stream: u.main.Stream, Durable: u.main.Name, Open: func() (list []*tally.Source) {
		for _, s := range u.Open() {
			list = append(list, s.Tally)
		}
		return list
	}}
	for _, rt := range u.routes {
		of.Routes = append(of.Routes, tally.Route{Name: rt.cfg.Name, Count: &rt.count.tally, Ended: rt.count.ends, Hand: func() int {
			messages, _ := rt.memory.Ledger.Held()
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
	case errors.Is(o.Err, ErrForgotten):
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
func lastTallies(units []*unit, patience time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var writing sync.WaitGroup
	for _, u := range units {
		writing.Go(func() { _ = u.tally.Finish(ctx) })
		writing.Go(func() { u.main.NoteLastFloor(ctx) })
	}
	writing.Wait()
}
