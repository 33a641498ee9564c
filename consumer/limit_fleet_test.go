package consumer

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
)

// sharing are instances of a service that share limits.
type sharing struct {
	*world
	nodes  []*natstest.Server
	relays []*Relay
	count  atomic.Int64 // handled

	mu     sync.Mutex
	now    int // running
	most   int
	starts []time.Time
	waits  []time.Duration // from publishing to the start of each message
	used   time.Duration   // sum of what handlers took
}

func newSharing(t *testing.T, servers int) *sharing {
	var nodes []*natstest.Server
	if servers == 1 {
		nodes = []*natstest.Server{natstest.Start(t)}
	} else {
		nodes = natstest.Cluster(t, servers)
	}
	w := &world{t: t, s: nodes[0], nc: nodes[0].Conn(t), js: nodes[0].JetStream(t)}
	if _, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, Replicas: servers}); err != nil {
		t.Fatal(err)
	}
	return &sharing{world: w, nodes: nodes}
}

func (s *sharing) join(name string, limits map[string]Limit, routes ...Route) {
	s.t.Helper()
	nc := s.nodes[len(s.relays)%len(s.nodes)].Conn(s.t, nats.ReconnectBufSize(-1))
	r, err := New(nc, Config{Instance: name, Logger: quiet, Limits: limits, Drain: 5 * time.Second, Replicas: len(s.nodes)}, routes...)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	s.t.Cleanup(func() { cancel(); <-done })
	s.relays = append(s.relays, r)
}

func (s *sharing) handler(takes time.Duration) Handler {
	return HandlerFunc(func(ctx context.Context, m *Msg) error {
		began := time.Now()
		s.mu.Lock()
		s.starts = append(s.starts, began)
		s.waits = append(s.waits, began.Sub(m.Time))
		s.now++
		s.most = max(s.most, s.now)
		s.mu.Unlock()
		time.Sleep(takes)
		s.mu.Lock()
		s.now--
		s.used += time.Since(began)
		s.mu.Unlock()
		s.count.Add(1)
		return nil
	})
}

func (s *sharing) running() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *sharing) mostNow() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most
}

// forget begins the figures anew.
func (s *sharing) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.most, s.starts, s.waits, s.used = s.now, nil, nil, 0
}

func quantile(list []time.Duration, q float64) time.Duration {
	list = slices.Sorted(slices.Values(list))
	return list[min(len(list)-1, int(q*float64(len(list))))]
}

// run has instances with that limit, all on the same route, and waits until they are ready.
func (s *sharing) run(n int, limits map[string]Limit, takes time.Duration) {
	for i := range n {
		s.join(fmt.Sprint("i", i), limits, Route{Name: "a", Subjects: []string{"orders.>"}, Limits: slices.Sorted(maps.Keys(limits)), Handler: s.handler(takes)})
	}
	s.ready()
}

func (s *sharing) ready() {
	s.eventually("all are ready", func() bool {
		return !slices.ContainsFunc(s.relays, func(r *Relay) bool { return r.Ready() != nil })
	})
}

// backlog publishes so many messages at once.
func (s *sharing) backlog(n int, subject func(i int) string) {
	for i := range n {
		if _, err := s.js.PublishAsync(subject(i), nil, jetstream.WithStallWait(time.Minute)); err != nil {
			s.t.Fatal(err)
		}
	}
	<-s.js.PublishAsyncComplete()
}

// trickle publishes n messages, one in every pause on average, and returns once all are handled.
func (s *sharing) trickle(n int, pause time.Duration) {
	for i := range n {
		s.publish(fmt.Sprintf("orders.%d", i), 1)
		time.Sleep(rand.N(2 * pause))
	}
	s.eventually("all are handled", func() bool { return s.count.Load() >= int64(n) })
}

func (s *sharing) figures() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("%d at once at most; started after p50 %v p90 %v p99 %v max %v", s.most, quantile(s.waits, .5), quantile(s.waits, .9), quantile(s.waits, .99), quantile(s.waits, 1))
}

// lately is how many handlers started in the last d.
func (s *sharing) lately(d time.Duration) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.starts {
		if time.Since(at) < d {
			n++
		}
	}
	return n
}

// A limit of one over five instances that are half busy: the part goes to whoever waits, within milliseconds. It took a second on average, and
// eight at most.
func TestLimits_regressionSmallOnesAtLightLoad_timed(t *testing.T) {
	timed(t)
	s := newSharing(t, 3)
	s.run(5, map[string]Limit{"one": {Concurrency: 1, Scope: ScopeService}}, 10*time.Millisecond)
	s.trickle(100, 20*time.Millisecond)
	t.Log("FIGURE", s.figures())
	if s.most > 1 || quantile(s.waits, .5) > 400*time.Millisecond { // half of them: beside other tests one in ten waited for seconds once, and nobody has looked into it
		t.Error(s.figures())
	}
}

// A route with ten limits over five instances: a third of the messages was not started within ten seconds, because the part of one limit went away
// while that of the next was awaited.
func TestLimits_regressionTenOnARoute_timed(t *testing.T) {
	timed(t)
	s := newSharing(t, 1)
	limits := make(map[string]Limit)
	for i := range 10 {
		limits[fmt.Sprint("l", i)] = Limit{Concurrency: 1 + i%3, Scope: ScopeService}
	}
	s.run(5, limits, 10*time.Millisecond)
	s.trickle(50, 60*time.Millisecond)
	t.Log("FIGURE", s.figures())
	if s.most > 1 || quantile(s.waits, .5) > 3*time.Second {
		t.Error(s.figures())
	}
}

