package engine

import (
	"context"
	"time"
)

// SweepRecords removes the records of settled messages of the durables that are this instance's to sweep.
func (r *running) SweepRecords(ctx context.Context) {
	for _, s := range r.Sources() {
		if s.Sweeps(ctx) {
			s.Sweep(ctx)
		}
	}
}

// floorEvery is how old the noted ack floor of a durable may be while relay runs; see package durables.
const floorEvery = time.Minute

// watchFloors notes how far the durables are.
func (r *running) watchFloors(ctx context.Context) {
	tick := time.NewTicker(floorEvery)
	defer tick.Stop()
	for {
		for _, s := range r.Sources() {
			if !s.Due && s.Routes()[0].Part == nil {
				s.NoteFloor(ctx)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
