package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/orders"
	"github.com/relaymq/relay/supervisor"
)

// It said ready for as long as a cluster had no quorum.
func TestReady_regressionAnOutageOfTheClusterIsNotReady(t *testing.T) {
	t.Parallel()
	nodes, w := cluster(t)
	w.replicated(nodes, "MAIN", "main.>", 3)
	r, stop := launch(t, w.nc, Config{Replicas: 3, Logger: quiet}, Route{
		Name: "main", Subjects: []string{"main.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil }),
	})
	w.eventually("it is ready", func() bool { return r.Ready() == nil })
	nodes[1].Stop()
	nodes[2].Stop()
	w.unready(r, "durable main on MAIN", "it cannot be used since")
	nodes[1].Restart()
	nodes[2].Restart()
	w.eventually("it is ready again", func() bool { return r.Ready() == nil })
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// What relay stores in is missing, and no message has needed it yet.
func TestReady_ownStreamsThatAreMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, _ := w.start(Config{Logger: quiet}, Route{
		Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil }),
	})
	if err := w.js.DeleteStream(t.Context(), "RELAY_DLQ"); err != nil {
		t.Fatal(err)
	}
	w.eventually("it says so", func() bool {
		err := r.Ready()
		return err != nil && strings.Contains(err.Error(), "the dead letters: ") && strings.Contains(err.Error(), "(since ")
	})
}

// Messages wait, nothing starts, and nobody said so.
func TestReady_regressionARouteThatStartsNothingAlthoughMessagesWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, _ := w.start(Config{Logger: quiet, Stalled: time.Second}, Route{
		Name: "billing", Subjects: []string{"orders.>"}, Key: "route",
		Supervisor: supervisor.Config{TripAfter: new(1), Restart: supervisor.Backoff{Policy: supervisor.Constant, Min: time.Hour, Max: time.Hour}},
		Handler:    HandlerFunc(func(context.Context, *Msg) error { return errors.New("no such table") }),
	})
	w.publish("orders.eu", 3)
	w.unready(r, "route billing", "it has started no message since", "wait here")
	bucket, err := orders.Open(t.Context(), w.js, "", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bucket.Give(t.Context(), orders.Order{Route: "billing", State: orders.Paused}); err != nil {
		t.Fatal(err)
	}
	w.eventually("an operator wants it so", func() bool { return r.Ready() == nil })
}

// A route of which nothing but failures started was ready, for as long as it asked.
func TestReady_regressionARouteThatStartsOnlyWhatFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var up atomic.Bool
	r, _ := w.start(Config{Logger: quiet, Stalled: time.Second}, Route{
		Name: "billing", Subjects: []string{"orders.>"},
		Handler: HandlerFunc(func(context.Context, *Msg) error {
			if up.Load() {
				return nil
			}
			return errors.New("status 503")
		}),
	})
	for i := range 200 {
		w.publish(fmt.Sprint("orders.", i), 1)
	}
	w.unready(r, "route billing: it has started only messages that fail since")
	up.Store(true)
	w.eventually("it is ready again", func() bool { return r.Ready() == nil })
}

// A route that has nothing to do, or whose handler takes long, does not stall.
func TestReady_aBusyRouteAndAnIdleOneDoNotStall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	finish := make(chan struct{})
	r, stop := w.start(Config{Logger: quiet, Stalled: time.Second}, Route{
		Name: "billing", Subjects: []string{"orders.>"}, Concurrency: 1,
		Handler: HandlerFunc(func(context.Context, *Msg) error { <-finish; return nil }),
	})
	w.publish("orders.eu", 3)
	for began := time.Now(); time.Since(began) < 3*time.Second; time.Sleep(50 * time.Millisecond) { // for what must not happen
		if err := r.Ready(); err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- stop() }()
	w.eventually("a relay that drains is not ready", func() bool {
		err := r.Ready()
		return err != nil && strings.Contains(err.Error(), "draining")
	})
	close(finish)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
