package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/relaymq/relay/consumer/internal/upkeep"
	letters "github.com/relaymq/relay/dlq"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/supervisor"
)

// deadly dead-letters what it gets, or has it parked for an hour.
func deadly(parks bool) Route {
	attempts := 1
	if parks {
		attempts = 5
	}
	return Route{
		Name: "billing", Subjects: []string{"orders.>"}, Start: Start{Policy: "all"}, Concurrency: 32,
		Retry:      Retry{MaxAttempts: attempts, ParkAfter: time.Second, Backoff: supervisor.Backoff{Policy: supervisor.Constant, Min: time.Hour, Max: time.Hour}},
		Supervisor: supervisor.Config{TripAfter: new(0), RouteTrip: supervisor.RouteTrip{Of: new(0)}},
		Handler: HandlerFunc(func(context.Context, *Msg) error {
			return errors.New("down")
		}),
	}
}

// lost is what the metrics say; 0 also when they say nothing.
func (w *world) lost(r *Relay, stream string) int {
	w.t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(r.Collector())
	families, err := reg.Gather()
	w.do(err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "relay_own_stream_lost_messages_total" && m.GetLabel()[0].GetValue() == stream {
				return int(m.GetCounter().GetValue())
			}
		}
	}
	return 0
}

// A limit of RELAY_DLQ or RELAY_RETRY that somebody set with nats stream edit took messages for up to 30 s, and relay set it back, ready, with
// one WARN and no number. A purge was not noticed at all.
func TestRelay_whatSomebodyTakesFromItsStreamsIsCounted(t *testing.T) {
	t.Parallel()
	bound := func(change func(c *jetstream.StreamConfig)) func(w *world, stream string) {
		return func(w *world, stream string) {
			w.edit(stream, func(c *jetstream.StreamConfig) {
				c.Discard = jetstream.DiscardOld
				change(c)
			})
		}
	}
	const most = 600
	for name, harm := range map[string]func(w *world, stream string){
		"max_msgs":  bound(func(c *jetstream.StreamConfig) { c.MaxMsgs = 50 }),
		"max_bytes": bound(func(c *jetstream.StreamConfig) { c.MaxBytes = 20_000 }),
		"max_age":   bound(func(c *jetstream.StreamConfig) { c.MaxAge, c.Duplicates = 100*time.Millisecond, 100*time.Millisecond }),
		"purge": func(w *world, stream string) {
			s, err := w.js.Stream(w.t.Context(), stream)
			w.do(err)
			w.do(s.Purge(w.t.Context(), jetstream.WithPurgeKeep(20)))
		},
	} {
		for _, stream := range []string{"RELAY_DLQ", "RELAY_RETRY"} {
			t.Run(name+" of "+stream, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				var log syncBuffer
				r, _ := w.start(Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, deadly(stream == "RELAY_RETRY"))
				w.eventually("the ledger was looked at", func() bool { u := w.onlyUnit(r); return u != nil && u.Tally.Balance() != nil })
				go func() {
					for n := range most {
						_, _ = w.js.Publish(context.Background(), fmt.Sprintf("orders.%d", n), nil)
						time.Sleep(time.Millisecond)
					}
				}()
				after := uint64(200 + rand.IntN(most/3)) // some are older than max_age
				w.eventually("some failed", func() bool { return w.msgs(stream).LastSeq >= after })
				began := time.Now()
				harm(w, stream)
				w.eventually("it is not ready", func() bool {
					err := r.Ready()
					return err != nil && strings.Contains(err.Error(), "stream "+stream+": ") && strings.Contains(err.Error(), "(since ")
				})
				took := time.Since(began)
				if name != "purge" && took > 4*time.Second { // by what the server tells, and not with the next tick
					t.Errorf("said after %v", took)
				}
				t.Logf("after %v: %v", took, r.Ready())
				w.eventually("all came", func() bool { return w.msgs(stream).LastSeq >= most })
				want := func() int { st := w.msgs(stream); return int(st.LastSeq - st.Msgs) }
				w.eventually("the count is right", func() bool { return want() > 0 && w.lost(r, stream) == want() })
				time.Sleep(8 * time.Second)
				if n := w.lost(r, stream); n != want() || n == 0 {
					t.Errorf("%d are lost, and it says %d", want(), n)
				}
				if n := log.count("changed from outside"); n == 0 || n > 6 {
					t.Errorf("the log says it %d times", n)
				}
				c := w.settings(stream)
				if c.MaxMsgs > 0 || c.MaxAge != 0 || c.MaxBytes > 0 {
					t.Errorf("still %+v", c)
				}
			})
		}
	}
}

