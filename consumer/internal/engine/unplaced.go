package engine

import (
	"context"
	"slices"
	"time"

	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/internal/transient"
)

// A route of which no stream holds the subjects has no durable, and so no unit. It is stopped and says so, while the others run. When somebody has made the
// stream, the route begins by a change.

// place has routes begin that had no stream at the start, until ctx is done.
func (r *serving) place(ctx context.Context) {
	list := r.unplaced
	for p := new(transient.Patience); len(list) > 0; {
		transient.Pause(ctx, p.Next(source.TryAgain))
		if ctx.Err() != nil {
			return
		}
		list = slices.DeleteFunc(list, func(u unplaced) bool {
			if !slices.Contains(r.Routes.All(), u.rt) {
				return true // a reload changed or removed it
			}
			err := r.attempt(ctx, func(ctx context.Context) error {
				_, err := r.placing.StreamOf(ctx, u.rt.Spec.Placed())
				return err
			})
			if err == nil {
				u.rt.Log.Info("the route has a stream now, and starts")
				_, err = r.Change(ctx, Change{Update: []route.Spec{*u.rt.Now()}, DeliverAgain: true, anew: true})
			}
			if err != nil && ctx.Err() == nil {
				u.note(err)
			}
			return err == nil
		})
	}
}

func (u unplaced) note(err error) {
	u.rt.Standstill.Troubles.Note("its stream", err, time.Now())
}
