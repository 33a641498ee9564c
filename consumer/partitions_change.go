package consumer

import (
	"context"
	"errors"
	"slices"
)

// A change of routes with partitions is a change of their parts.

// expanded is a change with the parts of routes in place of those.
type expanded struct {
	Change
	divided map[string]*divided // of routes that are to have partitions; nil: they have none any more
	were    map[string]*divided // of those that had them before
}

// expand puts the parts of routes with partitions into a change.
func (r *Relay) expand(ctx context.Context, c Change, how dividing) (expanded, error) {
	out := expanded{Change{Limits: c.Limits, DeliverAgain: c.DeliverAgain, anew: c.anew}, map[string]*divided{}, map[string]*divided{}}
	limits := c.Limits
	if limits == nil {
		limits = r.Limits()
	}
	var faults []error
	parts := func(cfg Route, was *divided) []Route {
		cfg, err := checked(cfg)
		if err == nil {
			err = setupError(cfg.Name, cfg.CheckLimits(limits))
		}
		var list []Route
		var d *divided
		if err == nil {
			err = setupError(cfg.Name, r.attempt(ctx, func(ctx context.Context) (err error) {
				d, list, err = r.divide(ctx, cfg, was, how)
				return err
			}))
		}
		if err != nil {
			faults = append(faults, err)
			return nil
		}
		out.divided[cfg.Name] = d
		return list
	}
	for _, cfg := range c.Add {
		switch {
		case r.divided.get(cfg.Name) != nil || cfg.Partitions > 0 && r.routes.named(cfg.Name) != nil:
			faults = append(faults, &SetupError{cfg.Name, errors.New("this instance already has a route of this name: update it, or remove it first")})
		case cfg.Partitions == 0:
			out.Add = append(out.Add, cfg)
		default:
			out.Add = append(out.Add, parts(cfg, nil)...)
		}
	}
	for _, cfg := range c.Update {
		was := r.divided.get(cfg.Name)
		switch {
		case was == nil && cfg.Partitions == 0:
			out.Update = append(out.Update, cfg)
		case was == nil && r.routes.named(cfg.Name) == nil:
			faults = append(faults, &SetupError{cfg.Name, errors.New("this instance has no route of this name: add it")})
		case was == nil:
			out.Remove, out.Add = append(out.Remove, cfg.Name), append(out.Add, parts(cfg, nil)...)
		case cfg.Partitions == 0:
			out.Remove, out.Add = append(out.Remove, was.parts...), append(out.Add, cfg)
			out.divided[cfg.Name], out.were[cfg.Name] = nil, was
		default:
			left := slices.Clone(was.parts)
			for _, part := range parts(cfg, was) {
				if i := slices.Index(left, part.Name); i < 0 {
					out.Add = append(out.Add, part)
				} else if left = slices.Delete(left, i, i+1); how != takeOthers || !r.isPart(part) {
					out.Update = append(out.Update, part)
				}
			}
			out.Remove = append(out.Remove, left...)
		}
	}
	for _, name := range c.Remove {
		if was := r.divided.get(name); was != nil {
			out.Remove, out.divided[name], out.were[name] = append(out.Remove, was.parts...), nil, was
		} else {
			out.Remove = append(out.Remove, name)
		}
	}
	return out, errors.Join(faults...)
}

// isPart tells whether a part of a route is that part already.
func (r *Relay) isPart(cfg Route) bool {
	rt := r.routes.named(cfg.Name)
	if rt == nil || rt.cfg.part == nil {
		return false
	}
	a, b := rt.cfg.part, cfg.part
	return a.After == b.After && (a.To == nil) == (b.To == nil) && (a.To == nil || a.To.Number == b.To.Number)
}

// made notes the routes of a change that was made, and ends handlers that nobody has any more.
func (r *Relay) made(c expanded) {
	for name, d := range c.divided {
		was := r.divided.get(name)
		r.divided.set(name, d)
		if was == nil {
			continue
		}
		if d != nil {
			d.Follow(was.Route)
		} else {
			r.log.Warn("the route no longer has partitions here; their stream stays, and the server keeps copying to it (relay orphans ls shows what is left there)",
				"route", name, "stream", was.Newest().Name())
		}
		if f := r.membership.Now(); f != nil {
			f.Renew() // tells the others
		}
		formers := r.routes.called(name)
		r.running.changes.Go(func() {
			for _, rt := range formers {
				rt.settings.formers.Wait()
			}
			ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ends), r.phases.drainTime())
			defer cancel()
			was.endLives(ctx, d)
		})
	}
}

// outward says of a change what became of the routes, and not of their parts.
func (c Changed) outward(r *Relay, given Change, is expanded) Changed {
	called := func(list []string) (names []string) {
		for _, name := range list {
			for head, d := range is.divided {
				if d != nil && slices.Contains(d.parts, name) {
					name = head
				}
			}
			if rt := r.routes.named(name); rt != nil {
				name = rt.name()
			}
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		return names
	}
	if len(is.divided) == 0 {
		return c
	}
	c.Added, c.Updated = nil, nil
	for _, rt := range given.Add {
		c.Added = append(c.Added, rt.Name)
	}
	for _, rt := range given.Update {
		c.Updated = append(c.Updated, rt.Name)
	}
	c.Live, c.Restarted = called(c.Live), called(c.Restarted)
	c.Live = slices.DeleteFunc(c.Live, func(name string) bool { return slices.Contains(c.Restarted, name) || !slices.Contains(c.Updated, name) })
	waiting := make(map[string]string)
	for name, why := range c.Waiting {
		waiting[called([]string{name})[0]] = why
	}
	c.Waiting = waiting
	var removed []Removed
	for _, gone := range c.Removed {
		if slices.Contains(given.Remove, gone.Route) {
			removed = append(removed, gone)
		}
	}
	for _, name := range given.Remove {
		if was := is.were[name]; was != nil {
			removed = append(removed, Removed{Route: name, Stream: was.Newest().Stream, Durable: was.head.Durable, Copies: was.Newest().Name()})
		}
	}
	c.Removed = removed
	return c
}