// What relay and its operators take out is not lost: replays, discards, drop_oldest and dlq.max_age.
func TestRelay_whatRelayTakesOutIsNotLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := Config{Logger: quiet, DLQ: letters.Config{MaxMsgs: 40, OnFull: letters.OnFullDropOldest, MaxAge: 5 * time.Second}}
	r, _ := w.start(cfg, deadly(false))
	w.publish("orders.a", 60)
	w.eventually("all are dead", func() bool { return w.msgs("RELAY_DLQ").LastSeq == 60 })
	store, err := dlq.Attach(t.Context(), w.js, "relay") // another process
	w.do(err)
	for n := uint64(50); n < 55; n++ {
		w.do(store.Discard(t.Context(), n))
	}
	w.do(r.engine.Upkeep.Err(time.Now()))
	r.engine.Upkeep.Compare(t.Context())
	if n := w.lost(r, "RELAY_DLQ"); n != 0 {
		t.Errorf("%d are lost", n)
	}
	if l, err := store.Lost(t.Context()); err != nil || l.AtLeast != 0 || l.Entries > 35 { // on a busy machine some have gone by age
		t.Errorf("%+v, %v", l, err)
	}
	w.eventually("they go by age", func() bool { return w.msgs("RELAY_DLQ").Msgs == 0 })
	r.engine.Upkeep.Compare(t.Context())
	if l, err := store.Lost(t.Context()); err != nil || l.AtLeast != 0 {
		t.Errorf("after max_age: %+v, %v", l, err)
	}
	if err := r.engine.Upkeep.Err(time.Now()); err != nil {
		t.Error(err)
	}
}

// The same in a cluster, with two instances, of which one is not told by the server.
func TestRelay_whatSomebodyTakesIsCountedInACluster(t *testing.T) {
	t.Parallel()
	nodes := natstest.Cluster(t, 3)
	w := &world{t: t, s: nodes[0], js: nodes[0].JetStream(t)}
	w.eventually("the cluster takes a stream", func() bool {
		_, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, Replicas: 3})
		return err == nil
	})
	r, _ := w.start(Config{Logger: quiet, Replicas: 3, Instance: "a"}, deadly(false))
	other, _ := w.start(Config{Logger: quiet, Replicas: 3, Instance: "b"}, deadly(false))
	for n := range 300 {
		_, err := w.js.Publish(t.Context(), fmt.Sprintf("orders.%d", n), nil)
		w.do(err)
	}
	w.eventually("some failed", func() bool { return w.msgs("RELAY_DLQ").LastSeq >= 200 })
	w.edit("RELAY_DLQ", func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 7, jetstream.DiscardOld })
	began := time.Now()
	w.eventually("it is set back", func() bool { return w.settings("RELAY_DLQ").MaxMsgs <= 0 })
	t.Logf("set back after %v", time.Since(began))
	w.eventually("all came", func() bool { return w.msgs("RELAY_DLQ").LastSeq >= 300 })
	for _, r := range []*Relay{r, other} {
		w.eventually("the count is right", func() bool {
			st := w.msgs("RELAY_DLQ")
			return w.lost(r, "RELAY_DLQ") == int(st.LastSeq-st.Msgs) && st.LastSeq > st.Msgs
		})
		if err := r.Ready(); err == nil || !strings.Contains(err.Error(), "stream RELAY_DLQ: ") {
			t.Errorf("it says %v", err)
		}
	}
}

// A user with the permissions of an earlier version is not told of edits: relay starts, says so once, and finds them a few seconds later.
func TestRelay_whoMayNotHearOfEditsLooksForThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t, natstest.WithConfig(
		`authorization {users: [{user: u, password: p, permissions: {subscribe: {deny: "`+upkeep.UpdatePrefix+`>"}}}]}
		no_auth_user: u`))
	var log syncBuffer
	r, _ := w.start(Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, deadly(false))
	for n := range 30 {
		w.publish(fmt.Sprintf("orders.%d", n), 1)
	}
	w.eventually("all are dead", func() bool { return w.msgs("RELAY_DLQ").Msgs == 30 })
	w.edit("RELAY_DLQ", func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 7, jetstream.DiscardOld })
	began := time.Now()
	w.eventually("it is said", func() bool { return w.lost(r, "RELAY_DLQ") == 23 && r.Ready() != nil })
	// What is gone may be seen before the settings are, and then these are set back at the next look.
	w.eventually("it is set back", func() bool {
		c := w.settings("RELAY_DLQ")
		return c.MaxMsgs <= 0 && c.Discard == jetstream.DiscardNew
	})
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("after %v", took)
	}
	if n := log.count("does not permit relay to subscribe to the advisories of changes"); n != 1 {
		t.Errorf("said %d times", n)
	}
}

// The book of the dead letters was begun a while after the routes: what somebody took out before that was never counted.
func TestRelay_regressionTheBookIsThereBeforeTheFirstDeadLetter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	begun := make(chan error, 1)
	route := deadly(false)
	route.Handler = HandlerFunc(func(ctx context.Context, m *Msg) error {
		store, err := dlq.Attach(ctx, w.js, "relay")
		if err == nil {
			_, err = store.Lost(ctx)
		}
		select {
		case begun <- err:
		default:
		}
		return nil
	})
	w.publish("orders.1", 1)
	w.start(Config{Logger: quiet}, route)
	if err := <-begun; err != nil {
		t.Error(err)
	}
}

// A rolling change of dlq.max_msgs is not an edit from outside: the lower bound that an instance noted stays, and readiness too.
func TestRelay_aLowerBoundOfAnotherInstanceIsNoEdit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, _ := w.start(Config{Logger: quiet, DLQ: letters.Config{MaxMsgs: 100}}, deadly(false))
	_, err := dlq.Open(t.Context(), w.js, dlq.Config{MaxMsgs: 50})
	w.do(err)
	w.stays("it stays, and ready", func() bool { return w.settings("RELAY_DLQ").MaxMsgs == 50 && r.engine.Upkeep.Err(time.Now()) == nil })
}
