package consumer

import (
	"context"
)

// sweepRecords removes the records of settled messages of the durables that are this instance's to sweep.
func (r *running) sweepRecords(ctx context.Context) {
	for _, s := range r.Sources() {
		if s.Sweeps(ctx) {
			s.Sweep(ctx)
		}
	}
}
