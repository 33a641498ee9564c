package engine

import (
	"context"

	"github.com/relaymq/relay/consumer/internal/placing"
	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/consumer/internal/source"
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
		u := NewUnit(r, source.New(r.Sources, at.Stream, at.Durable))
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
