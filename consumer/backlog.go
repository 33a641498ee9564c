package consumer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/beat"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/looks"
)

// look is what the server last said of a durable.
type look struct {
	at          time.Time
	pending     uint64 // not delivered yet
	outstanding int    // delivered and not settled
	floor       uint64 // nothing up to this sequence waits
}

// saw notes what the server says of the durable.
func (s *source) saw(info *jetstream.ConsumerInfo) {
	s.looked.Store(&look{at: time.Now(), pending: info.NumPending, outstanding: info.NumAckPending, floor: info.AckFloor.Stream})
}

const (
	// lookNow is the age at which somebody who asks for the status gets fresh counts, and lookPatience how long they may take.
	lookNow      = time.Second
	lookPatience = 200 * time.Millisecond
)

// lookAgain asks the server about all durables whose counts are old, side by side, and returns soon, with or without answers.
func (r *Relay) lookAgain() {
	ctx, cancel := context.WithTimeout(context.Background(), lookPatience)
	defer cancel()
	var asking sync.WaitGroup
	for _, s := range r.openSources() {
		if l := s.looked.Load(); l != nil && time.Since(l.at) < lookNow || s.isLost() {
			continue
		}
		asking.Go(func() {
			if _, info, err := s.ask(ctx); err == nil && (info.Paused || s.health.IsNews(info.Config)) {
				s.watchdog.doubt.Store(true)
			}
		})
	}
	asking.Wait()
}

// backlog is what waits for the route; nil while its durable is not known.
func (rt *route) backlog() *control.Backlog {
	var b *control.Backlog
	due := uint64(0)
	for _, s := range rt.relay.openSources() {
		l := s.looked.Load()
		if !s.serves(rt) || l == nil || s.isLost() {
			continue
		}
		if s.due {
			due = l.pending
			if b != nil {
				b.Outstanding += l.outstanding
			}
			continue
		}
		b = &control.Backlog{Stream: l.pending, Outstanding: l.outstanding, At: l.at}
	}
	if b == nil {
		return nil
	}
	if c := rt.parkedNow.last.Load(); c != nil {
		n := c.n + due
		b.Parked = &n
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// counted is how many messages of one of relay's own streams a route has.
type counted struct {
	n      uint64
	oldest time.Time // when the first of them was published; zero when there is none
}

// count is kept up to date, at a cost that stays below a hundredth of the time, of the server as of the link.
type count struct {
	last atomic.Pointer[counted]
	// Of watchCounts only: when it is counted again, when that is possible at the earliest, and how many this instance had stored.
	next, soon time.Time
	stored     uint64
	of         looks.Content // of the stream, before it was counted
}

// countEvery is how often the messages of a route in relay's own streams are counted, unless that takes long.
const countEvery = 15 * time.Second

// watchCounts counts, for each route, what is parked, and finds the oldest message that waits.
func (r *Relay) watchCounts(ctx context.Context) {
	tick := beat.NewTicker(time.Second)
	defer tick.Stop()
	for {
		for _, rt := range r.all() {
			if rt.cfg.isCopy() {
				continue
			}
			r.count(ctx, &rt.parkedNow, rt.count.parked.Load()+rt.count.aside.Load(), r.retries.Name(), r.cfg.Service+".park."+rt.name()+".>")
		}
		for _, s := range r.openSources() {
			if !s.due {
				s.findOldest(ctx)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			tick.Next()
		}
	}
}

// count counts when it is time, or soon after this instance has stored more.
func (r *Relay) count(ctx context.Context, c *count, stored uint64, stream, filter string) {
	began := time.Now()
	if began.Before(c.next) && (stored == c.stored || began.Before(c.soon)) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	age := r.amongMany(looks.ShareFor)
	if stored != c.stored {
		age = 0
	}
	in, err := r.streams.Get(ctx, stream, age)
	if err == nil && c.last.Load() != nil && c.of == looks.ContentOf(in.CachedInfo()) {
		c.stored, c.next = stored, began.Add(countEvery)
		return
	}
	var n counted
	if err == nil {
		n, err = r.countMatching(ctx, stream, filter)
	}
	c.stored, c.next = stored, time.Now().Add(countEvery)
	if err == nil {
		c.of = looks.ContentOf(in.CachedInfo())
		c.last.Store(&n)
		c.soon = time.Now().Add(100 * time.Since(began))
		c.next = later(c.next, c.soon)
	}
}

// stored is how many messages this instance has put into the dead letters and the retry stream.
func (r *Relay) stored() (n uint64) {
	for _, rt := range r.all() {
		n += rt.count.parked.Load() + rt.count.aside.Load()
		for i := range rt.count.letters {
			n += rt.count.letters[i].Load()
		}
	}
	return n
}

// countMatching is how many messages of a stream match, and the oldest.
func (r *Relay) countMatching(ctx context.Context, stream, filter string) (c counted, err error) {
	n, header, err := audit.Matching(ctx, r.nc, r.api, stream, filter)
	if err != nil || n == 0 {
		return c, err
	}
	return counted{n, publishedAt(header)}, nil
}
