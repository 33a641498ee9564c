package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/provision"
	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/away"
	"github.com/relaymq/relay/internal/beat"
	"github.com/relaymq/relay/internal/fleet"
	"github.com/relaymq/relay/internal/partition"
)

// A route with partitions is one route to everybody outside of this package, and here one for each partition: an ordered route that one instance at a
// time has, on the durable of the partition in a stream of relay's own (package partition). Several instances share them, and each key is in one of them. The
// parts begin and end by changes, as other routes do.
//
// When the number of partitions, the key or the subjects change, there is a new generation. The parts of former ones then hand over what they still have, in
// the order of its keys, and end.

// partOfRoute says which part of a route a route is.
type partOfRoute struct {
	Route   string // of the configuration
	Stream  string // of the user
	Durable string // that it would have without partitions: a part of the ids of messages
	Number  int
	Of      partition.Generation
	After   bool                  // there are former generations, and it is the first part of the newest
	To      *partition.Generation // messages are handed over to it; nil: they are handled
}

// isCopy tells whether the handler is that of another route, which is checked there.
func (r Route) isCopy() bool { return r.part != nil && (r.part.Number > 0 || r.part.To != nil) }

// name is what the route is called outside of this package.
func (rt *route) name() string { return rt.cfg.calledName() }

func (r Route) calledName() string {
	if r.part != nil {
		return r.part.Route
	}
	return r.Name
}

func (r Route) logger(log *slog.Logger) *slog.Logger {
	if p := r.part; p != nil {
		return log.With("route", p.Route, "partition", p.Number, "generation", p.Of.Number)
	}
	return log.With("route", r.Name)
}

// called names the route in a sentence.
func (rt *route) called() string {
	if p := rt.cfg.part; p != nil {
		return fmt.Sprintf("%s, partition %d of %d,", p.Route, p.Number, p.Of.Count)
	}
	return rt.cfg.Name
}

// originStream is the user's stream that the route reads.
func (rt *route) originStream(u *unit) string {
	if p := rt.cfg.part; p != nil {
		return p.Stream
	}
	return u.main.stream
}

// calledName is what a route of that name is called outside of this package.
func (r *Relay) calledName(name string) string {
	if rt := r.route(name); rt != nil {
		return rt.name()
	}
	return name
}

// handsOver tells whether the route hands its messages over to another generation of partitions.
func (rt *route) handsOver() bool { return rt.cfg.part != nil && rt.cfg.part.To != nil }

// divided is a route with partitions.
type divided struct {
	head           Route
	streams        []*partition.Stream // the generations, the newest is the last
	parts          []string            // names of the routes
	life, fallback *sharedLife         // of the handlers, which all parts share
	tender         partition.Tender
	next           time.Time // of watchPartitions only: when it is looked at again
}

func (d *divided) newest() *partition.Stream { return d.streams[len(d.streams)-1] }

// dividedRoutes are those with partitions.
type dividedRoutes struct {
	mu    sync.Mutex
	list  map[string]*divided
	again chan struct{} // holds a value when a stream of partitions may be gone
}

func (d *dividedRoutes) get(name string) *divided {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.list[name]
}

func (d *dividedRoutes) all() (list []*divided) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, v := range d.list {
		list = append(list, v)
	}
	return list
}

func (d *dividedRoutes) set(name string, to *divided) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if to == nil {
		delete(d.list, name)
		return
	}
	if d.list == nil {
		d.list = make(map[string]*divided)
	}
	d.list[name] = to
}

// lookSoon has the generations looked at.
func (d *dividedRoutes) lookSoon() {
	select {
	case d.again <- struct{}{}:
	default:
	}
}

// layout is how the route is to be divided.
func (r Route) layout(stream string) partition.Layout {
	return partition.Layout{Count: r.Partitions, Key: r.Key, Subjects: r.Subjects, Stream: stream, Durable: r.Durable}
}

// validatePartitions says what is wrong with them.
func (r Route) validatePartitions(fault func(format string, args ...any)) {
	switch {
	case r.Partitions == 0:
		return
	case r.Order != "key":
		fault("partitions: keep the order of keys over several instances, and go with order: key only")
	case r.Instances == InstancesOne:
		fault("partitions: are for several instances: leave out partitions, or instances: one")
	case len(r.Name) > partition.MaxRoute:
		fault("name: must be at most %d characters with partitions (got %d)", partition.MaxRoute, len(r.Name))
	}
	if err := r.layout("").Validate(); err != nil {
		fault("%w", err)
	}
}

