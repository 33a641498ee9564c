package schedule

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"

	"github.com/relaymq/relay/internal/natstest"
)

// world is a server for a bubble: one record, its watchers, and what was published. Each request takes a millisecond.
type world struct {
	mu       sync.Mutex
	value    []byte
	revision uint64
	watchers []chan jetstream.KeyValueEntry
	runs     []time.Time // as they were published
	log      bytes.Buffer
	stops    map[string]func()
}

func newWorld() *world { return &world{stops: map[string]func(){}} }

type worldJS struct {
	jetstream.JetStream
	w *world
}

func (worldJS) Conn() *nats.Conn { return new(nats.Conn) }

func (j worldJS) KeyValue(context.Context, string) (jetstream.KeyValue, error) {
	return worldKV{w: j.w}, nil
}

func (j worldJS) PublishMsg(_ context.Context, m *nats.Msg, _ ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	time.Sleep(time.Millisecond)
	j.w.mu.Lock()
	defer j.w.mu.Unlock()
	run, err := time.Parse(time.RFC3339, m.Header.Get("Relay-Schedule-Run"))
	j.w.runs = append(j.w.runs, run)
	return &jetstream.PubAck{Stream: "JOBS"}, err
}

type worldKV struct {
	jetstream.KeyValue
	w *world
}

type worldEntry struct {
	jetstream.KeyValueEntry
	value    []byte
	revision uint64
}

func (e worldEntry) Value() []byte    { return e.value }
func (e worldEntry) Revision() uint64 { return e.revision }

func (k worldKV) Get(context.Context, string) (jetstream.KeyValueEntry, error) {
	time.Sleep(time.Millisecond)
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	if k.w.revision == 0 {
		return nil, jetstream.ErrKeyNotFound
	}
	return worldEntry{value: k.w.value, revision: k.w.revision}, nil
}

func (k worldKV) Update(_ context.Context, _ string, value []byte, revision uint64) (uint64, error) {
	time.Sleep(time.Millisecond)
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	if revision != k.w.revision {
		return 0, jetstream.ErrKeyExists
	}
	k.w.value, k.w.revision = value, revision+1
	for _, ch := range k.w.watchers {
		select {
		case ch <- nil:
		default:
		}
	}
	return k.w.revision, nil
}

func (k worldKV) Create(ctx context.Context, key string, value []byte, _ ...jetstream.KVCreateOpt) (uint64, error) {
	return k.Update(ctx, key, value, 0)
}

type worldWatcher struct{ ch chan jetstream.KeyValueEntry }

func (w worldWatcher) Updates() <-chan jetstream.KeyValueEntry { return w.ch }
func (w worldWatcher) Error() <-chan error                     { return nil }
func (w worldWatcher) Stop() error                             { return nil }

func (k worldKV) WatchAll(ctx context.Context, _ ...jetstream.WatchOpt) (jetstream.KeyWatcher, error) {
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	ch := make(chan jetstream.KeyValueEntry, 1)
	k.w.watchers = append(k.w.watchers, ch)
	context.AfterFunc(ctx, func() {
		k.w.mu.Lock()
		defer k.w.mu.Unlock()
		k.w.watchers = slices.DeleteFunc(k.w.watchers, func(c chan jetstream.KeyValueEntry) bool { return c == ch })
		close(ch)
	})
	return worldWatcher{ch}, nil
}

// start runs an instance with this definition. An instance of that name must not run.
func (w *world) start(instance string, s Schedule) {
	r := New(worldJS{w: w}, Config{Service: "relay", Instance: instance, Schedules: []Schedule{s}, Logger: slog.New(slog.NewTextHandler(w, nil))})
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { r.records(ctx) })
	w.stops[instance] = func() {
		cancel()
		done.Wait()
		delete(w.stops, instance)
	}
}

func (w *world) stop(instance string) { w.stops[instance]() }

func (w *world) stopAll() {
	for _, stop := range w.stops {
		stop()
	}
}

func (w *world) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(line)
}

func (w *world) said(words string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Count(w.log.String(), words)
}

func (w *world) record() (rec Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = json.Unmarshal(w.value, &rec)
	return rec
}

func (w *world) writes() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return int(w.revision)
}

// published are the runs from since on.
func (w *world) published(since time.Time) (list []time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, run := range w.runs {
		if run.After(since) {
			list = append(list, run)
		}
	}
	return list
}

