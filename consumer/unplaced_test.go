package consumer

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/control"
)

// A stream that does not exist ended the start, although other routes were well. Its routes are stopped alone, say so, and begin when somebody has made it.
func TestStart_regressionAMissingStreamStopsItsRoutesOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var orders, gone, nowhere, changed atomic.Int64
	count := func(n *atomic.Int64) Handler {
		return HandlerFunc(func(context.Context, *Msg) error { n.Add(1); return nil })
	}
	all := func(name, subject string, n *atomic.Int64) Route {
		return Route{Name: name, Subjects: []string{subject}, Start: StartAll, Handler: count(n)}
	}
	named := all("named", "gone.>", &gone)
	named.Stream = "GONE"
	r, _ := w.startUnready(Config{Logger: quiet}, all("billing", "orders.>", &orders), named,
		all("a", "nowhere.a.>", &nowhere), all("b", "nowhere.b.>", &nowhere), all("changed", "nothing.>", &changed), all("removed", "none.>", &changed))
	w.publish("orders.eu", 5)
	w.eventually("the other route works", func() bool { return orders.Load() == 5 })
	w.unready(r, "stream GONE does not exist", `no stream holds subject "nowhere.a.>"`, `no stream holds subject "nothing.>"`)
	for _, rt := range r.Status().Routes {
		if stopped := rt.State == control.StateStopped && rt.Why != "" && rt.Since != nil; stopped != (rt.Name != "billing") {
			t.Errorf("%s is %s, %q, since %v", rt.Name, rt.State, rt.Why, rt.Since)
		}
	}

	// A route that waits for its stream can be changed and removed.
	if _, err := r.Remove(t.Context(), "removed"); err != nil {
		t.Fatal(err)
	}
	next := all("changed", "orders-2.>", &changed)
	if _, err := r.Update(t.Context(), next); err == nil || !strings.Contains(err.Error(), "no stream holds subject") {
		t.Fatalf("updated: %v", err)
	}
	w.stream("OTHER", "orders-2.>")
	if _, err := r.Update(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	w.publish("orders-2.x", 1)
	w.eventually("the changed route works", func() bool { return changed.Load() == 1 })

	w.stream("GONE", "gone.>")
	w.publish("gone.x", 2)
	w.stream("NOWHERE", "nowhere.>")
	w.publish("nowhere.a.x", 3)
	w.publish("nowhere.b.x", 4)
	w.eventually("they begin by themselves", func() bool { return gone.Load() == 2 && nowhere.Load() == 7 })
	w.eventually("all is well", func() bool { return r.Ready() == nil })
}

// When no route has a stream, there is nothing to wait for: somebody mistyped it.
func TestStart_noStreamAtAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := HandlerFunc(func(context.Context, *Msg) error { return nil })
	named := Route{Name: "named", Stream: "GONE", Subjects: []string{"gone.>"}, Handler: h}
	nowhere := Route{Name: "nowhere", Subjects: []string{"nowhere.>"}, Handler: h}
	for _, routes := range [][]Route{{named}, {nowhere}, {named, nowhere}} {
		err := w.refused(Config{}, routes...)
		var setup *SetupError
		if !errors.As(err, &setup) || strings.Contains(err.Error(), "it ran") {
			t.Errorf("%d routes: %v", len(routes), err)
		}
	}
}

// A work queue lets only one consumer have a subject. That was said in the server's words, after other durables had been made.
func TestStart_regressionAWorkQueueThatAnotherConsumerHas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.retention("JOBS", jetstream.WorkQueuePolicy, "jobs.>")
	route := Route{Name: "billing", Subjects: []string{"jobs.eu.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil })}
	for name, c := range map[string]jetstream.ConsumerConfig{
		"all of it": {},
		"a part":    {FilterSubject: "jobs.*.new"},
	} {
		c.Durable, c.AckPolicy = "theirs", jetstream.AckExplicitPolicy
		if _, err := w.js.CreateConsumer(t.Context(), "JOBS", c); err != nil {
			t.Fatal(err)
		}
		err := w.refused(Config{}, route)
		if err == nil || !strings.Contains(err.Error(), "JOBS is a work queue, where only one consumer may have a subject, and consumer theirs has jobs.eu.") {
			t.Errorf("%s: %v", name, err)
		}
		if err := w.js.DeleteConsumer(t.Context(), "JOBS", "theirs"); err != nil {
			t.Fatal(err)
		}
	}
	elsewhere := jetstream.ConsumerConfig{Durable: "theirs", AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: "jobs.us.>"}
	if _, err := w.js.CreateConsumer(t.Context(), "JOBS", elsewhere); err != nil {
		t.Fatal(err)
	}
	w.start(Config{}, route)
}

// A lower ack_wait that an instance adopted had what another one handled delivered again: that one extended its leases by the longer one.
func TestStart_regressionALowerAckWaitBesideAnotherInstance(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var starts atomic.Int64
	route := Route{Name: "billing", Subjects: []string{"orders.>"}, AckWait: 15 * time.Second, Handler: HandlerFunc(func(context.Context, *Msg) error {
		starts.Add(1)
		time.Sleep(4 * time.Second)
		return nil
	})}
	_, stop := w.start(Config{Instance: "old", Logger: quiet}, route)
	w.publish("orders.eu", 20)
	w.eventually("they are handled", func() bool { return starts.Load() > 0 })
	lower := route
	lower.AckWait = time.Second
	w.stream("OTHER", "other.>")
	other := Route{Name: "other", Subjects: []string{"other.>"}, Handler: route.Handler} // with which it runs
	r, _ := w.startUnready(Config{Instance: "new", Logger: quiet, Adopt: true}, lower, other)
	w.unready(r, "ack_wait is 15s, not 1s, and another instance pulls with it")
	w.settled("ORDERS", "billing")
	if n := starts.Load(); n != 20 {
		t.Errorf("%d starts of 20 messages", n)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	w.eventually("it is lowered then", func() bool { return w.info("ORDERS", "billing").Config.AckWait == time.Second && r.Ready() == nil })
}