// divide finds how a route is divided, and makes its newest generation when it is missing or another one. With adopt it takes what is there. Without
// may it makes nothing.
func (r *Relay) divide(ctx context.Context, head Route, was *divided, adopt, may bool) (*divided, []Route, error) {
	d := &divided{head: head}
	for try := 0; ; try++ {
		list, err := partition.Find(ctx, r.js, r.cfg.Service, head.Name)
		if err != nil {
			return nil, nil, err
		}
		d.streams = partition.Running(list)
		if adopt && len(list) > 0 {
			break
		}
		stream, err := r.streamOf(ctx, head)
		if err != nil {
			return nil, nil, err
		}
		if want := head.layout(stream); len(list) == 0 || !d.newest().Equal(want) {
			if err = r.newGeneration(ctx, head, d, want, may); errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) && try < 3 {
				continue // another instance was faster
			} else if err != nil {
				return nil, nil, err
			}
		}
		break
	}
	if len(d.streams) == 0 {
		return d, nil, nil
	}
	d.keepLives(was)
	d.tender.JS = r.js
	return d, d.routes(), nil
}

// newGeneration makes the stream of a new generation.
func (r *Relay) newGeneration(ctx context.Context, head Route, d *divided, want partition.Layout, may bool) error {
	g := partition.Generation{Service: r.cfg.Service, Route: head.Name, Number: 1, Layout: want}
	from, err := r.js.Stream(ctx, want.Stream)
	if err != nil {
		return err
	}
	if c := from.CachedInfo().Config; c.Retention != jetstream.LimitsPolicy {
		return fmt.Errorf("partitions: stream %s has retention %s, from which a server cannot copy safely: it must be limits", want.Stream, c.Retention)
	}
	var start partition.Start // of a later one: when the former ones are through
	if len(d.streams) > 0 {
		g.Number = d.newest().Number + 1
	} else if start, err = r.startOfCopies(ctx, head, from); err != nil {
		return err
	}
	if !may {
		return nil
	}
	if err := g.Make(ctx, r.js, start, r.cfg.Replicas); err != nil {
		return fmt.Errorf("making stream %s: %w", g.Name(), err)
	}
	r.log.Info("made the stream of a route's partitions", "route", head.Name, "stream", g.Name(), "partitions", g.Count, "from", want.Stream, "start", start.String())
	list, err := partition.Find(ctx, r.js, r.cfg.Service, head.Name)
	d.streams = partition.Running(list)
	return err
}

// startOfCopies is where the first generation of a route begins: where its durable without partitions is, or where the configuration says.
func (r *Relay) startOfCopies(ctx context.Context, head Route, from jetstream.Stream) (partition.Start, error) {
	info := from.CachedInfo()
	consumer, err := from.Consumer(ctx, head.Durable)
	switch {
	case err == nil && provision.MarkOf(consumer.CachedInfo().Config.Metadata).Service == r.cfg.Service:
		floor := consumer.CachedInfo().AckFloor.Stream
		r.log.Warn("the route gets partitions and goes on where its durable is; what that has above its ack floor is handled again", "route", head.Name, "durable", head.Durable, "ack_floor", floor)
		return partition.Start{Sequence: floor + 1}, nil
	case err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) && !errors.Is(err, jetstream.ErrNotPullConsumer):
		return partition.Start{}, err
	}
	switch head.Start.Policy {
	case "new":
		return partition.Start{Sequence: info.State.LastSeq + 1}, nil
	case "seq":
		return partition.Start{Sequence: head.Start.Seq}, nil
	case "since":
		return partition.Start{Time: head.Start.Since}, nil
	case "all":
		return partition.Start{Sequence: 1}, nil
	}
	var n uint64
	for _, subj := range head.Subjects {
		more, _, err := audit.Matching(ctx, r.nc, r.api, info.Config.Name, subj)
		if err != nil {
			return partition.Start{}, err
		}
		n += more
	}
	if n > 0 {
		return partition.Start{}, fmt.Errorf(
			"start: stream %s already holds %d messages for %s, and the route has no partitions yet: say where they begin (start: all, new, {since: <time>} or {seq: <n>})",
			info.Config.Name, n, strings.Join(head.Subjects, ", "))
	}
	return partition.Start{Sequence: info.State.LastSeq + 1}, nil
}

