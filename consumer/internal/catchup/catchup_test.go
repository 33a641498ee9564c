package catchup

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/pool"
	"github.com/relaymq/relay/internal/retry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// widened is a durable for a.> of a stream with messages on a.> and b.>, and what an instance knows of it.
type widened struct {
	*CatchUp
	t        *testing.T
	js       jetstream.JetStream
	stream   jetstream.Stream
	consumer jetstream.Consumer
	pool     *pool.Pool

	mu   sync.Mutex
	told []error
}

func newWidened(t *testing.T, retention jetstream.RetentionPolicy, messages int, want Want) *widened {
	t.Helper()
	s := natstest.Start(t)
	w := &widened{t: t, js: s.JetStream(t), pool: pool.New(1)}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	w.stream, err = w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "JOBS", Subjects: []string{"a.>", "b.>"}, Retention: retention})
	do(err)
	w.consumer, err = w.stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "all", FilterSubjects: []string{"a.>"}, AckPolicy: jetstream.AckExplicitPolicy})
	do(err)
	for i := range messages {
		for _, of := range []string{"a", "b"} {
			_, err := w.js.Publish(t.Context(), fmt.Sprintf("%s.%d", of, i), []byte(of))
			do(err)
		}
	}
	// The durable delivers what it is for, so that it has passed what is between.
	batch, err := w.consumer.Fetch(messages, jetstream.FetchMaxWait(5*time.Second))
	do(err)
	for m := range batch.Messages() {
		do(m.DoubleAck(t.Context()))
	}
	ledger, err := audit.Open(t.Context(), w.js, "relay", 1)
	do(err)
	retries, err := retry.OpenStream(t.Context(), w.js, "relay", "RELAY_RETRY", 1)
	do(err)
	_, err = w.js.CreateConsumer(t.Context(), retries.Name(), jetstream.ConsumerConfig{Durable: retry.DueDurable("b", "JOBS"), FilterSubject: "relay.due.b.JOBS.>", AckPolicy: jetstream.AckExplicitPolicy})
	do(err)
	w.CatchUp = New(Config{
		Conn: s.Conn(t), JS: w.js, API: jetstream.DefaultAPIPrefix, Service: "relay", Instance: "one", Log: slog.New(slog.DiscardHandler), Stream: "JOBS", Durable: "all",
		Book: func() *Book { return NewBook(ledger) }, Retry: func() *retry.Stream { return retries },
		Wants: func() []Want { return []Want{{Pattern: "a.>", Policy: "all"}, want} }, Routes: func() []string { return []string{"b"} },
		Target: func(subject string) (string, retry.Room) {
			return strings.SplitN(subject, ".", 2)[0], retry.Room{Messages: 10_000, Bytes: 1 << 30}
		},
		Ask: func(ctx context.Context) (jetstream.Stream, *jetstream.ConsumerInfo, error) {
			info, err := w.consumer.Info(ctx)
			return w.stream, info, err
		},
		Work: t.Context, Pool: w.pool,
		Tell: func(err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.told = append(w.told, err)
		},
	})
	t.Cleanup(w.pool.Wait)
	w.read()
	return w
}

