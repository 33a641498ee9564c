package consumer

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// apiCount counts the requests to the JetStream API by their subject.
type apiCount struct {
	*world
	mu     sync.Mutex
	count  map[string]int
	parked map[string]bool // durables whose latest pull is one for long
}

func (w *world) apiCount() *apiCount {
	a := &apiCount{world: w, count: make(map[string]int), parked: make(map[string]bool)}
	sub, err := w.nc.Subscribe("$JS.API.>", func(m *nats.Msg) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.count[m.Subject]++
		if durable, pull := strings.CutPrefix(m.Subject, "$JS.API.CONSUMER.MSG.NEXT."); pull {
			var body struct{ Expires time.Duration }
			a.parked[durable] = json.Unmarshal(m.Data, &body) == nil && body.Expires == 30*time.Second
		}
	})
	w.do(err)
	w.t.Cleanup(func() { _ = sub.Unsubscribe() })
	w.do(w.nc.Flush())
	return a
}

// during is how often what begins with each of these was asked in so long.
func (a *apiCount) during(d time.Duration, subjects ...string) map[string]int {
	a.t.Helper()
	a.do(a.nc.Flush())
	a.mu.Lock()
	clear(a.count)
	a.mu.Unlock()
	time.Sleep(d)
	a.do(a.nc.Flush())
	a.mu.Lock()
	defer a.mu.Unlock()
	found := make(map[string]int)
	for subject, n := range a.count {
		for _, s := range subjects {
			if strings.HasPrefix(subject, "$JS.API."+s) {
				found[s] += n
			}
		}
	}
	return found
}

// idle waits until all these durables have a pull that is parked for long.
func (a *apiCount) idle(durables ...string) {
	a.t.Helper()
	a.eventually("the pulls are parked", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, d := range durables {
			if !a.parked[d] {
				return false
			}
		}
		return true
	})
}

// An idle instance renewed the pull of each durable every two seconds.
func TestRelay_regressionAnIdleDurableIsSeldomPulled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.apiCount()
	handled := make(chan string, 100)
	handler := HandlerFunc(func(_ context.Context, m *Msg) error { handled <- m.Subject; return nil })
	_, stop := w.start(Config{Logger: quiet}, Route{Name: "billing", Subjects: []string{"orders.a"}, Handler: handler}, Route{Name: "shipping", Subjects: []string{"orders.b"}, Handler: handler})
	a.idle("ORDERS.billing", "ORDERS.shipping", "RELAY_RETRY.billing--ORDERS", "RELAY_RETRY.shipping--ORDERS")
	if n := a.during(5*time.Second, "CONSUMER.MSG.NEXT.")["CONSUMER.MSG.NEXT."]; n > 4 {
		t.Errorf("%d pulls in five seconds, of four durables", n)
	}
	for _, d := range []string{"billing", "shipping"} {
		if n := w.info("ORDERS", d).NumWaiting; n == 0 || n > 2 {
			t.Errorf("%s has %d pulls outstanding", d, n)
		}
	}
	before := time.Now()
	w.publish("orders.a", 50)
	for range 50 {
		<-handled
	}
	if took := time.Since(before); took > 3*time.Second {
		t.Errorf("the first messages after the pause took %v", took)
	}
	a.idle("ORDERS.billing", "ORDERS.shipping")
	before = time.Now()
	w.do(stop())
	if took := time.Since(before); took > 5*time.Second {
		t.Errorf("an idle instance took %v to stop", took)
	}
}

// What is parked for long would bring a message although nothing may be pulled.
func TestRelay_aParkedPullIsTakenBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.apiCount()
	var handled atomic.Int64
	r, _ := w.start(Config{Logger: quiet}, Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error {
		handled.Add(1)
		return nil
	})})
	a.idle("ORDERS.billing")
	good := w.info("ORDERS", "billing").Config
	edited := good
	edited.MaxDeliver = 2
	_, err := w.js.UpdateConsumer(t.Context(), "ORDERS", edited)
	w.do(err)
	w.eventually("it is said", func() bool { return r.Ready() != nil })
	w.stays("nothing is asked for", func() bool { return w.info("ORDERS", "billing").NumWaiting == 0 })
	w.publish("orders.a", 3)
	w.eventually("they wait", func() bool { return w.info("ORDERS", "billing").NumPending == 3 })
	_, err = w.js.UpdateConsumer(t.Context(), "ORDERS", good)
	w.do(err)
	w.eventually("it goes on by itself", func() bool { return handled.Load() == 3 && r.Ready() == nil })
	w.settled("ORDERS", "billing")
	if n := w.info("ORDERS", "billing").NumRedelivered; n > 0 {
		t.Errorf("%d came again", n)
	}
}

// The watchdogs of all durables, and those who count, asked for themselves of the same streams, every few seconds.
func TestRelay_regressionAnIdleInstanceAsksLittle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.apiCount()
	handled := make(chan string, 100)
	var routes []Route
	var durables []string
	for _, name := range []string{"a", "b", "c", "d"} {
		routes = append(routes, Route{Name: name, Subjects: []string{"orders." + name}, Handler: HandlerFunc(func(_ context.Context, m *Msg) error { handled <- m.Subject; return nil })})
		durables = append(durables, "ORDERS."+name, "RELAY_RETRY."+name+"--ORDERS")
	}
	r, _ := w.start(Config{Logger: quiet}, routes...)
	a.idle(durables...)
	const seconds = 12
	n := a.during(seconds*time.Second, "STREAM.INFO.ORDERS", "STREAM.INFO.RELAY_RETRY", "STREAM.INFO.RELAY_DLQ", "CONSUMER.INFO.", "CONSUMER.INFO.ORDERS.a")
	for subject, most := range map[string]int{
		// Each was asked by four durables every five seconds, and by others.
		"STREAM.INFO.ORDERS": 7, "STREAM.INFO.RELAY_RETRY": 9, "STREAM.INFO.RELAY_DLQ": 7,
		// Of eight durables: once in half a minute, and by audits now and then.
		"CONSUMER.INFO.": 16,
	} {
		if n[subject] > most {
			t.Errorf("%s: asked %d times in %d seconds, want at most %d", subject, n[subject], seconds, most)
		}
	}
	// What an operator asks for is not from then.
	w.do(w.js.DeleteConsumer(t.Context(), "ORDERS", "d"))
	w.publish("orders.d", 3)
	w.publish("orders.a", 3)
	for range 3 {
		<-handled
	}
	w.eventually("the durable is missed", func() bool {
		err := r.Ready()
		return err != nil && strings.Contains(err.Error(), "durable d was deleted")
	})
}