// planDivision is what would become of the partitions of a route.
func (r *Relay) planDivision(ctx context.Context, head Route) (p DividedPlan, err error) {
	err = r.attempt(ctx, func(ctx context.Context) error {
		stream, err := r.streamOf(ctx, head)
		if err != nil {
			return err
		}
		list, err := partition.Find(ctx, r.js, r.cfg.Service, head.Name)
		if err != nil {
			return err
		}
		g := partition.Generation{Service: r.cfg.Service, Route: head.Name, Number: 1, Layout: head.layout(stream)}
		p = DividedPlan{Route: head.Name, Does: DurableMade, Partitions: g.Count}
		switch n := len(list); {
		case n == 0:
			from, err := r.js.Stream(ctx, stream)
			if err != nil {
				return err
			}
			start, err := r.startOfCopies(ctx, head, from)
			if err != nil {
				return err
			}
			p.Start = start.String()
		case list[n-1].Equal(g.Layout):
			g, p.Does, p.Before = list[n-1].Generation, DurableStays, g.Count
		default:
			g.Number, p.Does, p.Before = list[n-1].Number+1, DurableChanged, list[n-1].Count
		}
		p.Stream = g.Name()
		return nil
	})
	return p, err
}

// keepLives has the parts share handlers, and keep those that they have.
func (d *divided) keepLives(was *divided) {
	kept := func(h Handler) *sharedLife {
		l := newSharedLife(h)
		if l != nil {
			l.kept = true
		}
		return l
	}
	if was != nil && sameObject(was.head.Handler, d.head.Handler) {
		d.life = was.life
	} else {
		d.life = kept(d.head.Handler)
	}
	if f := d.head.Fallback; f == nil {
	} else if was != nil && was.head.Fallback != nil && sameObject(was.head.Fallback.Handler, f.Handler) {
		d.fallback = was.fallback
	} else {
		d.fallback = kept(f.Handler)
	}
}

// endLives stops handlers that no part has any more, and that the next one does not have.
func (d *divided) endLives(ctx context.Context, next *divided) {
	if next == nil {
		next = new(divided)
	}
	end := func(l, stays *sharedLife, timeout time.Duration) {
		if l != nil && l != stays {
			l.kept = false
			_ = l.end(ctx, timeout)
		}
	}
	end(d.life, next.life, d.head.Timeout)
	if d.fallback != nil {
		end(d.fallback, next.fallback, d.head.Fallback.Timeout)
	}
}

// routes are those of the partitions, and notes their names.
func (d *divided) routes() (list []Route) {
	newest := d.newest()
	for _, s := range d.streams {
		var to *partition.Generation
		if s != newest {
			to = new(newest.Generation)
		}
		for n := range s.Count {
			list = append(list, d.routeOf(s.Generation, n, to))
		}
	}
	d.parts = nil
	for _, rt := range list {
		d.parts = append(d.parts, rt.Name)
	}
	return list
}

func (d *divided) routeOf(g partition.Generation, n int, to *partition.Generation) Route {
	cfg := d.head
	cfg.part = &partOfRoute{Route: cfg.Name, Stream: g.Stream, Durable: g.Durable, Number: n, Of: g, To: to, After: n == 0 && len(d.streams) > 1}
	cfg.Name, cfg.Stream, cfg.Durable, cfg.Subjects = g.RouteOf(n), g.Name(), g.DurableOf(n), []string{g.Part(n)}
	cfg.Start, cfg.Instances, cfg.Partitions = StartAll, InstancesOne, 0
	cfg.Stash.Messages, cfg.Stash.Bytes = max(cfg.Stash.Messages/g.Count, 32), max(cfg.Stash.Bytes/Bytes(g.Count), 1<<20)
	cfg.life, cfg.fallbackLife = d.life, d.fallback
	if to != nil {
		cfg.Limits, cfg.Batch, cfg.Fallback = nil, nil, nil
	}
	return cfg
}