func every(d time.Duration) Schedule {
	return Schedule{Name: "tick", Every: d, Subject: "jobs.tick"}
}

const newerCounts = "another instance runs a schedule by a newer definition"

// Each instance of a rolling deploy wrote its own definition into the record whenever it saw the other's: thousands of writes a second, and runs
// were lost.
func TestRunner_regressionInstancesWithOtherDefinitionsDoNotFight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.stopAll()
		w.start("older", every(time.Hour))
		time.Sleep(time.Second)
		w.start("newer", every(2*time.Hour))
		w.start("another", every(time.Hour))
		before := w.writes()
		time.Sleep(15 * time.Second)
		if n := w.writes() - before; n > 6 {
			t.Errorf("%d writes in 15 s, want a handful", n)
		}
		if rec := w.record(); rec.Timing != every(2*time.Hour).Timing() || rec.Generation != 2 {
			t.Errorf("%+v", rec)
		}
		if n := w.said(newerCounts); n != 2 {
			t.Errorf("two older instances said so %d times:\n%s", n, w.log.String())
		}
		before = w.writes()
		time.Sleep(10 * time.Minute)
		if n := w.writes() - before; n > 130 {
			t.Errorf("%d writes in 10 minutes, want 2 in 10 s", n)
		}
		w.stop("older")
		w.stop("another")
		time.Sleep(time.Minute)
		before = w.writes()
		time.Sleep(30 * time.Minute)
		if n := w.writes() - before; n != 0 {
			t.Errorf("%d writes while all instances agree", n)
		}
	})
}

// What the instances with the newer definition publish is what a single one would.
func TestRunner_regressionARollingDeployLosesNoRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.stopAll()
		began := time.Now()
		w.start("a", every(time.Second))
		w.start("b", every(time.Second))
		time.Sleep(10*time.Second + 500*time.Millisecond)
		w.stop("a")
		w.start("a", every(2*time.Second))
		time.Sleep(10 * time.Second)
		w.stop("b")
		w.start("b", every(2*time.Second))
		time.Sleep(10 * time.Second)
		var want []time.Time
		for at := began.Add(time.Second); !at.After(time.Now()); at = at.Add(time.Second) {
			if at.Before(began.Add(11*time.Second)) || at.Unix()%2 == 0 {
				want = append(want, at.UTC())
			}
		}
		if got := w.published(began); !slices.EqualFunc(got, want, time.Time.Equal) {
			t.Errorf("published\n%v, want\n%v", got, want)
		}
	})
}

// Both are due at the moment of the change: the newer definition has the run.
func TestRunner_aRunThatIsDueAtTheChangeIsPublishedOnce(t *testing.T) {
	rec := Record{Timing: every(time.Second).Timing(), Next: noon}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.stopAll()
		time.Sleep(time.Until(noon.Add(20 * time.Millisecond)))
		w.value, _ = json.Marshal(rec)
		w.revision = 1
		w.start("newer", every(2*time.Second))
		time.Sleep(time.Second)
		if got := w.published(time.Time{}); len(got) != 1 || !got[0].Equal(noon) {
			t.Errorf("published %v, want %v", got, noon)
		}
	})
}

func TestRunner_aRollbackComesToPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.stopAll()
		w.start("a", every(time.Minute))
		w.start("b", every(time.Minute))
		time.Sleep(time.Second)
		w.stop("a")
		w.start("a", every(time.Hour))
		time.Sleep(30 * time.Second)
		if rec := w.record(); rec.Timing != every(time.Hour).Timing() {
			t.Fatalf("the newer definition does not count: %+v", rec)
		}
		w.stop("a")
		gone := time.Now()
		w.start("a", every(time.Minute))
		time.Sleep(askAgain + silence + look)
		if rec := w.record(); rec.Timing != every(time.Minute).Timing() || rec.Generation != 3 {
			t.Errorf("%+v", rec)
		}
		time.Sleep(5*time.Minute - time.Since(gone))
		if n := len(w.published(gone)); n != 5 {
			t.Errorf("%d runs in 5 minutes, want 5: one that was due while nobody answered is late, not lost", n)
		}
		if n := w.said("a schedule runs by a changed definition from now on"); n != 2 {
			t.Errorf("%d changes were said, want 2:\n%s", n, w.log.String())
		}
	})
}

