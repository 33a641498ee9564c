package consumer

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/dlq"
	"github.com/relaymq/relay/internal/natstest"
)

// edit changes a stream as somebody with nats stream edit would.
func (w *world) edit(name string, change func(*jetstream.StreamConfig)) {
	w.t.Helper()
	c := w.settings(name)
	change(&c)
	if _, err := w.js.UpdateStream(w.t.Context(), c); err != nil {
		w.t.Fatalf("edit %s: %v", name, err)
	}
}

func (w *world) settings(name string) jetstream.StreamConfig {
	w.t.Helper()
	s, err := w.js.Stream(w.t.Context(), name)
	if err != nil {
		w.t.Fatal(err)
	}
	return s.CachedInfo().Config
}

// Limits on the retry stream, the dead letters, their bodies and the buckets, set from outside, lost parked messages, dead
// letters and attempts in silence.
func TestRelay_limitsOfItsOwnStreamsAreSetBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var log syncBuffer
	cfg := Config{Logger: slog.New(slog.NewTextHandler(&log, nil)), DLQ: dlq.Config{MaxAge: 24 * time.Hour, MaxBytes: 64 << 20}}
	rt := Route{Name: "orders", Subjects: []string{"orders.>"}, Start: Start{Policy: "all"}, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil })}
	r, stop := w.start(cfg, rt)
	tighten := func() {
		for _, name := range []string{"RELAY_RETRY", "RELAY_DLQ", "OBJ_RELAY_DLQ_BODIES", "KV_RELAY_ATTEMPTS", "KV_RELAY_STATE"} {
			w.edit(name, func(c *jetstream.StreamConfig) {
				c.MaxAge, c.MaxMsgs, c.MaxBytes, c.Discard, c.MaxMsgSize = time.Hour, 10, 1<<20, jetstream.DiscardOld, 1000
				c.Duplicates = time.Minute
				if name == "RELAY_DLQ" || name == "RELAY_RETRY" {
					c.MaxMsgsPerSubject = 1
				}
			})
		}
	}
	mended := func() bool {
		for _, want := range r.engine.OwnStreams() {
			s, err := w.js.Stream(t.Context(), want.Name)
			if err != nil {
				continue // nobody began a job
			}
			c := s.CachedInfo().Config
			if c.MaxAge != want.MaxAge || c.MaxMsgs > 0 || max(c.MaxBytes, 0) != max(want.MaxBytes, 0) || c.Discard != want.Discard || c.MaxMsgSize > 0 ||
				max(c.MaxMsgsPerSubject, 0) != max(want.MaxMsgsPerSubject, 0) || c.Duplicates < want.Duplicates {
				t.Logf("%s: %+v", want.Name, c)
				return false
			}
		}
		return true
	}
	tighten()
	w.eventually("limits set while relay runs are set back", mended)
	w.eventually("the log says what was changed", func() bool {
		return log.count("changed from outside") > 0 && log.count("stream=RELAY_RETRY field=max_age was=1h0m0s now=unlimited") > 0
	})
	w.eventually("readiness says so", func() bool {
		err := r.Ready()
		return err != nil && strings.Contains(err.Error(), "stream RELAY_RETRY: changed from outside: max_age was 1h0m0s, and is unlimited again")
	})
	// What loses nothing stays while relay runs: another instance may be configured so.
	w.edit("RELAY_DLQ", func(c *jetstream.StreamConfig) { c.MaxAge, c.MaxBytes = 48*time.Hour, 128<<20 })
	r.engine.Upkeep.Compare(t.Context())
	if c := w.settings("RELAY_DLQ"); c.MaxAge != 48*time.Hour || c.MaxBytes != 128<<20 {
		t.Errorf("roomier limits were changed back: %v, %d", c.MaxAge, c.MaxBytes)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	tighten()
	_, _ = w.start(cfg, rt)
	w.eventually("the limits are set back at the start", mended)
}

// What the server does not change is said, in readiness and once in the log.
func TestRelay_saysWhatOfItsOwnStreamsItCannotChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "RELAY_RETRY", Subjects: []string{"relay.park.>", "relay.due.>"}, Retention: jetstream.WorkQueuePolicy,
		Storage: jetstream.MemoryStorage, AllowMsgSchedules: true, AllowDirect: true, Duplicates: 10 * time.Minute, MaxMsgs: 5,
	}); err != nil {
		t.Fatal(err)
	}
	var log syncBuffer
	route := Route{Name: "orders", Subjects: []string{"orders.>"}, Start: Start{Policy: "all"}, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil })}
	r, stop := w.startUnready(Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, route)
	w.eventually("it is not ready", func() bool {
		err := r.Ready()
		return err != nil && strings.Contains(err.Error(), "stream RELAY_RETRY: storage is Memory, but must be File")
	})
	if c := w.settings("RELAY_RETRY"); c.MaxMsgs > 0 {
		t.Errorf("max_msgs is %d still", c.MaxMsgs)
	}
	r.engine.Upkeep.Compare(t.Context())
	if n := log.count("the settings of stream RELAY_RETRY"); n != 1 {
		t.Errorf("said %d times", n)
	}
	if err := r.Ready(); err == nil || !strings.Contains(err.Error(), "stop relay, keep a copy (`nats stream backup`), remove the stream (`nats stream rm`), and start relay") {
		t.Errorf("it says %v", err)
	}
	// The advice is followed.
	_ = stop()
	if err := w.js.DeleteStream(t.Context(), "RELAY_RETRY"); err != nil {
		t.Fatal(err)
	}
	r, _ = w.start(Config{Logger: quiet}, route)
	w.eventually("relay makes its own", func() bool { return r.Ready() == nil && w.settings("RELAY_RETRY").Storage == jetstream.FileStorage })
}

// Some streams had one replica, and some three.
func TestRelay_replicasOfItsOwnStreamsAreRaised(t *testing.T) {
	t.Parallel()
	nodes := natstest.Cluster(t, 3)
	js := nodes[0].JetStream(t)
	w := &world{t: t, s: nodes[0], js: js}
	w.eventually("the cluster takes a stream", func() bool {
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
		return err == nil
	})
	rt := Route{Name: "orders", Subjects: []string{"orders.>"}, Start: Start{Policy: "all"}, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil })}
	_, stop := w.start(Config{}, rt)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	w.start(Config{Replicas: 3}, rt)
	for _, name := range []string{"RELAY_RETRY", "RELAY_DLQ", "OBJ_RELAY_DLQ_BODIES", "KV_RELAY_ATTEMPTS", "KV_RELAY_STATE"} {
		w.eventually(name+" has three replicas", func() bool { return w.settings(name).Replicas == 3 })
	}
}