// divideAll has routes with partitions run as their parts: those that have a stream.
func (r *Relay) divideAll(ctx context.Context) (faults []error) {
	var list []*route
	for _, rt := range r.all() {
		if rt.cfg.Partitions == 0 {
			list = append(list, rt)
			continue
		}
		var d *divided
		var parts []Route
		err := r.persist(ctx, "the partitions of route "+rt.cfg.Name, func(ctx context.Context) error {
			return r.attempt(ctx, func(ctx context.Context) (err error) {
				d, parts, err = r.divide(ctx, rt.cfg, nil, false, true)
				return err
			})
		})
		var none *noStream
		if errors.As(err, &none) {
			list = append(list, rt)
			continue
		}
		if err != nil {
			faults = append(faults, setupError(rt.cfg.Name, err))
			continue
		}
		r.divided.set(rt.cfg.Name, d)
		rt.group.Drain()
		for _, cfg := range parts {
			part := newRoute(r, cfg, r.cfg.Limits)
			r.enter(part)
			list = append(list, part)
		}
	}
	if len(faults) == 0 {
		r.routes.Store(&list)
	}
	return faults
}

// expanded is a change with the parts of routes in place of those.
type expanded struct {
	Change
	divided map[string]*divided // of routes that are to have partitions; nil: they have none any more
}

// expand puts the parts of routes with partitions into a change.
func (r *Relay) expand(ctx context.Context, c Change, adopt, may bool) (expanded, error) {
	out := expanded{Change{Limits: c.Limits, DeliverAgain: c.DeliverAgain, anew: c.anew}, map[string]*divided{}}
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
				d, list, err = r.divide(ctx, cfg, was, adopt, may)
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
		case r.divided.get(cfg.Name) != nil || cfg.Partitions > 0 && r.route(cfg.Name) != nil:
			faults = append(faults, &SetupError{cfg.Name, errors.New("is there already: update it, or remove it first")})
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
		case was == nil && r.route(cfg.Name) == nil:
			faults = append(faults, &SetupError{cfg.Name, errors.New("is not there: add it")})
		case was == nil:
			out.Remove, out.Add = append(out.Remove, cfg.Name), append(out.Add, parts(cfg, nil)...)
		case cfg.Partitions == 0:
			out.Remove, out.Add = append(out.Remove, was.parts...), append(out.Add, cfg)
			out.divided[cfg.Name] = nil
		default:
			left := slices.Clone(was.parts)
			for _, part := range parts(cfg, was) {
				if i := slices.Index(left, part.Name); i < 0 {
					out.Add = append(out.Add, part)
				} else if left = slices.Delete(left, i, i+1); !adopt || !r.isPart(part) {
					out.Update = append(out.Update, part)
				}
			}
			out.Remove = append(out.Remove, left...)
		}
	}
	for _, name := range c.Remove {
		if was := r.divided.get(name); was != nil {
			out.Remove, out.divided[name] = append(out.Remove, was.parts...), nil
		} else {
			out.Remove = append(out.Remove, name)
		}
	}
	return out, errors.Join(faults...)
}

// isPart tells whether a part of a route is that part already.
func (r *Relay) isPart(cfg Route) bool {
	rt := r.route(cfg.Name)
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
			d.tender = was.tender
		}
		if f := r.grid.now(); f != nil {
			f.Renew() // tells the others
		}
		formers := r.partsOf(name)
		r.changes.Go(func() {
			for _, rt := range formers {
				rt.formers.Wait()
			}
			ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ends), r.drainTime())
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
			if rt := r.route(name); rt != nil {
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
		if d, was := is.divided[name]; was && d == nil {
			removed = append(removed, Removed{Route: name, Durable: name})
		}
	}
	c.Removed = removed
	return c
}

// partsOf are the routes that are called so: one, or those of its partitions.
func (r *Relay) partsOf(name string) (list []*route) {
	for _, rt := range r.all() {
		if rt.name() == name {
			list = append(list, rt)
		}
	}
	return list
}

const (
	// tendEvery is how often the instance that has the first partition looks after the streams, and growEvery while there are former generations.
	tendEvery           = 5 * time.Second
	growEvery, growLook = time.Second, 50 * time.Millisecond
	// generationsEvery is how often the others look which generations there are, if nothing has told them.
	generationsEvery = 30 * time.Second
	// changesAtOnce gathers what the other instances say.
	changesAtOnce = 20 * time.Millisecond
	// lookAfterFor bounds one turn for one route.
	lookAfterFor = 5 * time.Second
)

