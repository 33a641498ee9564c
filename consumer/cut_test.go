package consumer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/supervisor"
)

// A connection that is lost at any moment of a start is no reason to end, and none to stand still: what was asked over it is asked again.
func TestStart_theConnectionIsLostMeanwhile(t *testing.T) {
	t.Parallel()
	// started is how long a start takes until a message is handled.
	started := func(t *testing.T, meanwhile func(*natstest.Proxy)) time.Duration {
		w, proxy := wired(t)
		w.publish("orders.a", 1)
		var handled atomic.Int64
		began := time.Now()
		meanwhile(proxy)
		w.startAt(proxy.URL(), Route{
			Name: "billing", Subjects: []string{"orders.>"}, Order: supervisor.OrderKey, Start: Start{Policy: "all"},
			Handler: HandlerFunc(func(context.Context, *Msg) error { handled.Add(1); return nil }),
		})
		w.eventually("it is handled", func() bool { return handled.Load() > 0 })
		return time.Since(began)
	}
	for range 12 {
		t.Run("", func(t *testing.T) {
			at := time.Duration(rand.Int64N(int64(60 * time.Millisecond)))
			took := started(t, func(proxy *natstest.Proxy) { time.AfterFunc(at, proxy.Cut) })
			if took < 4*time.Second { // 0.2 s; what waited for an answer that was lost stood for 5 or 10 s
				return
			}
			// Beside busy processes any start takes long.
			if quiet := started(t, func(*natstest.Proxy) {}); took > 4*time.Second+4*quiet {
				t.Errorf("cut after %v: it was handled after %v, and without a cut after %v", at, took, quiet)
			}
		})
	}
}

// The first delivery to the holder of a route tells the pin of the durable. Nothing came for a minute when it was lost with the connection.
func TestRelay_regressionTheFirstDeliveryIsLostWithTheConnection(t *testing.T) {
	t.Parallel()
	w, proxy := wired(t)
	var handled atomic.Int64
	w.startAt(proxy.URL(), Route{
		Name: "billing", Subjects: []string{"orders.>"}, Instances: InstancesOne, Start: Start{Policy: "all"}, AckWait: 2 * time.Second,
		Handler: HandlerFunc(func(context.Context, *Msg) error { handled.Add(1); return nil }),
	})
	w.eventually("it pulls", func() bool { return w.info("ORDERS", "billing").NumWaiting > 0 })
	proxy.Stall()
	w.publish("orders.a", 1)
	w.eventually("it is delivered", func() bool { return w.info("ORDERS", "billing").Delivered.Consumer > 0 })
	proxy.Cut()
	proxy.Resume()
	cut := time.Now()
	w.publish("orders.b", 1)
	w.eventually("both are handled", func() bool { return handled.Load() == 2 })
	if took := time.Since(cut); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
}

// A connection that is lost several times while a route works costs about the ack wait: until then the server believes that what it sent over it is being
// handled. On top of that nothing waits for an answer that was lost, 5 s and more.
func TestRelay_theConnectionIsLostAgainAndAgain(t *testing.T) {
	t.Parallel()
	const n = 100
	succeed := HandlerFunc(func(context.Context, *Msg) error { return nil })
	fail := func(times int) Handler {
		return HandlerFunc(func(_ context.Context, m *Msg) error {
			if m.Sequence%2 == 0 && m.Attempt <= times {
				return errors.New("no")
			}
			return nil
		})
	}
	quick := supervisor.Backoff{Min: 10 * time.Millisecond, Max: 50 * time.Millisecond}
	for what, c := range map[string]struct {
		route  Route
		change bool
		most   time.Duration
	}{
		"succeeds":    {route: Route{Handler: succeed}, most: 4500 * time.Millisecond},
		"in order":    {route: Route{Handler: succeed, Order: supervisor.OrderKey}, most: 4500 * time.Millisecond},
		"is retried":  {route: Route{Handler: fail(1), Retry: Retry{Backoff: quick}}, most: 4500 * time.Millisecond},
		"is dead":     {route: Route{Handler: fail(2), Retry: Retry{MaxAttempts: 1}}, most: 10 * time.Second}, // invariant I-18
		"is reloaded": {route: Route{Handler: succeed}, change: true, most: 4500 * time.Millisecond},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			for range 4 {
				t.Run("", func(t *testing.T) {
					w, proxy := wired(t)
					rt := c.route
					rt.Name, rt.Subjects, rt.Start, rt.AckWait = "billing", []string{"orders.>"}, Start{Policy: "all"}, time.Second
					rt.Supervisor = supervisor.Config{TripAfter: new(int), RouteTrip: supervisor.RouteTrip{Of: new(int)}} // nothing waits for a probe
					r := w.startAt(proxy.URL(), rt)
					for i := range n {
						w.publish(fmt.Sprintf("orders.%d", i%5), 1)
					}
					began := time.Now()
					for range 4 {
						time.AfterFunc(time.Duration(rand.Int64N(int64(200*time.Millisecond))), proxy.Cut)
					}
					if c.change {
						rt.Instances = InstancesOne
						w.eventually("it is reloaded, which is refused while the connection is away", func() bool {
							_, err := r.Change(t.Context(), Change{Update: []Route{rt}})
							return err == nil
						})
					}
					time.Sleep(200 * time.Millisecond)
					w.settled("ORDERS", "billing")
					if took := time.Since(began); took > c.most {
						t.Errorf("all is settled after %v", took)
					}
				})
			}
		})
	}
}

// A reload while the connection is away is refused, and says why. It said "outbound buffer limit exceeded".
func TestChange_regressionTheConnectionIsAway(t *testing.T) {
	t.Parallel()
	w, proxy := wired(t)
	rt := Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil })}
	r := w.startAt(proxy.URL(), rt)
	proxy.Stall()
	proxy.Cut()
	w.eventually("the connection is away", func() bool { return !r.engine.Conn.IsConnected() })
	rt.Instances = InstancesOne
	_, err := r.Change(t.Context(), Change{Update: []Route{rt}})
	if err == nil || !strings.Contains(err.Error(), "the connection to NATS is away") || strings.Contains(err.Error(), "buffer") {
		t.Errorf("got %v", err)
	}
	proxy.Resume()
}
