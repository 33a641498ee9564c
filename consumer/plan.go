package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/away"
	"github.com/relaymq/relay/internal/subject"
)

// trying calls f until that is through with what it is for: [Relay.persist], or [Relay.once].
type trying func(ctx context.Context, what string, f func(ctx context.Context) error) error

// once tries once.
func (r *Relay) once(ctx context.Context, _ string, f func(ctx context.Context) error) error {
	return f(ctx)
}

// unplaced is a route of which no stream holds the subjects.
type unplaced struct {
	rt  *route
	err error
}

// faultsOf are the errors of routes that have to have a stream.
func faultsOf(list []unplaced) (faults []error) {
	for _, u := range list {
		faults = append(faults, setupError(u.rt.cfg.Name, u.err))
	}
	return faults
}

// plan finds the stream of each route, and which routes share a durable.
func (r *Relay) plan(ctx context.Context, routes []*route, try trying) (units []*unit, without []unplaced, faults []error) {
	streams, errs := make([]string, len(routes)), make([]error, len(routes))
	slots := make(chan struct{}, atOnce)
	var looking sync.WaitGroup
	for i, rt := range routes {
		slots <- struct{}{}
		looking.Go(func() {
			defer func() { <-slots }()
			errs[i] = try(ctx, "the stream of route "+rt.cfg.Name, func(ctx context.Context) error {
				find := func(ctx context.Context) (err error) {
					streams[i], err = r.streamOf(ctx, rt.cfg)
					return err
				}
				err := r.attempt(ctx, find)
				if errors.Is(err, jetstream.ErrStreamNotFound) {
					away.Pause(ctx, twice)
					err = r.attempt(ctx, find)
				}
				return err
			})
		})
	}
	looking.Wait()
	for i, rt := range routes {
		if rt.cfg.Partitions > 0 && errs[i] == nil { // there is a stream since a moment ago; see place
			errs[i] = &noStream{rt.cfg.Subjects[0], jetstream.ErrStreamNotFound}
		}
		stream := streams[i]
		var none *noStream
		if errors.As(errs[i], &none) {
			without = append(without, unplaced{rt, errs[i]})
			continue
		}
		if errs[i] != nil {
			faults = append(faults, setupError(rt.cfg.Name, errs[i]))
			continue
		}
		j := slices.IndexFunc(units, func(u *unit) bool { return u.main.stream == stream && u.main.durable == rt.cfg.Durable })
		if j < 0 {
			j = len(units)
			units = append(units, newUnit(newSource(r, stream, rt.cfg.Durable)))
		}
		for _, u := range units {
			if u.main.stream == stream {
				faults = append(faults, overlaps(u.main, rt, u == units[j])...)
			}
		}
		if on := units[j].main.routes; len(on) > 0 && on[0].cfg.Leased() != rt.cfg.Leased() {
			faults = append(faults, &SetupError{rt.cfg.Name, fmt.Errorf("instances: is %s, and %s of route %s, which has the same durable: make them the same",
				rt.cfg.Instances, on[0].cfg.Instances, on[0].cfg.Name)})
		}
		units[j].main.add(rt, rt.cfg.Subjects...)

		if due := r.dueSource(rt, stream); due != nil {
			units[j].dues = append(units[j].dues, due)
		}
	}
	if err := setupError("", faults...); err != nil {
		faults = []error{err}
	}
	return units, without, faults
}

// overlaps finds subjects of rt that another route of the stream handles too. Routes that share a durable may overlap,
// since the most specific one gets the message, but not be equal.
func overlaps(s *source, rt *route, shared bool) (faults []error) {
	for _, d := range s.patterns {
		for _, p := range rt.cfg.Subjects {
			if shared && subject.Compare(d.pattern, p) != 0 || !subject.Overlaps(d.pattern, p) {
				continue
			}
			faults = append(faults, &SetupError{rt.cfg.Name, fmt.Errorf(
				"subjects: %q overlaps %q of route %s on the same stream: both would handle the same messages; give them the same durable to have the more specific one handle each",
				p, d.pattern, d.route.cfg.Name)})
		}
	}
	return faults
}

// streamOf is the one stream that holds all subjects of the route.
func (r *Relay) streamOf(ctx context.Context, rt Route) (string, error) {
	if rt.Stream != "" {
		return rt.Stream, nil
	}
	found := ""
	for _, subj := range rt.Subjects {
		name, err := r.js.StreamNameBySubject(ctx, subj)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			if name = r.preview.streamOf(subj); name == "" {
				return "", &noStream{subj, err}
			}
			err = nil
		}
		switch {
		case err != nil:
			return "", fmt.Errorf("looking for the stream of %q: %w", subj, err)
		case found != "" && found != name:
			return "", fmt.Errorf("subjects are on two streams, %s and %s: make it two routes", found, name)
		}
		found = name
	}
	return found, nil
}

// noStream says that no stream holds a subject.
type noStream struct {
	subject string
	err     error
}

func (e *noStream) Error() string {
	return fmt.Sprintf("no stream holds subject %q: add one under streams, or make it with: nats stream add", e.subject)
}

func (e *noStream) Unwrap() error { return e.err }
