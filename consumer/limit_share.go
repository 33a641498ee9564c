package consumer

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/relaymq/relay/internal/beat"
	"github.com/relaymq/relay/internal/fleet"
	"github.com/relaymq/relay/internal/limit"
)

const (
	// noPart is why nothing starts under a limit of the service at first.
	noPart = "this instance has no part of it yet"
	// noParts is what routes with such a limit wait for while the bucket of the fleet is away.
	noParts = "a part of a limit"
	// maxParts is into how many parts a rate is divided at most.
	maxParts = 1000
	// partsMissed is for how long the instance may have no session before its routes complain: one that was lost is soon replaced.
	partsMissed = time.Second
)

// sharedLimit is a limit of which this instance has a part. It is kept until relay ends, so that what this instance does not need any more after a
// reload goes back to the others.
type sharedLimit struct {
	fleet        *fleet.Fleet
	ofPlaces     chan struct{} // gets a value when the demand has changed
	ofRate       chan struct{}
	hasPlaces    bool // it is kept; for shareLimits alone, as is hasRate
	hasRate      bool
	applying     sync.Mutex // held while what is below is made to hold; never with mu
	mu           sync.Mutex
	in           *limit.Limit // nil: nothing is needed
	l            Limit        // without bounds while it is not used here
	places, rate int          // parts
	others       map[string]int
	applied      limit.Part
}

// parts of the rate, and how many starts a second each is.
func (l Limit) parts() (n int, each float64) {
	n = min(l.Rate.Count, maxParts)
	return n, l.Rate.PerSecond() / float64(max(1, n))
}

// shareLimits keeps this instance's parts of the limits of the service until ctx is done.
func (r *Relay) shareLimits(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	shared := make(map[string]*sharedLimit)
	look := beat.NewTicker(time.Second)
	defer look.Stop()
	for {
		limits := r.serviceLimits()
		if len(limits) > 0 {
			r.grid.need()
		}
		for name, s := range shared {
			if _, wanted := limits[name]; !wanted {
				r.restLimit(name, s)
			}
		}
		f := r.grid.now()
		for name, l := range limits {
			if in := r.book.Get(name); f != nil && in != nil {
				if shared[name] == nil {
					shared[name] = &sharedLimit{fleet: f, ofPlaces: make(chan struct{}, 1), ofRate: make(chan struct{}, 1)}
				}
				shared[name].use(in, l)
				shared[name].run(ctx, name, l, &running)
			}
		}
		r.tellOfParts(limits, time.Now())
		joined := r.grid.joined
		if f != nil {
			joined = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-r.limitsSet:
		case <-joined:
		case <-look.C:
			look.Next()
		}
	}
}

// serviceLimits are those that hold over all instances, and that a route of this one names.
func (r *Relay) serviceLimits() map[string]Limit {
	list := make(map[string]Limit)
	for name, l := range r.Limits() {
		if l.divided() && slices.ContainsFunc(r.all(), func(rt *route) bool { return slices.Contains(rt.cfg.Limits, name) }) {
			list[name] = l.WithDefaults()
		}
	}
	return list
}

// tellOfParts has routes complain that can start nothing because this instance has no session.
func (r *Relay) tellOfParts(limits map[string]Limit, now time.Time) {
	since, err := r.grid.reason()
	for _, rt := range r.all() {
		i := slices.IndexFunc(rt.cfg.Limits, func(name string) bool { _, shared := limits[name]; return shared })
		if i < 0 || err == nil {
			rt.troubles.mended(noParts, now)
		} else if now.Sub(since) >= partsMissed {
			rt.troubles.note(noParts, fmt.Errorf("this instance could not renew its lease, so it has no part of limit %s: %w", rt.cfg.Limits[i], err), now)
		}
	}
}

// use has the part of this instance hold for a limit.
func (s *sharedLimit) use(in *limit.Limit, l Limit) {
	in.Fence(s.fleet.Valid)
	in.Watch(s.poke)
	s.mu.Lock()
	s.in, s.l = in, l
	s.mu.Unlock()
	s.apply(true)
}