// Of five instances two have thousands of messages, and the others one now and then: the two have what the others do not use. A third of it
// was idle.
func TestLimits_regressionUnevenLoad_timed(t *testing.T) {
	timed(t)
	s := newSharing(t, 1)
	limits := map[string]Limit{"gateway": {Concurrency: 20, Scope: ScopeService}}
	for i := range 5 {
		s.join(fmt.Sprint("i", i), limits, Route{Name: fmt.Sprint("r", i), Subjects: []string{fmt.Sprintf("orders.%d.>", i)}, Limits: []string{"gateway"}, Handler: s.handler(50 * time.Millisecond)})
	}
	s.ready()
	s.backlog(4000, func(i int) string { return fmt.Sprintf("orders.%d.%d", i%2, i) })
	s.eventually("they are at it", func() bool { return s.count.Load() > 200 })
	s.mu.Lock()
	s.used = 0
	s.mu.Unlock()
	began := time.Now()
	for i := 0; time.Since(began) < 4*time.Second; i++ {
		s.publish(fmt.Sprintf("orders.%d.%d", 2+i%3, i), 1)
		time.Sleep(rand.N(100 * time.Millisecond))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	share := s.used.Seconds() / time.Since(began).Seconds() / 20
	t.Logf("FIGURE %.1f %% used, %d at once at most", 100*share, s.most)
	if s.most > 20 || share < 0.85 {
		t.Errorf("%.1f %% used, %d at once", 100*share, s.most)
	}
}

// A limit that a reload makes smaller while all its parts are in use holds as soon as what runs has ended, and so does a rate.
func TestLimits_regressionSmallerWhileAllAreBusy_timed(t *testing.T) {
	timed(t)
	s := newSharing(t, 1)
	set := func(places, rate int) map[string]Limit {
		return map[string]Limit{"gateway": {Concurrency: places, Scope: ScopeService}, "sms": {Rate: Rate{Count: rate, Per: time.Second}, Scope: ScopeService}}
	}
	s.run(3, set(20, 1000), 20*time.Millisecond)
	s.backlog(8000, func(i int) string { return fmt.Sprintf("orders.%d", i%500) })
	s.eventually("all parts are in use", func() bool { return s.mostNow() == 20 }) // for a moment only, at this rate
	change := func(places, rate int) {
		for _, r := range s.relays {
			if _, err := r.Change(t.Context(), Change{Limits: set(places, rate)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	change(7, 1000)
	s.eventually("seven at most", func() bool { return s.running() <= 7 })
	time.Sleep(2500 * time.Millisecond) // it holds within the lease, which is 2 s
	s.forget()
	s.eventually("some more", func() bool { return s.lately(time.Hour) > 100 })
	if s.mostNow() > 7 {
		t.Errorf("%d at once, 7 are allowed now", s.mostNow())
	}
	change(20, 1000)
	s.eventually("twenty again", func() bool { return s.mostNow() == 20 })
	change(20, 50)
	s.eventually("the rate holds", func() bool { return s.lately(time.Second) <= 60 })
	time.Sleep(2500 * time.Millisecond)
	s.forget()
	s.eventually("it goes on", func() bool { return s.lately(time.Hour) > 100 })
	if n := s.lately(time.Second); n > 60 {
		t.Errorf("%d started in a second, 50 are allowed", n)
	}
	change(20, 5000)
	s.eventually("all is handled", func() bool { return s.count.Load() == 8000 })
}

// Five instances have thousands of messages, and the limit is two: each has its turn.
func TestLimits_eachInstanceHasItsTurn_timed(t *testing.T) {
	timed(t)
	s := newSharing(t, 1)
	var counts [5]atomic.Int64
	work := s.handler(20 * time.Millisecond)
	for i := range counts {
		s.join(fmt.Sprint("i", i), map[string]Limit{"gateway": {Concurrency: 2, Scope: ScopeService}}, Route{
			Name: "a", Subjects: []string{"orders.>"}, Limits: []string{"gateway"}, Concurrency: 32,
			Handler: HandlerFunc(func(ctx context.Context, m *Msg) error {
				counts[i].Add(1)
				return work.Handle(ctx, m)
			}),
		})
	}
	s.ready()
	s.backlog(2000, func(i int) string { return fmt.Sprintf("orders.%d", i%40) })
	s.eventually("each has begun", func() bool {
		for i := range counts {
			if counts[i].Load() == 0 {
				return false
			}
		}
		return true
	})
	for i := range counts {
		counts[i].Store(0)
	}
	began := s.count.Load()
	s.eventually("three hundred more are handled", func() bool { return s.count.Load() > began+300 })
	var list []int64
	for i := range counts {
		list = append(list, counts[i].Load())
	}
	if slices.Min(list) < slices.Max(list)/4 || s.mostNow() > 2 {
		t.Errorf("the instances started %d, %d at once at most", list, s.mostNow())
	}
}
