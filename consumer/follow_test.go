package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/orders"
)

// The bucket of orders was deleted and created again: pause said that it was done, and every message was handled. What held
// before holds still, and is in the new bucket.
func TestFollow_regressionABucketThatWasMadeAnewIsObeyed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stream("IMAGES", "images.>")
	l := newLedger()
	handle := HandlerFunc(func(_ context.Context, m *Msg) error {
		l.note(m)
		return nil
	})
	r, _ := w.start(Config{}, Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: handle}, Route{Name: "thumbs", Subjects: []string{"images.>"}, Handler: handle})
	w.order(orders.Order{Route: "thumbs", State: orders.Paused, Why: "before"}, r)
	before := r.Status().OrdersBucket
	if err := w.js.DeleteKeyValue(t.Context(), "RELAY_STATE"); err != nil {
		t.Fatal(err)
	}
	// Orders of the new bucket begin at revision 1 again.
	w.order(orders.Order{Route: "billing", State: orders.Paused, Why: "after"}, r)
	if s := r.Status(); s.Routes[0].State != control.StatePaused || s.Routes[1].State != control.StatePaused || s.OrdersBucket.Equal(before) {
		t.Errorf("status %+v", s)
	}
	w.publish("orders.eu", 5)
	w.publish("images.a", 5)
	w.eventually("the new bucket has both orders", func() bool {
		kv, err := w.js.KeyValue(t.Context(), "RELAY_STATE")
		if err != nil {
			t.Fatal(err)
		}
		_, err1 := kv.Get(t.Context(), "billing")
		_, err2 := kv.Get(t.Context(), "thumbs")
		return err1 == nil && err2 == nil
	})
	if l.len() != 0 {
		t.Errorf("%d messages handled although both routes are paused", l.len())
	}
	w.order(orders.Order{Route: "billing", State: orders.Running}, r)
	w.order(orders.Order{Route: "thumbs", State: orders.Running}, r)
	w.settled("ORDERS", "billing")
	w.settled("IMAGES", "thumbs")
	if l.len() != 10 {
		t.Errorf("%d messages handled after resume, want 10", l.len())
	}
}

// A watch that says nothing any more ended obedience without a word.
func TestFollow_regressionASilentWatchIsMadeAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, _ := w.start(Config{}, countingRoute(newLedger()))
	// The server forgets the watch's consumer; nats.go makes another one only when it misses heartbeats.
	stream, err := w.js.Stream(t.Context(), "KV_RELAY_STATE")
	if err != nil {
		t.Fatal(err)
	}
	for name := range stream.ConsumerNames(t.Context()).Name() {
		if err := stream.DeleteConsumer(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	w.order(orders.Order{Route: "billing", State: orders.Paused}, r)
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("the order was followed after %v", took)
	}
}

// An order that was deleted from the bucket held on until a restart, and not after it.
// A publisher had the server store its confirmation in place of an order: the reply subject of what it published was that of the key, and the
// server does not ask whether a publisher may write there. The route went on with the next start of relay.
func TestFollow_regressionAnOrderThatAPublisherOverwroteIsStoredAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := newLedger()
	r, stop := w.start(Config{}, countingRoute(l))
	w.order(orders.Order{Route: "billing", State: orders.Paused, Why: "maintenance"}, r)
	kv, err := w.js.KeyValue(t.Context(), "RELAY_STATE")
	if err != nil {
		t.Fatal(err)
	}
	before, err := kv.Get(t.Context(), "billing")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.nc.PublishRequest("orders.eu", "$KV.RELAY_STATE.billing", nil); err != nil {
		t.Fatal(err)
	}
	w.eventually("the order is there again", func() bool {
		now, err := kv.Get(t.Context(), "billing")
		return err == nil && now.Revision() >= before.Revision()+2 && strings.Contains(string(now.Value()), "maintenance")
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	r, _ = w.start(Config{}, countingRoute(l))
	w.eventually("the route is paused", func() bool { return r.Status().Routes[0].State == control.StatePaused })
	if l.len() != 0 {
		t.Errorf("%d messages were handled", l.len())
	}
}

func TestFollow_anOrderThatWasDeletedEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, _ := w.start(Config{}, countingRoute(newLedger()))
	w.order(orders.Order{Route: "billing", State: orders.Paused}, r)
	w.order(orders.Order{Route: "billing", Key: []byte("k"), State: orders.Paused}, r)
	kv, err := w.js.KeyValue(t.Context(), "RELAY_STATE")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []orders.Order{{Route: "billing"}, {Route: "billing", Key: []byte("k")}} {
		if err := kv.Delete(t.Context(), o.BucketKey()); err != nil {
			t.Fatal(err)
		}
	}
	w.eventually("the pauses end", func() bool {
		s := r.Status().Routes[0]
		return s.State == control.StateFlowing && len(s.Waiting) == 0
	})
}

func TestFollow_anOrderOfANewerRelayIsLeftAloneAndNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, _ := w.start(Config{}, countingRoute(newLedger()))
	kv, err := w.js.KeyValue(t.Context(), "RELAY_STATE")
	if err != nil {
		t.Fatal(err)
	}
	value, err := json.Marshal(orders.Order{Route: "billing", State: orders.Paused, Format: orders.Format + 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Put(t.Context(), "billing", value); err != nil {
		t.Fatal(err)
	}
	w.eventually("the status names it", func() bool { return len(r.Status().Notices) == 1 })
	if s := r.Status(); s.Routes[0].State != control.StateFlowing || s.Notices[0] != "order billing has format 2, but this version knows only format 1; the order is not followed" {
		t.Errorf("%q, %s", s.Notices, s.Routes[0].State)
	}
	w.order(orders.Order{Route: "billing", State: orders.Paused}, r)
	if s := r.Status(); s.Routes[0].State != control.StatePaused || len(s.Notices) != 0 {
		t.Errorf("%q, %s", s.Notices, s.Routes[0].State)
	}
}

// A paused route kept what it had fetched in one instance, where nobody else could take it after resume.
func TestPause_regressionWhatHasNotStartedGoesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := newLedger()
	release := make(chan struct{})
	route := countingRoute(l)
	route.Concurrency = 2
	route.Handler = HandlerFunc(func(_ context.Context, m *Msg) error {
		<-release
		l.note(m)
		return nil
	})
	a, stop := w.start(Config{Instance: "a"}, route)
	w.publish("orders.eu", 50)
	w.eventually("a has fetched some", func() bool { s := a.Status().Routes[0]; return s.Running == 2 && s.Window > 0 })
	w.order(orders.Order{Route: "billing", State: orders.Paused}, a)
	w.eventually("a holds what runs, and no more", func() bool {
		s := a.Status().Routes[0]
		return s.Running == 2 && s.Window == 0 && s.Stash == 0
	})
	b, _ := w.start(Config{Instance: "b"}, countingRoute(l))
	w.order(orders.Order{Route: "billing", State: orders.Running}, a, b)
	w.eventually("b handles what a gave back", func() bool { return l.len() >= 40 })
	close(release)
	w.settled("ORDERS", "billing")
	if l.len() != 50 {
		t.Errorf("%d messages handled, want 50", l.len())
	}
	if err := stop(); err != nil && !errors.Is(err, jetstream.ErrConsumerDeleted) {
		t.Error(err)
	}
}
