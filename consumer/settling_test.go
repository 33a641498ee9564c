package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/supervisor"
)

// refuses has a stream take nothing any more, until the function that is returned is called.
func (w *world) refuses(stream string) (accept func()) {
	w.t.Helper()
	st, err := w.js.Stream(w.t.Context(), stream)
	if err != nil {
		w.t.Fatal(err)
	}
	was := st.CachedInfo().Config.MaxMsgSize
	// As an instance with another configuration would: relay sets back at once what others edit.
	noted := func(size int32) map[string]string {
		m := maps.Clone(st.CachedInfo().Config.Metadata)
		if m == nil {
			m = make(map[string]string)
		}
		m["relay-max_msg_size"] = strconv.Itoa(int(size))
		return m
	}
	set := func(size int32) {
		w.t.Helper()
		c := st.CachedInfo().Config
		c.MaxMsgSize = size
		c.Metadata = noted(size)
		if _, err := w.js.UpdateStream(w.t.Context(), c); err != nil {
			w.t.Fatal(err)
		}
	}
	set(1)
	// With its first look right after the start the configuration wins.
	ctx, stop := context.WithCancel(w.t.Context())
	c := st.CachedInfo().Config
	c.MaxMsgSize, c.Metadata = 1, noted(1)
	var again sync.WaitGroup
	again.Go(func() {
		for tick := time.NewTicker(20 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
				_, _ = w.js.UpdateStream(ctx, c) // no change: no effect
			}
		}
	})
	w.t.Cleanup(func() { stop(); again.Wait() })
	w.stays("it takes nothing", func() bool {
		info, err := st.Info(ctx)
		return err == nil && info.Config.MaxMsgSize == 1
	})
	return func() {
		stop()
		again.Wait()
		set(was)
	}
}

// lines counts what is logged, but for the attempts.
type lines struct{ n atomic.Int64 }

func (l *lines) Enabled(context.Context, slog.Level) bool { return true }
func (l *lines) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn && r.Message != "attempt failed" && r.Message != "dead-lettered" {
		l.n.Add(1)
	}
	return nil
}
func (l *lines) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l *lines) WithGroup(string) slog.Handler      { return l }

var often = supervisor.Backoff{Policy: supervisor.Constant, Min: 20 * time.Millisecond, Max: 20 * time.Millisecond, Jitter: new(0.0)}

// Without the bucket of attempts no failure was settled, and no dead letter stored: they stood on the slow paths behind failures
// that could not be recorded, each of which wrote a line a second, and relay was ready all the time.
func TestRelay_withoutTheBucketOfAttemptsFailuresAreParkedAndDeadLettersStored(t *testing.T) {
	w := newWorld(t)
	const messages, most = 400, 3
	var starts atomic.Int64
	said := new(lines)
	r, _ := w.start(Config{Logger: slog.New(said)}, Route{
		Name: "billing", Subjects: []string{"orders.>"},
		Retry:      Retry{MaxAttempts: most, Backoff: often},
		Supervisor: supervisor.Config{RouteTrip: supervisor.RouteTrip{Of: new(0)}, TripAfter: new(0)},
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
			starts.Add(1)
			if strings.HasPrefix(m.Subject, "orders.never") {
				return Dead(errors.New("nobody can"))
			}
			return errors.New("not today")
		}),
	})
	accept := w.refuses("KV_RELAY_ATTEMPTS")
	for i := range messages {
		w.publish(fmt.Sprintf("orders.%d", i), 1)
	}
	w.publish("orders.never", 1)
	w.eventually("all are dead letters", func() bool { return len(w.deadLetters()) == messages+1 })
	w.settled("ORDERS", "billing")
	// A few more on a machine that is so busy that relay takes a lease for lost.
	if n := starts.Load(); n < messages*most+1 || n > messages*most+messages/4 {
		t.Errorf("%d attempts, want %d", n, messages*most+1)
	}
	w.unready(r, "attempts cannot be recorded since")
	if n := said.n.Load(); n > 20 {
		t.Errorf("%d lines in the log", n)
	}
	accept()
	w.eventually("it is ready again", func() bool { return r.Ready() == nil })
}

