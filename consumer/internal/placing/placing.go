package placing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/pool"
	"github.com/relaymq/relay/internal/subject"
	"github.com/relaymq/relay/internal/transient"
)

const (
	// Twice is after what time a server is asked once more for a stream that it does not know: it may not have heard of it yet.
	Twice = time.Second
	// atOnce bounds how many routes are looked for side by side.
	atOnce = 16
)

// Config says who is asked.
type Config struct {
	JS jetstream.JetStream
	// Attempt bounds a try.
	Attempt func(context.Context, func(context.Context) error) error
}

// Route is one of which the place is to be found.
type Route struct {
	Name      string
	Subjects  []string
	Stream    string // empty: that which holds the subjects
	Durable   string
	Instances string // as it is configured
	Leased    bool   // one instance at a time works on its messages
	Divided   bool   // into partitions
}

// Placing finds the places of routes. It is safe for concurrent use. Make it with [New].
type Placing struct {
	cfg   Config
	plans bool
	made  []jetstream.StreamConfig
}

// New asks nobody.
func New(cfg Config) *Placing { return &Placing{cfg: cfg} }

// Assume has streams taken for granted that do not exist yet. It is for who only says what relay would do, before anything else is asked.
func (p *Placing) Assume(made []jetstream.StreamConfig) { p.plans, p.made = true, made }

// Plans tells whether this is for who only says what relay would do.
func (p *Placing) Plans() bool { return p.plans }

// Assumed is a stream that is taken for granted; nil: it exists, or nobody makes it.
func (p *Placing) Assumed(stream string) *jetstream.StreamConfig {
	for i := range p.made {
		if p.made[i].Name == stream {
			return &p.made[i]
		}
	}
	return nil
}

// NoStream says that no stream holds a subject.
type NoStream struct {
	Subject string
	err     error
}

func (e *NoStream) Error() string {
	return fmt.Sprintf("no stream holds subject %q: add one under streams, or make it with: nats stream add", e.Subject)
}

func (e *NoStream) Unwrap() error { return e.err }

// StreamOf is the one stream that holds all subjects of the route. The error is a [NoStream] when none does.
func (p *Placing) StreamOf(ctx context.Context, rt Route) (string, error) {
	if rt.Stream != "" {
		return rt.Stream, nil
	}
	found := ""
	for _, subj := range rt.Subjects {
		name, err := p.cfg.JS.StreamNameBySubject(ctx, subj)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			if name = p.willHold(subj); name == "" {
				return "", &NoStream{subj, err}
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

// willHold is the stream that will hold a subject; empty: none.
func (p *Placing) willHold(subj string) string {
	for _, c := range p.made {
		if slices.ContainsFunc(c.Subjects, func(s string) bool { return subject.Covers(s, subj) }) {
			return c.Name
		}
	}
	return ""
}

// Place is a durable, and the routes that get its messages.
type Place struct {
	Stream, Durable string
	Routes          []int // by their numbers in the list of routes that were to be placed
}

// Fault is why a route cannot work.
type Fault struct {
	Route string
	Err   error
}

// Unplaced is a route of which no stream holds the subjects.
type Unplaced struct {
	Route int
	Err   error
}

// Trying calls f until that is through with what it is for.
type Trying func(ctx context.Context, what string, f func(ctx context.Context) error) error

// Once tries once.
func Once(ctx context.Context, _ string, f func(ctx context.Context) error) error { return f(ctx) }

// Place finds the stream of each route, and which routes share a durable.
func (p *Placing) Place(ctx context.Context, routes []Route, try Trying) (places []*Place, without []Unplaced, faults []Fault) {
	streams, errs := p.streamsOf(ctx, routes, try)
	for i, rt := range routes {
		if rt.Divided && errs[i] == nil { // there is a stream since a moment ago: the route begins by a change
			errs[i] = &NoStream{rt.Subjects[0], jetstream.ErrStreamNotFound}
		}
		var none *NoStream
		if errors.As(errs[i], &none) {
			without = append(without, Unplaced{i, errs[i]})
			continue
		}
		if errs[i] != nil {
			faults = append(faults, Fault{rt.Name, errs[i]})
			continue
		}
		j := slices.IndexFunc(places, func(at *Place) bool { return at.Stream == streams[i] && at.Durable == rt.Durable })
		if j < 0 {
			j = len(places)
			places = append(places, &Place{Stream: streams[i], Durable: rt.Durable})
		}
		for _, at := range places {
			if at.Stream == streams[i] {
				clash := subject.Overlaps
				if at == places[j] {
					clash = tie
				}
				faults = append(faults, overlaps(at.of(routes), rt, clash)...)
			}
		}
		if on := places[j].of(routes); len(on) > 0 && on[0].Leased != rt.Leased {
			faults = append(faults, Fault{rt.Name, fmt.Errorf("instances: is %s, and %s of route %s, which has the same durable: make them the same",
				rt.Instances, on[0].Instances, on[0].Name)})
		}
		places[j].Routes = append(places[j].Routes, i)
	}
	return places, without, faults
}

// streamsOf looks for the streams of routes side by side. A server that knows none for a route is asked once more.
func (p *Placing) streamsOf(ctx context.Context, routes []Route, try Trying) (streams []string, errs []error) {
	streams, errs = make([]string, len(routes)), make([]error, len(routes))
	looking := pool.New(atOnce)
	for i, rt := range routes {
		looking.Go(func() {
			errs[i] = try(ctx, "the stream of route "+rt.Name, func(ctx context.Context) error {
				find := func(ctx context.Context) (err error) {
					streams[i], err = p.StreamOf(ctx, rt)
					return err
				}
				err := p.cfg.Attempt(ctx, find)
				if errors.Is(err, jetstream.ErrStreamNotFound) {
					transient.Pause(ctx, Twice)
					err = p.cfg.Attempt(ctx, find)
				}
				return err
			})
		})
	}
	looking.Wait()
	return streams, errs
}

func (at *Place) of(routes []Route) (list []Route) {
	for _, i := range at.Routes {
		list = append(list, routes[i])
	}
	return list
}

// Overlaps finds subjects of a route that others of its stream, on another durable, handle too.
func Overlaps(others []Route, rt Route) []Fault { return overlaps(others, rt, subject.Overlaps) }

// tie tells whether two patterns overlap of which neither is the more specific one. Routes that share a durable may overlap otherwise, since the most
// specific one gets the message.
func tie(p, q string) bool { return subject.Compare(p, q) == 0 && subject.Overlaps(p, q) }

// overlaps finds subjects of a route that clash with those of others.
func overlaps(others []Route, rt Route, clash func(p, q string) bool) (faults []Fault) {
	type reads struct{ pattern, route string }
	var list []reads
	for _, o := range others {
		for _, s := range o.Subjects {
			list = append(list, reads{s, o.Name})
		}
	}
	slices.SortStableFunc(list, func(a, b reads) int { return subject.Compare(a.pattern, b.pattern) })
	for _, r := range list {
		for _, s := range rt.Subjects {
			if !clash(r.pattern, s) {
				continue
			}
			faults = append(faults, Fault{rt.Name, fmt.Errorf(
				"subjects: %q overlaps %q of route %s on the same stream: both would handle the same messages; give them the same durable to have the more specific one handle each",
				s, r.pattern, r.route)})
		}
	}
	return faults
}
