package engine

import (
	"context"
	"slices"
	"time"

	"github.com/relaymq/relay/consumer/internal/placing"
	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/internal/transient"
)

func allPlaced(routes []*route.Route) (list []placing.Route) {
	for _, rt := range routes {
		list = append(list, rt.Spec.Placed())
	}
	return list
}

// unplaced is a route of which no stream holds the subjects.
type unplaced struct {
	rt  *route.Route
	err error
}

// faultsOf are the errors of routes that have to have a stream.
func faultsOf(list []unplaced) (faults []error) {
	for _, u := range list {
		faults = append(faults, setupError(u.rt.Spec.Name, u.err))
	}
	return faults
}

// unitsOf makes the units of routes: those that share a durable are in one.
func unitsOf(ctx context.Context, r *Engine, routes []*route.Route, try placing.Trying) (units []*Unit, without []unplaced, faults []error) {
	places, none, wrong := r.placing.Place(ctx, allPlaced(routes), try)
	for _, at := range places {
		u := NewUnit(r, source.New(r.Durables, at.Stream, at.Durable))
		for _, i := range at.Routes {
			rt := routes[i]
			u.routes = append(u.routes, rt)
			u.Main.Add(&rt.Source, rt.Spec.Subjects...)
			if due := dueSourceOf(r, rt, at.Stream); due != nil {
				u.dues = append(u.dues, due)
			}
		}
		units = append(units, u)
	}
	for _, u := range none {
		without = append(without, unplaced{routes[u.Route], u.Err})
	}
	if err := setupError("", setupErrors(wrong)...); err != nil {
		faults = []error{err}
	}
	return units, without, faults
}

func setupErrors(list []placing.Fault) (faults []error) {
	for _, f := range list {
		faults = append(faults, setupError(f.Route, f.Err))
	}
	return faults
}

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
