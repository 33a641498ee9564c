package limits

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
	// maxParts is into how many parts a rate is divided at most.
	maxParts = 1000
)

// sharedLimit is a limit of which this instance has a part. It is kept until relay ends, so that what this instance does not need any more after a
// reload goes back to the others.
type sharedLimit struct {
	fleet        *fleet.Fleet
	ofPlaces     chan struct{} // gets a value when the demand has changed
	ofRate       chan struct{}
	hasPlaces    bool // the part is kept up to date; only Share reads it, and hasRate
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

// Sharing is what decides which limits this instance shares with others.
type Sharing struct {
	Membership *fleet.Membership // of this instance
	// Named tells whether a route of this instance names the limit.
	Named func(limit string) bool
	// Tell is called about once a second, with the limits that are shared.
	Tell func(shared map[string]Limit)
}

// Share keeps this instance's parts of the limits of the service until ctx is done.
func (s *Set) Share(ctx context.Context, with Sharing) {
	var running sync.WaitGroup
	defer running.Wait()
	shared := make(map[string]*sharedLimit)
	look := beat.NewTicker(time.Second)
	defer look.Stop()
	for {
		limits := s.ofService(with.Named)
		if len(limits) > 0 {
			with.Membership.Need()
		}
		for name, l := range shared {
			if _, wanted := limits[name]; !wanted {
				s.rest(name, l)
			}
		}
		f := with.Membership.Now()
		for name, l := range limits {
			if in := s.book.Get(name); f != nil && in != nil {
				if shared[name] == nil {
					shared[name] = &sharedLimit{fleet: f, ofPlaces: make(chan struct{}, 1), ofRate: make(chan struct{}, 1)}
				}
				shared[name].use(in, l)
				shared[name].run(ctx, name, l, &running)
			}
		}
		with.Tell(limits)
		joined := with.Membership.Joined()
		if f != nil {
			joined = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
		case <-joined:
		case <-look.C:
			look.Next()
		}
	}
}

// ofService are the limits that hold over all instances, and that a route of this one names.
func (s *Set) ofService(named func(limit string) bool) map[string]Limit {
	list := make(map[string]Limit)
	for name, l := range s.Now() {
		if l.divided() && named(name) {
			list[name] = l.WithDefaults()
		}
	}
	return list
}

// use has the part of this instance hold for a limit.
func (s *sharedLimit) use(in *limit.Limit, l Limit) {
	in.Fence(s.fleet.Valid)
	in.Watch(s.poke)
	s.mu.Lock()
	s.in, s.l = in, l
	s.mu.Unlock()
	s.apply(always)
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

// rest is for a limit that no route of this instance names any more, or that each instance has for itself now. What is in use goes back as
// handlers end.
func (s *Set) rest(name string, shared *sharedLimit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, there := s.limits[name]
	own := there && !l.divided()
	shared.applying.Lock() // what is applied now comes before what follows
	shared.mu.Lock()
	in, first := shared.in, shared.l.Concurrency > 0 || shared.l.Rate.Count > 0
	if shared.l = (Limit{}); own {
		shared.in = nil
	}
	shared.mu.Unlock()
	shared.applying.Unlock()
	switch {
	case in == nil || !first && !own:
	case own:
		in.Watch(nil)
		s.set(name, l)
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
	s.apply(ifChanged)
}

// when is in which case a part is applied.
type when uint8

const (
	always when = iota
	ifChanged
)

// apply has the part that this instance has hold.
func (s *sharedLimit) apply(when when) {
	s.applying.Lock()
	defer s.applying.Unlock()
	s.mu.Lock()
	in, resting := s.in, s.l == Limit{}
	p := s.part()
	same := p == s.applied
	s.applied = p
	s.mu.Unlock()
	if in != nil && !resting && (when == always || !same) {
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
