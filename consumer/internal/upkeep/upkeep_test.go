package upkeep

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/consumer/internal/stores"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/looks"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/ownstream"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/trouble"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// watched is the streams of a service that nobody else looks after, and what was said of them.
type watched struct {
	*Upkeep
	t       *testing.T
	js      jetstream.JetStream
	stirred atomic.Uint64 // how many messages are stored
	swept   atomic.Int64  // how often the records were swept

	mu       sync.Mutex
	log      bytes.Buffer
	reported []string
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(p)
}

// said tells whether the log has all of that.
func (w *watched) said(parts ...string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(w.log.String(), part) })
}

func (w *watched) report(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reported = append(w.reported, what)
}

func (w *watched) has(report string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.reported, func(r string) bool { return strings.Contains(r, report) })
}

func (w *watched) eventually(what string, ok func() bool) {
	w.t.Helper()
	natstest.Eventually(w.t, what, ok, &w.log)
}

// edit changes a stream as somebody else would.
func (w *watched) edit(stream string, change func(*jetstream.StreamConfig)) {
	w.t.Helper()
	s, err := w.js.Stream(w.t.Context(), stream)
	if err != nil {
		w.t.Fatal(err)
	}
	c := s.CachedInfo().Config
	change(&c)
	if _, err := w.js.UpdateStream(w.t.Context(), c); err != nil {
		w.t.Fatal(err)
	}
}

