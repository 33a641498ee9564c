package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/supervisor"
)

// Five instances before an endpoint that is away asked five times as often as one, and learned of its recovery one after the other.
func TestRelay_regressionInstancesShareWhatTheyLearnOfAnOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var down atomic.Bool
	var asked atomic.Int64
	var flows [5]atomic.Int64 // when each instance handled a message after the outage, in Unix nanoseconds
	var recovered atomic.Int64
	var relays []*Relay
	for i := range flows {
		r, _ := w.start(Config{Instance: fmt.Sprint("i", i), Logger: quiet}, Route{
			Name: "billing", Subjects: []string{"orders.>"}, Start: StartAll, Concurrency: 4,
			Supervisor: supervisor.Config{Restart: supervisor.Backoff{Min: 500 * time.Millisecond}},
			Handler: HandlerFunc(func(context.Context, *Msg) error {
				if down.Load() {
					asked.Add(1)
					return NotStarted(errors.New("connection refused"))
				}
				if recovered.Load() > 0 {
					flows[i].CompareAndSwap(0, time.Now().UnixNano())
				}
				return nil
			}),
		})
		relays = append(relays, r)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				if _, err := w.js.PublishAsync(fmt.Sprintf("orders.k%d", n%20), nil); err != nil {
					t.Error(err)
					return
				}
			}
		}
	}()
	time.Sleep(500 * time.Millisecond)
	down.Store(true)
	w.eventually("the route waits on all", func() bool {
		for _, r := range relays {
			if s := r.Status().Routes[0].State; s == control.StateFlowing {
				return false
			}
		}
		return true
	})
	first := asked.Load()
	began := time.Now()
	time.Sleep(6 * time.Second)
	during, took := asked.Load()-first, time.Since(began)
	recovered.Store(time.Now().UnixNano())
	down.Store(false)
	w.eventually("all flow", func() bool {
		for i := range flows {
			if flows[i].Load() == 0 {
				return false
			}
		}
		return true
	})
	close(stop)
	<-stopped
	earliest, latest := flows[0].Load(), flows[0].Load()
	for i := range flows {
		earliest, latest = min(earliest, flows[i].Load()), max(latest, flows[i].Load())
	}
	t.Logf("%d questions until all waited, %d in the %v after; the last instance handled a message %v after the first", first, during, took, time.Duration(latest-earliest))
	// One instance asks two messages about every two seconds; without hints five ask 30 in that time.
	if most := int64(2*took/(2*time.Second)) + 8; during > most {
		t.Errorf("%d questions in %v, want %d at most", during, took, most)
	}
	if d := time.Duration(latest - earliest); d > 3*time.Second { // 0.2 s on a machine that does nothing else
		t.Errorf("the last instance knew %v after the first", d)
	}
}
