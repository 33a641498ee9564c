package consumer

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/provision"
)

// launch begins a relay over a connection and returns without waiting for anything. It ends with the test.
func launch(t *testing.T, nc *nats.Conn, cfg Config, routes ...Route) (r *Relay, stop func() error) {
	t.Helper()
	r, err := New(nc, cfg, routes...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	ended := false
	stop = func() error {
		if ended {
			return nil
		}
		ended = true
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(40 * time.Second):
			t.Error("Run does not return")
			return nil
		}
	}
	t.Cleanup(func() { _ = stop() })
	return r, stop
}

// cluster is three nodes; the world is connected to the first.
func cluster(t *testing.T) (nodes []*natstest.Server, w *world) {
	t.Helper()
	nodes = natstest.Cluster(t, 3)
	w = &world{t: t, s: nodes[0], nc: nodes[0].Conn(t)}
	w.js, _ = jetstream.New(w.nc)
	return nodes, w
}

// replicated makes a stream with replicas, or one on a node that is not the first, which it returns.
func (w *world) replicated(nodes []*natstest.Server, name, subject string, replicas int) (leader *natstest.Server) {
	w.t.Helper()
	w.eventually("stream "+name+" is made", func() bool {
		c := jetstream.StreamConfig{Name: name, Subjects: []string{subject}, Replicas: replicas}
		if strings.HasPrefix(name, "KV_") {
			c.MaxMsgsPerSubject, c.AllowRollup, c.DenyDelete, c.AllowMsgTTL, c.Discard = 1, true, true, true, jetstream.DiscardNew
		}
		st, err := w.js.CreateStream(w.t.Context(), c)
		if err != nil {
			return false
		}
		info, err := st.Info(w.t.Context())
		if err != nil || info.Cluster == nil {
			return false
		}
		for _, n := range nodes {
			if n.Name() == info.Cluster.Leader {
				leader = n
			}
		}
		if replicas == 1 && (leader == nil || leader == nodes[0]) {
			_ = w.js.DeleteStream(w.t.Context(), name)
			return false
		}
		return true
	})
	return leader
}

// A relay that started while the stream of one route had no leader ended with a time-out, and no route handled anything.
func TestStart_regressionARouteWhoseStreamIsAwayHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	nodes, w := cluster(t)
	w.replicated(nodes, "MAIN", "main.>", 3)
	lost := w.replicated(nodes, "SIDE", "side.>", 1)
	l := newLedger()
	note := HandlerFunc(func(_ context.Context, m *Msg) error { l.note(m); return nil })
	routes := []Route{
		{Name: "side", Subjects: []string{"side.>"}, Handler: note},
		{Name: "main", Subjects: []string{"main.>"}, Handler: note},
	}
	cfg := Config{Replicas: 3, Logger: quiet}
	r, stop := launch(t, w.nc, cfg, routes...)
	w.eventually("it is ready", func() bool { return r.Ready() == nil })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	lost.Stop()
	w.publish("main.eu", 5)
	began := time.Now()
	r, stop = launch(t, w.nc, cfg, routes...)
	w.eventually("the other route works", func() bool { return l.len() == 5 })
	t.Logf("the other route works after %v", time.Since(began).Round(time.Millisecond))
	w.unready(r, "route side", "SIDE", "(since ")
	if strings.Contains(r.Ready().Error(), "route main") {
		t.Errorf("the other route is in trouble: %v", r.Ready())
	}
	if s := r.Status().Routes[0]; s.State != "starting" || !strings.Contains(s.Why, "SIDE") || s.Since == nil {
		t.Errorf("status of the route: %+v", s)
	}
	lost.Restart()
	w.eventually("it is ready again", func() bool { return r.Ready() == nil })
	w.publish("side.eu", 5)
	w.eventually("the route works", func() bool { return l.len() == 10 })
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// What routes share is waited for, and named.
func TestStart_regressionAnOwnBucketWithoutALeaderIsWaitedFor(t *testing.T) {
	t.Parallel()
	nodes, w := cluster(t)
	w.replicated(nodes, "MAIN", "main.>", 3)
	l := newLedger()
	route := Route{Name: "main", Subjects: []string{"main.>"}, Handler: HandlerFunc(func(_ context.Context, m *Msg) error { l.note(m); return nil })}
	cfg := Config{Replicas: 3, Logger: quiet}
	r, stop := launch(t, w.nc, cfg, route)
	w.eventually("it is ready", func() bool { return r.Ready() == nil })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if err := w.js.DeleteKeyValue(t.Context(), "RELAY_ATTEMPTS"); err != nil {
		t.Fatal(err)
	}
	lost := w.replicated(nodes, "KV_RELAY_ATTEMPTS", "$KV.RELAY_ATTEMPTS.>", 1)
	lost.Stop()
	r, stop = launch(t, w.nc, cfg, route)
	w.unready(r, "RELAY_ATTEMPTS", "(since ")
	w.publish("main.eu", 5)
	lost.Restart()
	w.eventually("all are handled", func() bool { return l.len() == 5 })
	w.eventually("it is ready", func() bool { return r.Ready() == nil })
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// A start that failed left the durables behind that it had made.
func TestStart_regressionOneThatFailsLeavesNoDurablesBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stream("OLD", "old.>")
	w.publish("old.eu", 1)
	if _, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ONE", Subjects: []string{"one.>"}, MaxConsumers: 1}); err != nil {
		t.Fatal(err)
	}
	h := HandlerFunc(func(context.Context, *Msg) error { return nil })
	orders := Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: h}
	for name, c := range map[string]struct {
		routes []Route
		want   string
	}{
		"found before anything is made": {[]Route{orders, {Name: "old", Subjects: []string{"old.>"}, Handler: h}}, "start: stream OLD already holds 1 messages"},
		"found as they are made": {[]Route{orders,
			{Name: "one", Subjects: []string{"one.a.>"}, Handler: h}, {Name: "two", Subjects: []string{"one.b.>"}, Handler: h}}, "maximum consumers"},
	} {
		if err := w.refused(Config{Logger: quiet}, c.routes...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		for _, stream := range []string{"ORDERS", "OLD", "ONE", "RELAY_RETRY"} {
			st, err := w.js.Stream(t.Context(), stream)
			if err != nil {
				t.Fatal(err)
			}
			for left := range st.ConsumerNames(t.Context()).Name() {
				t.Errorf("%s: durable %s is left on %s", name, left, stream)
			}
		}
	}
}