// Nothing at all can be stored: the messages stay with their leases, are not started again, and go their way afterwards.
func TestRelay_failuresThatCanNeitherBeRecordedNorParkedAreHeld_timed(t *testing.T) {
	timed(t)
	w := newWorld(t)
	const messages, most = 300, 2
	var starts atomic.Int64
	said := new(lines)
	r, stop := w.start(Config{Logger: slog.New(said)}, Route{
		Name: "billing", Subjects: []string{"orders.>"}, AckWait: time.Second,
		Retry:      Retry{MaxAttempts: most, Backoff: often},
		Supervisor: supervisor.Config{RouteTrip: supervisor.RouteTrip{Of: new(0)}, TripAfter: new(0)},
		Handler: HandlerFunc(func(context.Context, *Msg) error {
			starts.Add(1)
			return errors.New("not today")
		}),
	})
	records, parked := w.refuses("KV_RELAY_ATTEMPTS"), w.refuses("RELAY_RETRY")
	for i := range messages {
		w.publish(fmt.Sprintf("orders.%d", i), 1)
	}
	held := r.engine.Routes.All()[0].Path.Held
	w.eventually("they are held", func() bool { return held() == messages })
	since := time.Now()
	w.eventually("three times AckWait is over", func() bool { return time.Since(since) > 3*time.Second })
	if n := starts.Load(); n != messages {
		t.Errorf("%d attempts while nothing can be recorded, want %d: leases are lost", n, messages)
	}
	if n := said.n.Load(); n > 20 {
		t.Errorf("%d lines in the log", n)
	}
	records()
	w.eventually("all are dead letters", func() bool { return len(w.deadLetters()) == messages })
	if n := starts.Load(); n != messages*most {
		t.Errorf("%d attempts, want %d", n, messages*most)
	}
	w.eventually("it is ready again", func() bool { return r.Ready() == nil })
	parked()

	// A drain does not wait for a bucket that is away.
	_ = w.refuses("KV_RELAY_ATTEMPTS")
	_ = w.refuses("RELAY_RETRY")
	w.publish("orders.last", 1)
	w.eventually("it is held", func() bool { return held() == 1 })
	began := time.Now()
	if err := stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the drain took %v", took)
	}
}

// Somebody deletes the bucket: it is made again, and the attempts that this instance remembers still count.
func TestRelay_deletedBucketOfAttemptsIsMadeAgain(t *testing.T) {
	w := newWorld(t)
	const most = 12
	var starts atomic.Int64
	r, _ := w.start(Config{}, Route{
		Name: "billing", Subjects: []string{"orders.>"},
		Retry:      Retry{MaxAttempts: most, Backoff: often},
		Supervisor: supervisor.Config{RouteTrip: supervisor.RouteTrip{Of: new(0)}, TripAfter: new(0)},
		Handler: HandlerFunc(func(context.Context, *Msg) error {
			starts.Add(1)
			return errors.New("not today")
		}),
	})
	w.publish("orders.1", 1)
	w.eventually("it failed a few times", func() bool { return starts.Load() > 3 })
	if err := w.js.DeleteKeyValue(t.Context(), "RELAY_ATTEMPTS"); err != nil {
		t.Fatal(err)
	}
	w.eventually("the message is a dead letter", func() bool { return len(w.deadLetters()) == 1 })
	if n := starts.Load(); n != most {
		t.Errorf("%d attempts, want %d", n, most)
	}
	w.eventually("the bucket is there again", func() bool {
		_, err := w.js.KeyValue(t.Context(), "RELAY_ATTEMPTS")
		if err != nil && !errors.Is(err, jetstream.ErrBucketNotFound) {
			t.Fatal(err)
		}
		return err == nil && r.Ready() == nil
	})
}