// watchPartitions looks after routes with partitions until ctx is done.
func (r *Relay) watchPartitions(ctx context.Context) {
	tick := beat.NewTicker(time.Second)
	defer tick.Stop()
	for {
		soon := false
		var changed <-chan struct{}
		if f := r.grid.now(); f != nil && len(r.divided.all()) > 0 {
			changed = f.Changed()
		}
		select {
		case <-ctx.Done():
			for _, d := range r.divided.all() {
				end, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.drainTime())
				d.endLives(end, nil)
				cancel()
			}
			return
		case <-r.divided.again:
			soon = true
		case <-changed:
			if pause(ctx, changesAtOnce); ctx.Err() != nil {
				continue
			}
		case <-tick.C:
			tick.Next()
			for _, d := range r.divided.all() {
				r.balance(ctx, d)
			}
		}
		for _, d := range r.divided.all() {
			if now := time.Now(); soon || r.othersKnowNewer(d) || !now.Before(d.next) {
				d.next = now.Add(generationsEvery)
				call, cancel := context.WithTimeout(ctx, lookAfterFor)
				err := r.lookAfter(call, d)
				cancel()
				r.tellOfGenerations(d, err)
			}
		}
	}
}

// lookAfter looks which generations there are, and tends them if that is for this instance to do.
func (r *Relay) lookAfter(ctx context.Context, d *divided) error {
	for {
		list, err := partition.Find(ctx, r.js, r.cfg.Service, d.head.Name)
		if err != nil || len(list) == 0 {
			return err
		}
		if !slices.EqualFunc(partition.Running(list), d.streams, func(a, b *partition.Stream) bool { return a.Number == b.Number }) {
			return r.divideAnew(ctx, d.head.Name)
		}
		if !r.tends(d) {
			return nil
		}
		d.next = time.Now().Add(tendEvery)
		growing := !list[len(list)-1].Sources()
		left, err := d.tender.Tend(ctx, list)
		switch {
		case err != nil:
			return err
		case growing && left > 0:
			d.next = time.Now().Add(growEvery)
			if pause(ctx, growLook); ctx.Err() != nil {
				return nil // it goes on with the next tick
			}
		case growing:
			return r.divideAnew(ctx, d.head.Name)
		case len(list) > 1:
			d.next = time.Now().Add(growEvery)
			if r.othersWorkOnFormer(d) {
				return nil
			}
			return d.tender.Delete(ctx, list)
		default:
			return nil
		}
	}
}

// othersWorkOnFormer tells whether another instance has parts of former generations still.
func (r *Relay) othersWorkOnFormer(d *divided) bool {
	f := r.grid.now()
	if f == nil {
		return true
	}
	members, _ := f.Members()
	return slices.ContainsFunc(members, func(m fleet.Member) bool {
		g, told := stateOf(m).Generations[d.head.Name]
		return m.Gone.IsZero() && told && g.Oldest < d.streams[0].Number
	})
}

// generations are those of a route that an instance works on.
type generations struct {
	Oldest int `json:"oldest"`
	Newest int `json:"newest"`
}

// othersKnowNewer tells whether another instance knows of a newer generation, or that a former one is through.
func (r *Relay) othersKnowNewer(d *divided) bool {
	f := r.grid.now()
	if f == nil {
		return false
	}
	members, _ := f.Members()
	return slices.ContainsFunc(members, func(m fleet.Member) bool {
		g := stateOf(m).Generations[d.head.Name]
		return g.Newest > d.newest().Number || g.Oldest > d.streams[0].Number
	})
}

// tellOfGenerations says what becomes of former generations, and why that does not go on.
func (r *Relay) tellOfGenerations(d *divided, err error) {
	const what = "the streams of its partitions"
	for _, rt := range r.partsOf(d.head.Name) {
		if rt.cfg.part.Number == 0 && !rt.handsOver() {
			if err == nil || r.isDraining() {
				rt.troubles.mended(what, time.Now())
			} else {
				rt.troubles.note(what, err, time.Now())
			}
		}
	}
}