// A route whose durable had other settings at the start stood still until relay was restarted.
func TestStart_regressionARouteGoesOnWhenItsDurableIsMended(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stream("INVOICES", "invoices.>")
	made := jetstream.ConsumerConfig{Durable: "billing", AckWait: time.Hour, MaxDeliver: -1, MaxAckPending: provision.MaxAckPending, AckPolicy: jetstream.AckExplicitPolicy}
	if _, err := w.js.CreateConsumer(t.Context(), "ORDERS", made); err != nil {
		t.Fatal(err)
	}
	l := newLedger()
	note := HandlerFunc(func(_ context.Context, m *Msg) error { l.note(m); return nil })
	r, _ := w.startUnready(Config{Logger: quiet},
		Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: note},
		Route{Name: "printing", Subjects: []string{"invoices.>"}, Handler: note},
	)
	w.publish("orders.eu", 10)
	w.unready(r, "route billing", "ack_wait is 1h0m0s, not 30s")
	if s := r.Status().Routes[0]; s.State != "stopped" || !strings.Contains(s.Why, "ack_wait") || s.Since == nil {
		t.Errorf("status of the route: %+v", s)
	}
	made.AckWait = 30 * time.Second
	if _, err := w.js.UpdateConsumer(t.Context(), "ORDERS", made); err != nil {
		t.Fatal(err)
	}
	w.eventually("it goes on", func() bool { return l.len() == 10 && r.Ready() == nil })
}

// Ten seconds for all routes, one after the other, were too short for many routes and for slow links.
func TestStart_regressionManyRoutesOnASlowLink(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		routes int
		trip   time.Duration
	}{{100, 10 * time.Millisecond}, {10, 100 * time.Millisecond}} {
		t.Run(fmt.Sprintf("%d routes at %v", c.routes, c.trip), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			p := natstest.NewProxy(t, w.s.URL())
			p.Delay(c.trip / 2)
			closed := make(chan struct{})
			nc, err := nats.Connect(p.URL(), nats.ReconnectBufSize(-1), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { nc.Close(); <-closed })
			l := newLedger()
			var routes []Route
			for i := range c.routes {
				routes = append(routes, Route{
					Name: fmt.Sprintf("r%d", i), Subjects: []string{fmt.Sprintf("orders.%d.>", i)},
					Handler: HandlerFunc(func(_ context.Context, m *Msg) error { l.note(m); return nil }),
				})
			}
			began := time.Now()
			r, stop := launch(t, nc, Config{Logger: quiet}, routes...)
			w.eventually("it is ready", func() bool { return r.Ready() == nil })
			t.Logf("ready after %v", time.Since(began).Round(time.Millisecond))
			for i := range c.routes {
				w.publish(fmt.Sprintf("orders.%d.eu", i), 1)
			}
			w.eventually("all routes work", func() bool { return l.len() == c.routes })
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Any word that is none was taken for all, and delivered everything.
func TestRoute_regressionAStartThatIsNoWordIsRefused(t *testing.T) {
	t.Parallel()
	for _, s := range []Start{{Policy: "New"}, {Policy: "latest"}, {Policy: "since"}, {Policy: "seq"}} {
		r := Route{Name: "a", Subjects: []string{"a"}, Start: s}
		if err := r.Validate(); err == nil || !strings.Contains(err.Error(), "start: ") {
			t.Errorf("%+v: %v", s, err)
		}
	}
	for _, s := range []Start{{}, StartAll, StartNew, Since(time.Now()), FromSeq(1)} {
		r := Route{Name: "a", Subjects: []string{"a"}, Start: s}
		if err := r.Validate(); err != nil && strings.Contains(err.Error(), "start: ") {
			t.Errorf("%+v: %v", s, err)
		}
	}
}
