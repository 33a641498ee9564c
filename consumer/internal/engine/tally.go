package engine

import (
	"context"
	"sync"
	"time"

	"github.com/relaymq/relay/consumer/internal/tally"
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
		of.Routes = append(of.Routes, tally.Route{Name: rt.Spec.Name, Count: &rt.Count.Tally, Ended: rt.Count.Ends, Hand: func() int {
			messages, _ := rt.Memory.InHand.Held()
			return messages
		}})
	}
	return of
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