func (w *widened) read() {
	w.t.Helper()
	info, err := w.consumer.Info(w.t.Context())
	if err == nil {
		err = w.Read(w.t.Context(), w.stream, info)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// widen gives the durable the subjects of both.
func (w *widened) widen() *Change {
	w.t.Helper()
	have := w.consumer.CachedInfo().Config
	want := have
	want.FilterSubjects = []string{"a.>", "b.>"}
	change, err := w.Change(w.t.Context(), w.stream, have, want, func() (jetstream.Consumer, error) {
		return w.stream.UpdateConsumer(w.t.Context(), want)
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.consumer = change.Consumer
	return change
}

// handOver has all turns run that there are.
func (w *widened) handOver() {
	w.t.Helper()
	for at := time.Now(); w.Record() != nil; at = at.Add(2 * time.Second) {
		w.settle()
		w.Soon(at)
		w.pool.Wait()
		w.mu.Lock()
		for _, err := range w.told {
			if err != nil {
				w.t.Fatal(err)
			}
		}
		w.mu.Unlock()
		if w.t.Context().Err() != nil {
			w.t.Fatal("it does not end")
		}
	}
}

// settle does with what the durable delivers of what is handed over as who pulls does.
func (w *widened) settle() {
	w.t.Helper()
	batch, err := w.consumer.FetchNoWait(100)
	if err != nil {
		w.t.Fatal(err)
	}
	for m := range batch.Messages() {
		meta, err := m.Metadata()
		if err == nil && w.Place(meta.Sequence.Stream, meta.Timestamp, m.Subject()) == Passed {
			err = m.DoubleAck(w.t.Context())
		} else if err == nil {
			err = m.NakWithDelay(10 * time.Millisecond)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// due is what the retry stream has for the route.
func (w *widened) due() map[string]uint64 {
	w.t.Helper()
	s, err := w.js.Stream(w.t.Context(), "RELAY_RETRY")
	if err != nil {
		w.t.Fatal(err)
	}
	info, err := s.Info(w.t.Context(), jetstream.WithSubjectFilter("relay.due.b.>"))
	if err != nil {
		w.t.Fatal(err)
	}
	return info.State.Subjects
}

// What a durable passed when it got more subjects is handed over once, from where the route says, and its place is known meanwhile.
func TestCatchUp_handsOver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		retention jetstream.RetentionPolicy
		want      Want
		handed    int
	}{
		"all":        {jetstream.LimitsPolicy, Want{Pattern: "b.>", Policy: "all"}, 300},
		"seq":        {jetstream.LimitsPolicy, Want{Pattern: "b.>", Policy: "seq", Seq: 501}, 50},
		"new":        {jetstream.LimitsPolicy, Want{Pattern: "b.>", Policy: "new"}, 0},
		"work queue": {jetstream.WorkQueuePolicy, Want{Pattern: "b.>", Policy: "all"}, 300},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWidened(t, c.retention, 300, c.want)
			change := w.widen()
			if (len(change.Passed) == 1) != (c.handed > 0) || change.SomebodyElse {
				t.Errorf("passed: %+v", change)
			}
			if c.handed > 0 {
				if p := w.Place(600, time.Now(), "b.299"); p == Outside {
					t.Error("a message that is handed over is taken for one that the durable delivers")
				}
				if p := w.Place(599, time.Now(), "a.299"); p != Outside {
					t.Errorf("a message that the durable delivers is %v", p)
				}
			}
			w.handOver()
			if n := len(w.due()); n != c.handed {
				t.Errorf("%d are handed over, want %d", n, c.handed)
			}
			w.read() // as the next start does
			w.handOver()
			if n := len(w.due()); n != c.handed {
				t.Errorf("%d after the next start", n)
			}
			if c.retention == jetstream.WorkQueuePolicy {
				info, err := w.stream.Info(t.Context())
				if err != nil || info.State.Msgs != 0 {
					t.Errorf("%d messages lie in the work queue for ever, %v", info.State.Msgs, err)
				}
			}
		})
	}
}

// Of two instances that change a durable one does, and the other one waits and sees that. What an instance began and did not end is bounded by its next
// start.
func TestCatchUp_oneAtATime(t *testing.T) {
	t.Parallel()
	w := newWidened(t, jetstream.LimitsPolicy, 20, Want{Pattern: "b.>", Policy: "all"})
	have := w.consumer.CachedInfo().Config
	w.widen()
	other := New(w.cfg)
	change, err := other.Change(t.Context(), w.stream, have, have, func() (jetstream.Consumer, error) {
		t.Error("the durable was changed back")
		return w.consumer, nil
	})
	if err != nil || !change.SomebodyElse {
		t.Errorf("%+v, %v", change, err)
	}
	// Killed between the note and the change.
	now := w.consumer.CachedInfo().Config
	gone := errorText("killed")
	w.cfg.Wants = func() []Want { return []Want{{Pattern: "a.>"}, {Pattern: "b.>"}, {Pattern: "c.>", Policy: "all"}} }
	killed := New(w.cfg)
	if _, err := killed.Change(t.Context(), w.stream, now, now, func() (jetstream.Consumer, error) { return nil, gone }); err != gone {
		t.Fatal(err)
	}
	if len(killed.Record().Open()) != 1 {
		t.Errorf("open: %+v", killed.Record())
	}
	killed.cfg.Tell = func(error) {}
	info, err := w.consumer.Info(t.Context())
	if err == nil {
		err = killed.Read(t.Context(), w.stream, info)
	}
	if err != nil || len(killed.Record().Open()) != 0 {
		t.Errorf("after the next start: %+v, %v", killed.Record(), err)
	}
}

// What a range would be is said without a change. One that the durable had before goes on where it was.
func TestCatchUp_wouldBegin(t *testing.T) {
	t.Parallel()
	w := newWidened(t, jetstream.LimitsPolicy, 20, Want{Pattern: "b.>", Policy: "seq", Seq: 4})
	info := w.consumer.CachedInfo()
	had := func() uint64 {
		list, err := w.WouldBegin(t.Context(), info, 40)
		if err != nil || len(list) != 1 || list[0].Pattern != "b.>" || list[0].From != 4 || list[0].Left {
			t.Fatalf("%+v %v", list, err)
		}
		return list[0].Had
	}
	note := func(r *Record) {
		_, err := w.cfg.Book().Change(t.Context(), "JOBS", "all", func(*Record) (*Record, error) { return r, nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := had(); n != 0 {
		t.Errorf("had %d of what it never had", n)
	}
	ranges := []Range{{Pattern: "a.>", Had: 3}, {Pattern: "b.>", Left: true, Had: 10}}
	note(&Record{Created: info.Created, Ranges: ranges})
	if n := had(); n != 10 {
		t.Errorf("had %d, want 10", n)
	}
	note(&Record{Created: info.Created.Add(time.Second), Ranges: ranges})
	if n := had(); n != 0 {
		t.Errorf("had %d from another durable of its name", n)
	}
	w.cfg.Book = func() *Book { return NewBook(nil) }
	if n := had(); n != 0 {
		t.Errorf("had %d without an account", n)
	}
	w.cfg.Off = true
	if list, err := w.WouldBegin(t.Context(), info, 40); err != nil || len(list) != 0 {
		t.Errorf("%+v %v", list, err)
	}
}

type errorText string

func (e errorText) Error() string { return string(e) }
