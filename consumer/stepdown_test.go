package consumer

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"
)

// After the leader of a durable had stepped down, messages waited for up to a second: the first pull met no leader, and the next ones came
// after waits of 100, 200 and 400 ms. A plain consumer has a gap of some 20 ms.
func TestSource_regressionALeaderThatStepsDownLeavesNoGap_timed(t *testing.T) {
	timed(t)
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