// tends tells whether this instance looks after the streams of a route: it has the first partition of the newest generation.
func (r *Relay) tends(d *divided) bool {
	rt := r.route(d.newest().RouteOf(0))
	if rt == nil {
		return false
	}
	u := rt.unit.Load()
	if u == nil {
		return false
	}
	l := u.tenure.lease.Load()
	return l != nil && l.Valid()
}

// divideAnew has the parts of a route be those of the generations that there are.
func (r *Relay) divideAnew(ctx context.Context, name string) error {
	leave, err := r.enterChange(ctx)
	if err != nil {
		return err
	}
	defer leave()
	was := r.divided.get(name)
	if was == nil {
		return nil
	}
	c, err := r.expand(ctx, Change{Update: []Route{was.head}, DeliverAgain: true}, true, true)
	if err != nil {
		return err
	}
	from, to := was.newest(), c.divided[name].newest()
	if len(c.Add)+len(c.Update)+len(c.Remove) > 0 {
		p, err := r.plot(ctx, c.Change)
		if err != nil {
			return err
		}
		if !r.commit(p) {
			return ErrNotRunning
		}
		p.run()
	}
	r.made(c)
	r.log.Info("the route is divided anew", "route", name, "partitions", to.Count, "before", from.Count, "generation", to.Number, "former_generations", len(c.divided[name].streams)-1)
	return nil
}

// newerGeneration says that a part must not begin: there is a newer generation, to which what is before may have been handed over.
func (s *source) newerGeneration(ctx context.Context) error {
	p := s.routes[0].cfg.part
	if p == nil || s.due {
		return nil
	}
	known := p.Of.Number
	if p.To != nil {
		known = p.To.Number
	}
	list, err := partition.Find(ctx, s.relay.js, s.relay.cfg.Service, p.Route)
	if err != nil {
		return err
	}
	if len(list) > 0 && list[len(list)-1].Number > known {
		s.relay.divided.lookSoon()
		return away.Made(fmt.Errorf("route %s is divided anew: %w", p.Route, jetstream.ErrStreamNotFound))
	}
	return nil
}

// Partitions move between instances so that each has its share.

// fairPart is how many partitions each instance is to have at most, and how many this one has.
func (r *Relay) fairPart(g partition.Generation) (most, has int) {
	f := r.grid.now()
	if f == nil {
		return g.Count, 0
	}
	members, _ := f.Members()
	first, n := g.RouteOf(0), 0
	for _, m := range members {
		if m.Gone.IsZero() && !stateOf(m).Draining && stateOf(m).has(first) {
			n++
		}
	}
	for i := range g.Count {
		if h, ok := f.Holder(resourceOf(g.Name(), g.DurableOf(i))); ok && h.Mine {
			has++
		}
	}
	n = max(n, 1)
	return (g.Count + n - 1) / n, has
}

// reluctant is how long this instance leaves a partition to others that have fewer.
func (u *unit) reluctant() time.Duration {
	p := u.main.routes[0].cfg.part
	if p == nil {
		return 0
	}
	if most, has := u.relay.fairPart(p.Of); has >= most {
		return reluctance
	}
	return 0
}

const reluctance = 300 * time.Millisecond

// balance hands over partitions that other instances are to have.
func (r *Relay) balance(ctx context.Context, d *divided) {
	f := r.grid.now()
	if f == nil || r.isDraining() {
		return
	}
	g := d.newest().Generation
	most, has := r.fairPart(g)
	if has <= most {
		return
	}
	var units []*unit
	for _, rt := range r.partsOf(d.head.Name) {
		u := rt.unit.Load()
		if u == nil || rt.cfg.part.Of.Number != g.Number || len(units) >= has-most {
			continue
		}
		if l := u.tenure.lease.Load(); l != nil && l.Valid() && len(rt.holder().Standbys) > 0 {
			f.Rest(u.resource(), time.Now().Add(r.drainTime()+2*r.cfg.Fleet.lease()))
			units = append(units, u)
		}
	}
	if len(units) == 0 {
		return
	}
	r.log.Info("partitions are handed over to instances that have fewer", "route", d.head.Name, "count", len(units), "has", has, "fair", most)
	if err := r.restart(ctx, units...); err != nil && !errors.Is(err, ErrNotRunning) {
		r.log.Warn("partitions were not handed over; they stay", "route", d.head.Name, "error", err)
		for _, u := range units {
			f.Rest(u.resource(), time.Time{})
		}
	}
}
