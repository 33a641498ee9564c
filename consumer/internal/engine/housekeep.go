package engine

import (
	"context"
)

// sweepRecords removes the records of settled messages of the durables that are this instance's to sweep.
func (r *running) SweepRecords(ctx context.Context) {
	for _, s := range r.Sources() {
		if s.Sweeps(ctx) {
			s.Sweep(ctx)
		}
	}
}