func newWatched(t *testing.T, parked Room) *watched {
	t.Helper()
	s := natstest.Start(t)
	w := &watched{t: t, js: s.JetStream(t)}
	log := slog.New(slog.NewTextHandler(w, nil))
	own := stores.New(w.js, stores.Config{
		Service: "relay", Instance: "a", Replicas: 1, Letters: stores.Letters{Bounds: stores.Bounds{Messages: 10}, OnFull: dlq.OnFullBlock},
	}, log)
	w.Upkeep = New(Config{
		Conn: s.Conn(t), JS: w.js, Log: log, Looks: looks.New(w.js), Probing: new(sync.Mutex),
		Troubles: trouble.NewList(log, func(what string, err error) { w.report(fmt.Sprint(what, ": ", err)) }),
		Stores:   own, Streams: func() []jetstream.StreamConfig { return own.Streams(nil) },
		SweepRecords: func(context.Context) { w.swept.Add(1) },
		Parked:       parked, Routes: func() []string { return []string{"orders", "other"} },
		Stored:        w.stirred.Load,
		ReportTrouble: func(what string, err error) { w.report(fmt.Sprint(what, ": ", err)) },
		ReportFilling: func(u dlq.Usage) { w.report(fmt.Sprintf("filling %d", u.Entries)) },
	})
	if w.Usage() != nil || w.Parked() != 0 || w.Err(time.Now()) != nil || len(w.Troubles()) != 0 {
		t.Error("it knows something before it has looked")
	}
	try := func(ctx context.Context, do func(context.Context) error) error { return do(ctx) }
	err := errors.Join(own.Open(t.Context(), stores.Opening{
		Began: time.Now(), Attempt: try, Persist: func(ctx context.Context, _ string, do func(context.Context) error) error { return do(ctx) },
	})...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(own.Records.Close)
	if err := w.SetRight(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

// run watches until the function is called that it returns.
func (w *watched) run(f func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

func (w *watched) letter(n int) {
	w.t.Helper()
	e := dlq.Entry{Origin: retry.Origin{Route: "orders", Stream: "ORDERS", Consumer: "orders", Sequence: uint64(n), Time: time.Now(), Subject: "orders.a", Attempts: 1}, Reason: dlq.Rejected}
	if err := w.cfg.Stores.Dead.Put(w.t.Context(), "", e); err != nil {
		w.t.Fatal(err)
	}
}

// What somebody changes is set back if it would lose messages, and it is said how many are lost.
func TestUpkeep_settings(t *testing.T) {
	t.Parallel()
	w := newWatched(t, Room{Bytes: 1 << 30, Messages: 1000, Age: time.Hour})
	for n := range 8 {
		w.letter(n + 1)
	}
	stop := w.run(w.WatchSettings)
	defer stop()
	w.eventually("the dead letters are nearly full", func() bool {
		return len(w.Troubles()) == 1 && strings.Contains(w.Troubles()[0], "80 % of dlq.max_msgs")
	})
	w.edit("RELAY_DLQ", func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 3, jetstream.DiscardOld })
	w.eventually("it is said", func() bool {
		err := w.Err(time.Now())
		return err != nil && strings.Contains(err.Error(), "stream RELAY_DLQ: ") && strings.Contains(err.Error(), "5 dead letters were lost") && w.has("stream RELAY_DLQ: ")
	})
	w.eventually("it is set back", func() bool {
		s, err := w.js.Stream(t.Context(), "RELAY_DLQ")
		return err == nil && s.CachedInfo().Config.MaxMsgs == 10 && s.CachedInfo().Config.Discard == jetstream.DiscardNew
	})
	if !w.said("one of relay's own streams was changed from outside", "stream=RELAY_DLQ") {
		t.Errorf("log:\n%s", &w.log)
	}
	if err := w.Err(time.Now().Add(lossSaid + time.Minute)); err != nil {
		t.Errorf("said for ever: %v", err)
	}
	w.edit("RELAY_RETRY", func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour })
	w.eventually("the retry stream, too", func() bool {
		edited, _ := w.RetryEdited()
		return !edited.IsZero() && strings.Contains(fmt.Sprint(w.Err(time.Now())), "no parked messages were lost")
	})
	w.LostParked(t.Context(), "orders", 3)
	metrics := make(chan prometheus.Metric, 100)
	w.Collect(metrics)
	close(metrics)
	lost := 0
	for m := range metrics {
		if m.Desc() == lostDesc {
			lost++
		}
	}
	if lost != 2 {
		t.Errorf("lost messages of %d streams", lost)
	}
}

// How full the dead letters are, and how many of them are of which route, is counted soon after something was stored. A bucket that is missing is
// trouble, until it is there again.
func TestUpkeep_use(t *testing.T) {
	t.Parallel()
	w := newWatched(t, Room{Bytes: 1 << 30, Messages: 1000, Age: time.Hour})
	w.letter(1)
	defer w.run(w.WatchUse)()
	defer w.run(w.WatchJobs)()
	dead := func(route string, want int) bool {
		n, known := w.Dead(route)
		return known && n == want
	}
	w.eventually("replay jobs are counted", func() bool { list, known := w.Operated(); return known && len(list) == 0 })
	w.eventually("the first is counted", func() bool { return dead("orders", 1) && dead("other", 0) && w.Usage().Entries == 1 })
	for n := range 8 {
		w.letter(n + 2)
	}
	w.stirred.Add(8)
	w.eventually("all are counted", func() bool { return dead("orders", 9) })
	if !w.said("dead letters are nearly full", "percent=90") || !w.has("filling 9") {
		t.Errorf("log:\n%s\nreported %q", &w.log, w.reported)
	}
	if err := w.js.DeleteKeyValue(t.Context(), "RELAY_INSTANCES"); err != nil {
		t.Fatal(err)
	}
	w.stirred.Add(1)
	w.eventually("the bucket is missing", func() bool { return w.has("bucket RELAY_INSTANCES: ") && w.cfg.Troubles.Err() != nil })
	if _, err := w.js.CreateStream(t.Context(), ownstream.Bucket("RELAY_INSTANCES", 1, time.Minute)); err != nil {
		t.Fatal(err)
	}
	w.eventually("it is there again", func() bool { return w.has("bucket RELAY_INSTANCES: <nil>") && w.cfg.Troubles.Err() == nil })
}

// What did not change is not counted again, and a count that took long is not repeated soon.
func TestCountDead_rests(t *testing.T) {
	t.Parallel()
	u := New(Config{Routes: func() []string { return nil }})
	now := time.Now()
	u.countDead(t.Context(), dlq.Usage{Last: 3}, now) // no entries: nobody is asked
	if n, known := u.Dead("orders"); n != 0 || !known {
		t.Errorf("%d, %v", n, known)
	}
	u.use.dead.next = now.Add(time.Minute)
	u.countDead(t.Context(), dlq.Usage{Entries: 1, Last: 4}, now)
	if u.use.dead.seen.last != 3 {
		t.Error("counted again before its time")
	}
}

func TestUse_warnsOnce(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	var u use
	now := time.Now()
	for _, bytes := range []uint64{0, 79, 80, 99, 50, 81} {
		u.note(dlq.Usage{Bytes: bytes, Max: 100}, now, dlq.OnFullBlock, log)
	}
	u.note(dlq.Usage{Bodies: 90, Max: 100}, now.Add(repeatWarning), dlq.OnFullDropOldest, log)
	if n := strings.Count(out.String(), "nearly full"); n != 3 || strings.Count(out.String(), "room again") != 1 {
		t.Errorf("%d warnings:\n%s", n, out.String())
	}
}
