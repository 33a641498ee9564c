package consumer

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// After the leader of a durable had stepped down, messages waited for up to a second: the first pull met no leader, and the next ones came
// after waits of 100, 200 and 400 ms. A plain consumer has a gap of some 20 ms.
func TestSource_regressionALeaderThatStepsDownLeavesNoGap(t *testing.T) {
	t.Parallel()
	nodes, w := cluster(t)
	w.replicated(nodes, "ORDERS", "orders.>", 3)
	var mu sync.Mutex
	worst := time.Duration(0)
	got := map[uint64]bool{}
	r, _ := launch(t, w.nc, Config{Replicas: 3, Logger: quiet}, Route{
		Name: "billing", Subjects: []string{"orders.>"}, Start: StartAll, Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
			mu.Lock()
			defer mu.Unlock()
			worst = max(worst, time.Since(m.Time))
			got[m.Sequence] = true
			return nil
		}),
	})
	w.eventually("it is ready", func() bool { return r.Ready() == nil })
	stop, stopped := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		defer func() { stopped <- n }()
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				if _, err := w.js.Publish(t.Context(), "orders.eu", nil); err != nil {
					t.Error(err)
					return
				}
				n++
			}
		}
	}()
	var gaps []time.Duration
	for range 8 {
		time.Sleep(700 * time.Millisecond)
		mu.Lock()
		worst = 0
		mu.Unlock()
		if _, err := w.nc.Request("$JS.API.CONSUMER.LEADER.STEPDOWN.ORDERS.billing", nil, 5*time.Second); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1500 * time.Millisecond)
		mu.Lock()
		gaps = append(gaps, worst.Round(time.Millisecond))
		mu.Unlock()
	}
	close(stop)
	n := <-stopped
	w.eventually("all are handled", func() bool { mu.Lock(); defer mu.Unlock(); return len(got) == n })
	t.Logf("the longest wait of a message beside each step-down: %v", gaps)
	slices.Sort(gaps)
	if median := gaps[len(gaps)/2]; median > 500*time.Millisecond { // some 40 ms on a machine that does nothing else
		t.Errorf("the median of the gaps is %v", median)
	}
}

// After the server of a durable's leader had been killed, messages waited for up to 0.65 s longer than those of a plain consumer: the new leader says
// so of pulls that are given up by then, and the next pull came when the back-off of the election was over.
func TestSource_regressionANewLeaderIsAskedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stream("ORDERS", "orders.>")
	r, stop := launch(t, w.nc, Config{Logger: quiet}, Route{
		Name: "billing", Subjects: []string{"orders.>"}, Start: StartAll, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil }),
	})
	w.eventually("it is ready", func() bool { return r.Ready() == nil })
	s := r.openSources()[0]
	stop() // from here on the test is the pull loop
	now := time.Now()
	say := func(status, text string) time.Duration {
		s.status(&nats.Msg{Subject: s.arrivals.Name() + ".p0.1", Header: nats.Header{"Status": {status}, "Description": {text}}}, now)
		return s.pulls.retryPull.Sub(now)
	}
	s.pulls.refused, s.arrivals.Requests.Last = 0, 1
	for i := range electingTries {
		if wait := say("503", ""); wait > 300*time.Millisecond {
			t.Fatalf("refusal %d: a wait of %v", i+1, wait)
		}
	}
	if wait := say("503", ""); wait != time.Second {
		t.Errorf("after longer than an election: a wait of %v", wait)
	}
	s.arrivals.Requests.Lanes[1].ID, s.arrivals.Requests.Lanes[1].Left = 2, 10 // while there was no leader
	if wait := say("409", "Leadership Change"); wait != electingPause {
		t.Errorf("there is a leader: a wait of %v", wait)
	}
	if out, _ := s.arrivals.Requests.Outstanding(); out > 0 {
		t.Errorf("%d messages are waited for that nobody was asked for", out)
	}
	s.arrivals.Requests.Lanes[1].ID, s.arrivals.Requests.Lanes[1].Left = 3, 10
	now = now.Add(2 * electingPause)
	s.pulls.refused = 0
	say("409", "Leadership Change")
	if out, _ := s.arrivals.Requests.Outstanding(); out != 10 {
		t.Error("another pull that is told has the new one given up")
	}
}
