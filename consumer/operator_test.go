package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/micro"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/orders"
)

// order stores what an operator says, and waits until every relay has applied it.
func (w *world) order(o orders.Order, relays ...*Relay) {
	w.t.Helper()
	bucket, err := orders.Open(w.t.Context(), w.js, "", 0)
	if err != nil {
		w.t.Fatal(err)
	}
	revision, err := bucket.Give(w.t.Context(), o)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, r := range relays {
		w.eventually("the order is applied", func() bool {
			s := r.Status()
			return s.Orders >= revision && s.OrdersBucket.Equal(bucket.Created)
		})
	}
}

func countingRoute(l *ledger) Route {
	return Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
		l.note(m)
		return nil
	})}
}

func TestOrders_pausedRouteLeavesItsMessagesInTheStreamUntilResumed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := newLedger()
	r, _ := w.start(Config{}, countingRoute(l))
	w.order(orders.Order{Route: "billing", State: orders.Paused, Why: "migration"}, r)
	w.publish("orders.eu", 20)
	if s := r.Status().Routes[0]; s.State != "paused" || s.Why != "migration" {
		t.Errorf("status %+v", s)
	}
	if r.Ready() != nil {
		t.Errorf("a paused route is not ready: %v", r.Ready())
	}
	w.order(orders.Order{Route: "billing", State: orders.Running}, r)
	w.settled("ORDERS", "billing")
	if l.len() != 20 {
		t.Errorf("%d messages handled after resume, want 20", l.len())
	}
}

func TestOrders_resumedKeyGetsItsMessagesBackAtOnceAndNotInAnHour(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := newLedger()
	route := countingRoute(l)
	route.AckWait = 2 * time.Second
	r, _ := w.start(Config{}, route)
	w.order(orders.Order{Route: "billing", Key: []byte("orders.us"), State: orders.Paused}, r)
	w.publish("orders.us", 5)
	w.publish("orders.eu", 5)
	w.eventually("the other key flows, the paused one is given back", func() bool {
		return l.len() == 5 && w.info("ORDERS", "billing").NumAckPending == 5 && r.Status().Routes[0].Stash == 0
	})
	keys := r.Status().Routes[0].Waiting
	if len(keys) != 1 || keys[0].Key != "orders.us" || keys[0].State != "suspended" {
		t.Errorf("waiting keys %+v", keys)
	}
	began := time.Now()
	w.order(orders.Order{Route: "billing", Key: []byte("orders.us"), State: orders.Running}, r)
	w.settled("ORDERS", "billing")
	if l.len() != 10 {
		t.Errorf("%d messages handled, want 10", l.len())
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the messages came back after %v", took)
	}
}

func TestOrders_holdOverARestartAndOnEveryInstance(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := newLedger()
	_, stop := w.start(Config{Instance: "a"}, countingRoute(l))
	w.order(orders.Order{Route: "billing", State: orders.Paused})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b, _ := w.start(Config{Instance: "b"}, countingRoute(l))
	c, _ := w.start(Config{Instance: "c"}, countingRoute(l))
	w.publish("orders.eu", 3)
	for _, r := range []*Relay{b, c} {
		if s := r.Status(); s.Routes[0].State != "paused" {
			t.Errorf("%s is %s after a restart", s.Instance, s.Routes[0].State)
		}
	}
	list, err := control.AskStatus(t.Context(), w.nc, "relay")
	if err != nil || len(list) != 2 {
		t.Errorf("status of %d instances, %v, want 2", len(list), err)
	}
	w.order(orders.Order{Route: "billing", State: orders.Running}, b, c)
	w.settled("ORDERS", "billing")
	if l.len() != 3 {
		t.Errorf("%d messages handled, want 3", l.len())
	}
}

// What is parked waits outside the route's durable, where nobody would look for it.
func TestStatus_tellsWhatIsParked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	route := Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error {
		return RetryIn(time.Hour, errors.New("not today"))
	})}
	a, _ := w.start(Config{Instance: "a"}, route)
	w.publish("orders.eu", 3)
	w.eventually("they are parked", func() bool { return a.engine.Routes.All()[0].Count.Parked.Load() == 3 })
	b, _ := w.start(Config{Instance: "b"}, route) // it looks at its start
	w.eventually("the status says so", func() bool { return b.Status().Parked == 3 })
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(b.Collector())
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "relay_parked_messages" && f.GetMetric()[0].GetGauge().GetValue() == 3 {
			return
		}
	}
	t.Error("the metrics do not say so")
}

func TestStatus_isAMicroServiceToo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(Config{Instance: "a"}, countingRoute(newLedger()))
	m, err := w.nc.Request("$SRV.INFO.relay", nil, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var info micro.Info
	if err := json.Unmarshal(m.Data, &info); err != nil || info.Name != "relay" || info.Metadata["instance"] != "a" || len(info.Endpoints) != 3 {
		t.Errorf("info %+v, %v", info, err)
	}
}

func TestAskStatus_nobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := control.AskStatus(t.Context(), w.nc, "relay"); err != control.ErrNobody {
		t.Errorf("got %v, want ErrNobody", err)
	}
}
