package engine

import (
	"context"
	"errors"
	"slices"

	"github.com/relaymq/relay/consumer/internal/division"
	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/consumer/internal/route"
)

// expanded is a change of routes with partitions, which is one of their parts.
type expanded struct {
	Change
	of      *division.Expanded[route.Spec]
	divided map[string]*divided // of routes that are to have partitions; nil: they have none any more
	were    map[string]*divided // of those that had them before
}

// expand puts the parts of routes with partitions into a change.
func (l *dividedRoutes) expand(ctx context.Context, c Change, how generations.Dividing) (expanded, error) {
	out := expanded{Change: c, divided: make(map[string]*divided), were: make(map[string]*divided)}
	routes, all := &l.engine.Routes, c.Limits
	if all == nil {
		all = l.engine.Limits()
	}
	of, err := division.Expand(division.Change[route.Spec]{Add: c.Add, Update: c.Update, Remove: c.Remove}, division.Config[route.Spec]{
		Name:    func(cfg route.Spec) string { return cfg.Name },
		Divides: func(cfg route.Spec) bool { return cfg.Partitions > 0 },
		Runs:    func(name string) bool { return routes.Named(name) != nil },
		Parts:   l.Parts,
		Divide: func(cfg route.Spec) ([]route.Spec, error) {
			err := cfg.Fault
			if err == nil {
				err = setupError(cfg.Name, cfg.CheckLimits(all))
			}
			if err != nil {
				return nil, err
			}
			d, err := l.divide(ctx, cfg, how)
			if err != nil {
				return nil, setupError(cfg.Name, err)
			}
			out.divided[cfg.Name] = d
			return routesOf(d), nil
		},
		Stays: func(part route.Spec) bool {
			rt := routes.Named(part.Name)
			return how == generations.TakeOthers && rt != nil && rt.Spec.Part.Stays(part.Part)
		},
		Fault:  func(name, text string) error { return &route.SetupError{Route: name, Err: errors.New(text)} },
		Called: routes.calledName,
	})
	out.of, out.Add, out.Update, out.Remove = of, of.Add, of.Update, of.Remove
	for _, name := range of.Undivided {
		out.divided[name], out.were[name] = nil, l.Get(name)
	}
	return out, err
}

// made notes the routes of a change that was made, and ends handlers that nobody has any more.
func (l *dividedRoutes) made(c expanded) {
	r := l.engine
	for name, d := range c.divided {
		was := l.Get(name)
		l.Set(name, d)
		if was == nil {
			continue
		}
		if d != nil {
			d.Follow(was.Route)
		} else {
			r.Log.Warn("the route no longer has partitions here; their stream stays, and the server keeps copying to it (relay orphans ls shows what is left there)",
				"route", name, "stream", was.Newest().Name())
		}
		r.Membership.Renew() // tells the others
		formers := r.Routes.called(name)
		r.Running.Go(func() {
			for _, rt := range formers {
				rt.WaitFormers()
			}
			ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Phases.Ends), r.Phases.DrainTime())
			defer cancel()
			was.EndBefore(ctx, d)
		})
	}
}

// outward says of a change what became of the routes, and not of their parts.
func (c Changed) outward(given Change, is expanded) Changed {
	if len(is.divided) == 0 {
		return c
	}
	c.Added, c.Updated = namesOf(given.Add), namesOf(given.Update)
	c.Live, c.Restarted = is.of.Called(c.Live), is.of.Called(c.Restarted)
	c.Live = slices.DeleteFunc(c.Live, func(name string) bool { return slices.Contains(c.Restarted, name) || !slices.Contains(c.Updated, name) })
	waiting := make(map[string]string)
	for name, why := range c.Waiting {
		waiting[is.of.Called([]string{name})[0]] = why
	}
	c.Waiting = waiting
	c.Removed = slices.DeleteFunc(c.Removed, func(gone Removed) bool { return !slices.Contains(given.Remove, gone.Route) })
	for _, name := range given.Remove {
		if was := is.were[name]; was != nil {
			c.Removed = append(c.Removed, Removed{Route: name, Stream: was.Newest().Stream, Durable: was.Head.Durable, Copies: was.Newest().Name()})
		}
	}
	return c
}