// poke says that the demand has changed. It must not block.
func (s *sharedLimit) poke() {
	for _, c := range []chan struct{}{s.ofPlaces, s.ofRate} {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// restLimit is for a limit that no route of this instance names any more, or that each instance has for itself now. What is in use goes back as
// handlers end.
func (r *Relay) restLimit(name string, s *sharedLimit) {
	r.limitMu.Lock()
	defer r.limitMu.Unlock()
	l, there := r.limits[name]
	own := there && !l.divided()
	s.applying.Lock() // what is applied now comes before what follows
	s.mu.Lock()
	in, first := s.in, s.l.Concurrency > 0 || s.l.Rate.Count > 0
	if s.l = (Limit{}); own {
		s.in = nil
	}
	s.mu.Unlock()
	s.applying.Unlock()
	switch {
	case in == nil || !first && !own:
	case own:
		in.Watch(nil)
		r.setLimit(name, l)
	default:
		in.Close(noPart)
	}
}

// run keeps the parts that the limit has.
func (s *sharedLimit) run(ctx context.Context, name string, l Limit, running *sync.WaitGroup) {
	if l.Concurrency > 0 && !s.hasPlaces {
		s.hasPlaces = true
		running.Go(func() {
			s.fleet.Share(ctx, fleet.Parts{
				Name: name, Total: func() int { return s.now().Concurrency }, Changed: s.ofPlaces, Demand: s.wantsPlaces, Used: s.used,
				Allow: func(n int, others map[string]int) { s.allow(&s.places, n, others) },
			})
		})
	}
	if l.Rate.Count > 0 && !s.hasRate {
		s.hasRate = true
		running.Go(func() {
			s.fleet.Share(ctx, fleet.Parts{
				Name: name + ".rate", Total: func() int { n, _ := s.now().parts(); return n }, Changed: s.ofRate, Demand: s.wantsRate,
				Used:  func() int { return 0 },
				Allow: func(n int, others map[string]int) { s.allow(&s.rate, n, others) },
			})
		})
	}
}

func (s *sharedLimit) now() Limit {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.l
}

// demand is what is wanted of the limit here. It may stop counting those who wait at most.
func (s *sharedLimit) demand(most func(Limit) int) (d limit.Demand, l Limit) {
	s.mu.Lock()
	in, l := s.in, s.l
	s.mu.Unlock()
	if in != nil {
		d = in.Demand(most(l))
	}
	if l == (Limit{}) {
		d.Waiting, d.Since = 0, time.Time{} // of a limit that rests
	}
	return d, l
}

func (s *sharedLimit) used() int {
	d, _ := s.demand(func(Limit) int { return 0 })
	return d.Used
}

func (s *sharedLimit) wantsPlaces() fleet.Demand {
	d, _ := s.demand(func(l Limit) int { return l.Concurrency })
	return fleet.Demand{Want: d.Used + d.Waiting, Since: d.Since}
}

// rateSoon is how soon the messages that wait are to start when an instance asks for parts of a rate: it wants as many as let so many start
// in that time, and no more, since others have use for them, too.
const rateSoon = 50 * time.Millisecond

func (s *sharedLimit) wantsRate() fleet.Demand {
	soon := func(l Limit) float64 { // messages that a part lets start in that time
		_, each := l.parts()
		return each * rateSoon.Seconds()
	}
	d, l := s.demand(func(l Limit) int {
		n, _ := l.parts()
		return 1 + int(float64(n)*soon(l))
	})
	if d.Waiting == 0 {
		return fleet.Demand{}
	}
	return fleet.Demand{Want: int(math.Ceil(float64(d.Waiting) / soon(l))), Since: d.Since}
}

// allow notes that this instance has so many parts, and what the others have.
func (s *sharedLimit) allow(part *int, n int, others map[string]int) {
	s.mu.Lock()
	*part = n
	if part == &s.places || s.l.Concurrency == 0 {
		s.others = others
	}
	s.mu.Unlock()
	s.apply(false)
}

// apply has the part that this instance has hold, also if it is as before when that is asked for.
func (s *sharedLimit) apply(anyway bool) {
	s.applying.Lock()
	defer s.applying.Unlock()
	s.mu.Lock()
	in, resting := s.in, s.l == Limit{}
	p := s.part()
	same := p == s.applied
	s.applied = p
	s.mu.Unlock()
	if in != nil && !resting && (anyway || !same) {
		in.Allot(p)
	}
}

// part is what this instance has: its bounds, why that is nothing, and what the others have. The lock is held.
func (s *sharedLimit) part() (p limit.Part) {
	n, each := s.l.parts()
	p.Bounds = limit.Bounds{Places: min(s.places, s.l.Concurrency), Rate: float64(s.rate) * each, Burst: max(1, s.l.Burst*s.rate/max(1, n))}
	if n > 0 {
		p.Bounds.Rate = max(p.Bounds.Rate, 1e-9) // what has no part gains no tokens
	}
	if s.l.Concurrency > 0 && s.places == 0 || n > 0 && s.rate == 0 {
		p.Lacks = "this instance has no part of it now"
	}
	var who []string
	for _, name := range slices.Sorted(maps.Keys(s.others)) {
		who = append(who, fmt.Sprintf("%s %d", name, s.others[name]))
	}
	if len(who) > 0 {
		p.Note = "others have " + strings.Join(who, ", ")
		if s.l.Concurrency == 0 {
			p.Note += fmt.Sprintf(" of %d parts", n)
		}
	}
	return p
}
