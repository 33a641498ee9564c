package consumer

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/relaymq/relay/consumer/internal/peers"
	"github.com/relaymq/relay/internal/away"
	"github.com/relaymq/relay/internal/beat"
	"github.com/relaymq/relay/internal/partition"
)

// The generations of a route with partitions while it runs: one instance looks after their streams, and all follow.

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
		if f := r.membership.Now(); f != nil && len(r.divided.all()) > 0 {
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
			if away.Pause(ctx, changesAtOnce); ctx.Err() != nil {
				continue
			}
		case <-tick.C:
			tick.Next()
			for _, d := range r.divided.all() {
				r.balance(ctx, d)
			}
		}
		for _, d := range r.divided.all() {
			if now := time.Now(); soon || peers.AreFurther(r.membership.Now(), d.head.Name, peers.Generations{Oldest: d.streams[0].Number, Newest: d.newest().Number}) || !now.Before(d.next) {
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
			d.behind.Store(-1)
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
			if away.Pause(ctx, growLook); ctx.Err() != nil {
				return nil //nolint:nilerr // it goes on with the next tick
			}
		case growing:
			return r.divideAnew(ctx, d.head.Name)
		case len(list) > 1:
			d.next = time.Now().Add(growEvery)
			if peers.WorkBefore(r.membership.Now(), d.head.Name, d.streams[0].Number) {
				return nil
			}
			return d.tender.Delete(ctx, list)
		default:
			return d.copies(list[0], time.Now())
		}
	}
}

// copiesSilentFor is for how long the server may hear nothing from the stream that it copies: it tries to find one that it lost every 10 s or so.
const copiesSilentFor = 15 * time.Second

// copies notes how far the copies are, and says when they stand still.
func (d *divided) copies(s *partition.Stream, now time.Time) error {
	n, silent, known := s.Behind()
	if known {
		d.unheard = time.Time{}
	} else {
		if d.unheard.IsZero() {
			d.unheard = now
		}
		silent = now.Sub(d.unheard)
	}
	d.behind.Store(int64(n))
	if silent < copiesSilentFor {
		return nil
	}
	return fmt.Errorf("the server has copied nothing from stream %s to %s for %s, and cannot reach it: check with `nats stream info %s`, and check that %s exists and has a leader",
		s.Stream, s.Name(), silent.Round(time.Second), s.Name(), s.Stream)
}

// tellOfGenerations says what becomes of former generations, and why that does not go on.
func (r *Relay) tellOfGenerations(d *divided, err error) {
	const what = "the streams of its partitions"
	for _, rt := range r.partsOf(d.head.Name) {
		if rt.cfg.part.Number == 0 && !rt.handsOver() {
			if err == nil || r.isDraining() {
				rt.troubles.Mended(what, time.Now())
			} else {
				rt.troubles.Note(what, err, time.Now())
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
	c, err := r.expand(ctx, Change{Update: []Route{was.head}, DeliverAgain: true}, takeOthers)
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
	r.log.Info("the number of partitions of the route changed; messages that wait are handed over first", "route", name, "partitions", to.Count, "before", from.Count, "generation", to.Number, "former_generations", len(c.divided[name].streams)-1)
	return nil
}