// An earlier version writes the record without a generation, and takes its own definition back whenever it sees another one.
func TestRunner_besideAnEarlierVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.stopAll()
		old := []byte(`{"format":1,"timing":"|1h0m0s|","next":"2000-01-01T01:00:00Z"}`)
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		defer done.Wait()
		defer cancel()
		done.Go(func() {
			kv := worldKV{w: w}
			watch, _ := kv.WatchAll(ctx)
			for {
				if rec := w.record(); rec.Timing != every(time.Hour).Timing() {
					w.mu.Lock()
					revision := w.revision
					w.mu.Unlock()
					_, _ = kv.Update(ctx, "tick", old, revision)
				}
				if _, open := <-watch.Updates(); !open {
					return
				}
			}
		})
		time.Sleep(time.Second)
		w.start("newer", every(2*time.Hour))
		time.Sleep(10 * time.Minute)
		if n := w.writes(); n > 120 {
			t.Errorf("%d writes in 10 minutes", n)
		}
		cancel()
		done.Wait()
		time.Sleep(time.Minute)
		if rec := w.record(); rec.Timing != every(2*time.Hour).Timing() {
			t.Errorf("the earlier version is gone, and its definition counts: %+v", rec)
		}
	})
}

// Whoever starts and stops, there are few writes, and in the end a definition counts that an instance has, and stays.
func TestRunner_definitionsOfRandomInstances(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		type step struct {
			instance string
			hours    int // 0 stops it
			wait     time.Duration
		}
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
			return step{
				rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "instance"), rapid.IntRange(0, 3).Draw(rt, "definition"),
				time.Duration(rapid.IntRange(0, 40_000).Draw(rt, "wait")) * time.Millisecond,
			}
		}), 1, 12).Draw(rt, "steps")
		var fault error
		synctest.Test(t, func(*testing.T) { //nolint:thelper // a bubble
			w := newWorld()
			defer w.stopAll()
			has := map[string]string{}
			began := time.Now()
			for _, s := range append(steps, step{"e", 4, 0}, step{"e", 0, 0}, step{"a", 1, 0}) { // somebody lives in the end
				if w.stops[s.instance] != nil {
					w.stop(s.instance)
					delete(has, s.instance)
				}
				if s.hours > 0 {
					def := every(time.Duration(s.hours) * time.Hour)
					w.start(s.instance, def)
					has[s.instance] = def.Timing()
				}
				time.Sleep(s.wait)
			}
			time.Sleep(2 * (askAgain + silence + look))
			settled := w.record()
			if !slices.Contains(slices.Collect(maps.Values(has)), settled.Timing) {
				fault = fmt.Errorf("nobody has the definition that counts: %+v, instances %v", settled, has)
				return
			}
			time.Sleep(5 * time.Minute)
			if rec := w.record(); rec.Generation != settled.Generation {
				fault = fmt.Errorf("the definition changed without a cause: %+v, then %+v, instances %v", settled, rec, has)
			}
			// Two for each question of 10 s, and a few for each start.
			if most := int(time.Since(began)/askAgain)*2 + 6*len(steps) + 20; w.writes() > most {
				fault = errors.Join(fault, fmt.Errorf("%d writes in %v, want at most %d", w.writes(), time.Since(began), most))
			}
		})
		if fault != nil {
			rt.Fatal(fault)
		}
	})
}

// The same against a server: the bucket counts the writes.
func TestRunner_regressionTwoDefinitionsOnAServer(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	stream := jobs(t, js)
	start(t, runner(js, "older", nil, every(time.Second)))
	natstest.Eventually(t, "the older definition runs", func() bool { return count(t, stream) > 0 })
	start(t, runner(js, "newer", nil, every(2*time.Second)))
	natstest.Eventually(t, "the newer definition counts", func() bool { return record(t, js, "tick").Timing == every(2*time.Second).Timing() })
	bucket, err := js.Stream(t.Context(), "KV_"+Bucket("relay"))
	if err != nil {
		t.Fatal(err)
	}
	before, runs := bucket.CachedInfo().State.LastSeq, count(t, stream)
	time.Sleep(5 * time.Second) // nothing is waited for: it is what is counted
	info, err := bucket.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	more := count(t, stream) - runs
	if n := info.State.LastSeq - before; n > 2*4+4 {
		t.Errorf("%d writes in 5 s", n)
	}
	if more < 2 || more > 3 {
		t.Errorf("%d runs in 5 s, want one in 2 s", more)
	}
}
