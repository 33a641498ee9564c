// Package generations looks after the generations of partitions of routes while relay runs. One instance tends their streams: it copies where a new
// generation begins, and deletes former ones that are through. All instances follow when there is another generation.
package generations

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/beat"
	"github.com/relaymq/relay/internal/partition"
	"github.com/relaymq/relay/internal/transient"
)

const (
	// tendEvery is how often the instance that has the first partition looks after the streams, and growEvery while there are former generations.
	tendEvery           = 5 * time.Second
	growEvery, growLook = time.Second, 50 * time.Millisecond
	// lookEvery is how often the others look which generations there are, if nothing has told them.
	lookEvery = 30 * time.Second
	// changesAtOnce gathers what the other instances say.
	changesAtOnce = 20 * time.Millisecond
	// turnTimeout bounds one turn for one route.
	turnTimeout = 5 * time.Second
	// silentFor is for how long the server may hear nothing from the stream that it copies: it tries to find one that it lost every 10 s or so.
	silentFor = 15 * time.Second
)

// Route is a route with partitions.
type Route struct {
	Name    string
	Streams []*partition.Stream // the generations, the newest is the last

	tender partition.Tender
	// Of Watch.Run only: when it is looked at again, and since when the server does not say how far it has copied.
	next, unheard time.Time
	behind        atomic.Int64
}

// New is a route with these generations.
func New(js jetstream.JetStream, name string, streams []*partition.Stream) *Route {
	r := &Route{Name: name, Streams: streams, tender: partition.Tender{JS: js}}
	r.behind.Store(-1)
	return r
}

// Follow has the route go on where the one was that it replaces.
func (r *Route) Follow(was *Route) { r.tender = was.tender }

// Newest is the generation in which messages are handled.
func (r *Route) Newest() *partition.Stream { return r.Streams[len(r.Streams)-1] }

// Behind is how many messages were not copied at the last look of the instance that tends the streams; -1 on the others.
func (r *Route) Behind() int64 { return r.behind.Load() }

// Config says what is watched. Its functions are called by [Watch.Run] only.
type Config struct {
	JS      jetstream.JetStream
	Service string
	Routes  func() []*Route
	// Changed is closed when another instance said something new; nil: nobody does.
	Changed func() <-chan struct{}
	// Further tells whether another instance knows of a newer generation, or that a former one is through.
	Further func(*Route) bool
	// Tends tells whether this instance tends the streams.
	Tends func(*Route) bool
	// Earlier tells whether an instance may still have partitions of a generation before the oldest one.
	Earlier func(*Route) bool
	// Anew has the route follow: it has other generations.
	Anew func(context.Context, *Route) error
	// Looked is told how a look ended.
	Looked func(*Route, error)
	// EachSecond is called for each route.
	EachSecond func(context.Context, *Route)
}

// Watch is one for all routes.
type Watch struct {
	cfg   Config
	again chan struct{} // holds a value when a stream of partitions may be gone
}

// NewWatch watches nothing yet.
func NewWatch(cfg Config) *Watch { return &Watch{cfg: cfg, again: make(chan struct{}, 1)} }

// Soon has all generations looked at. It does not block.
func (w *Watch) Soon() {
	select {
	case w.again <- struct{}{}:
	default:
	}
}

// Run looks after the routes until ctx is done.
func (w *Watch) Run(ctx context.Context) {
	tick := beat.NewTicker(time.Second)
	defer tick.Stop()
	for {
		soon := false
		var changed <-chan struct{}
		if len(w.cfg.Routes()) > 0 {
			changed = w.cfg.Changed()
		}
		select {
		case <-ctx.Done():
			return
		case <-w.again:
			soon = true
		case <-changed:
			if transient.Pause(ctx, changesAtOnce); ctx.Err() != nil {
				continue
			}
		case <-tick.C:
			tick.Next()
			for _, r := range w.cfg.Routes() {
				w.cfg.EachSecond(ctx, r)
			}
		}
		for _, r := range w.cfg.Routes() {
			if now := time.Now(); soon || w.cfg.Further(r) || !now.Before(r.next) {
				r.next = now.Add(lookEvery)
				turn, cancel := context.WithTimeout(ctx, turnTimeout)
				err := w.look(turn, r)
				cancel()
				w.cfg.Looked(r, err)
			}
		}
	}
}

// look looks which generations there are, and tends them if that is for this instance to do.
func (w *Watch) look(ctx context.Context, r *Route) error {
	for {
		list, err := partition.Find(ctx, w.cfg.JS, w.cfg.Service, r.Name)
		if err != nil || len(list) == 0 {
			return err
		}
		if !slices.EqualFunc(partition.Running(list), r.Streams, func(a, b *partition.Stream) bool { return a.Number == b.Number }) {
			return w.cfg.Anew(ctx, r)
		}
		if !w.cfg.Tends(r) {
			r.behind.Store(-1)
			return nil
		}
		r.next = time.Now().Add(tendEvery)
		growing := !list[len(list)-1].Sources()
		left, err := r.tender.Tend(ctx, list)
		switch {
		case err != nil:
			return err
		case growing && left > 0:
			r.next = time.Now().Add(growEvery)
			if transient.Pause(ctx, growLook); ctx.Err() != nil {
				return nil //nolint:nilerr // it goes on with the next tick
			}
		case growing:
			return w.cfg.Anew(ctx, r)
		case len(list) > 1:
			r.next = time.Now().Add(growEvery)
			if w.cfg.Earlier(r) {
				return nil
			}
			return r.tender.Delete(ctx, list)
		default:
			return r.copies(list[0], time.Now())
		}
	}
}

// copies notes how far the copies are, and says when they stand still.
func (r *Route) copies(s *partition.Stream, now time.Time) error {
	n, silent, known := s.Behind()
	if known {
		r.unheard = time.Time{}
	} else {
		if r.unheard.IsZero() {
			r.unheard = now
		}
		silent = now.Sub(r.unheard)
	}
	r.behind.Store(int64(n))
	if silent < silentFor {
		return nil
	}
	return fmt.Errorf("the server has copied nothing from stream %s to %s for %s, and cannot reach it: check with `nats stream info %s`, and check that %s exists and has a leader",
		s.Stream, s.Name(), silent.Round(time.Second), s.Name(), s.Stream)
}
