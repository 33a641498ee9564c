package consumer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/catchup"
	"github.com/relaymq/relay/internal/audit"
)

// handledBy is which route had which message, by its body, and how often.
type handledBy struct {
	mu  sync.Mutex
	had map[string]map[string]int // by body, by route
}

func (h *handledBy) route(name string, start Start, subjects ...string) Route {
	return Route{Name: name, Durable: "shared", Subjects: subjects, Start: start, Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.had == nil {
			h.had = map[string]map[string]int{}
		}
		body := m.Subject + " " + string(m.Data)
		if h.had[body] == nil {
			h.had[body] = map[string]int{}
		}
		h.had[body][m.Route]++
		return nil
	})}
}

func (h *handledBy) count(route string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, by := range h.had {
		n += by[route]
	}
	return n
}

// wrong are the messages that were handled more than once, or by two routes.
func (h *handledBy) wrong() (list []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for body, by := range h.had {
		sum := 0
		for _, n := range by {
			sum += n
		}
		if sum != 1 {
			list = append(list, fmt.Sprint(body, by))
		}
	}
	slices.Sort(list)
	return list
}

func (w *world) retention(name string, policy jetstream.RetentionPolicy, subjects ...string) {
	w.t.Helper()
	if _, err := w.js.CreateStream(w.t.Context(), jetstream.StreamConfig{Name: name, Subjects: subjects, Retention: policy}); err != nil {
		w.t.Fatal(err)
	}
}

// A route that joined a durable, or got one more subject, never got what its stream held already, whatever its start said.
func TestCatchUp_regressionWhatTheDurableHasPassedComesToTheRoute(t *testing.T) {
	t.Parallel()
	all := Start{Policy: "all"}
	for name, c := range map[string]struct {
		retention jetstream.RetentionPolicy
		start     Start // of the route that joins
		want      int   // of the 30 messages of before
	}{
		"all":        {start: all, want: 30},
		"new":        {start: Start{Policy: "new"}, want: 0},
		"sequence":   {start: Start{Policy: "seq", Seq: 21}, want: 20}, // there are 10 others in front
		"work queue": {retention: jetstream.WorkQueuePolicy, start: all, want: 30},
	} {
		for _, reload := range []bool{false, true} {
			for _, more := range []bool{false, true} { // the route that is there gets a subject more
				if more && c.start != all {
					continue
				}
				t.Run(fmt.Sprintf("%s, reload %v, one route %v", name, reload, more), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t)
					w.retention("JOBS", c.retention, "jobs.>")
					var h handledBy
					a := h.route("a", all, "jobs.a.>")
					b := h.route("b", c.start, "jobs.b.>")
					r, stop := w.start(Config{Logger: quiet}, a)
					w.publish("jobs.a.x", 10)
					w.publish("jobs.b.x", 30)
					w.eventually("the first are handled", func() bool { return h.count("a") == 10 && w.info("JOBS", "shared").AckFloor.Consumer == 10 })
					routes, change := []Route{a, b}, Change{Add: []Route{b}}
					to := "b"
					if more {
						both := h.route("a", all, "jobs.a.>", "jobs.b.>")
						routes, change, to = []Route{both}, Change{Update: []Route{both}}, "a"
					}
					began := 0
					if more {
						began = 10
					}
					if reload {
						if _, err := r.Change(t.Context(), change); err != nil {
							t.Fatal(err)
						}
					} else {
						if err := stop(); err != nil {
							t.Fatal(err)
						}
						r, _ = w.start(Config{Logger: quiet}, routes...)
					}
					w.publish("jobs.a.y", 5)
					w.publish("jobs.b.y", 5)
					want := began + c.want + 5
					if more {
						want += 5
					}
					w.eventually("all are handled", func() bool { return h.count(to) >= want && (more || h.count("a") == 15) })
					w.eventually("it is over", func() bool {
						record, err := catchup.NewBook(r.engine.Stores.Ledgers).Get(t.Context(), "JOBS", "shared")
						return err == nil && record.IsOver() && w.info("JOBS", "shared").NumAckPending == 0
					})
					if list := h.wrong(); h.count(to) != want || len(list) > 0 {
						t.Errorf("%s handled %d, want %d; wrong: %q", to, h.count(to), want, list)
					}
					if c.retention == jetstream.WorkQueuePolicy {
						if n := w.msgs("JOBS").Msgs; n != 0 {
							t.Errorf("%d stay in the work queue", n)
						}
					}
					w.eventually("the ledger is balanced", func() bool {
						a := audit.Auditor{JS: w.js, API: "$JS.API.", Service: "relay", Retry: "RELAY_RETRY", Book: r.engine.Stores.Ledgers}
						b, err := a.Audit(t.Context(), "JOBS", "shared", audit.AllRoutes, 0)
						return err == nil && b.Verdict == audit.Balanced
					})
				})
			}
		}
	}
}

// Where a route begins with what the durable has passed is for people to say.
func TestCatchUp_withoutAStartItIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var h handledBy
	r, stop := w.start(Config{Logger: quiet}, h.route("a", Start{}, "orders.a"))
	b := h.route("b", Start{}, "orders.b")
	if err := r.Check(t.Context(), Change{Add: []Route{b}}); err != nil {
		t.Errorf("nothing waits, and yet: %v", err)
	}
	w.publish("orders.b", 3)
	const want = "stream ORDERS already holds 3 messages for orders.b, which durable shared has passed"
	if err := r.Check(t.Context(), Change{Add: []Route{b}}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a change: %v", err)
	}
	_ = stop()
	if err := w.refused(Config{}, h.route("a", Start{}, "orders.a"), b); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a start: %v", err)
	}
}

// Of a work queue nobody else can have what is left out.
func TestCatchUp_aWorkQueueHasOneStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.retention("JOBS", jetstream.WorkQueuePolicy, "jobs.>")
	var h handledBy
	r, _ := w.start(Config{Logger: quiet}, h.route("a", Start{}, "jobs.a"))
	w.publish("jobs.b", 3)
	for _, start := range []Start{{}, {Policy: "new"}, {Policy: "seq", Seq: 2}} {
		err := r.Check(t.Context(), Change{Add: []Route{h.route("b", start, "jobs.b")}})
		if err == nil || !strings.Contains(err.Error(), "JOBS is a work queue and holds 3 messages for jobs.b") {
			t.Errorf("start %v: %v", start, err)
		}
	}
	if err := r.Check(t.Context(), Change{Add: []Route{h.route("b", Start{Policy: "all"}, "jobs.b")}}); err != nil {
		t.Error(err)
	}
}

// Several instances get a route more in turn, while messages of both routes come all the time.
func TestCatchUp_rollingChange(t *testing.T) {
	t.Parallel()
	for name, retention := range map[string]jetstream.RetentionPolicy{"limits": jetstream.LimitsPolicy, "work queue": jetstream.WorkQueuePolicy} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.retention("JOBS", retention, "jobs.>")
			var h handledBy
			all := Start{Policy: "all"}
			a, b, c := h.route("a", all, "jobs.a"), h.route("b", all, "jobs.b"), h.route("c", all, "jobs.c")
			stops := make([]func() error, 3)
			for i := range stops {
				_, stops[i] = w.start(Config{Logger: quiet, Instance: fmt.Sprint("i", i)}, a)
			}
			const each = 600
			done := make(chan struct{})
			go func() {
				defer close(done)
				for i := range each {
					for _, s := range []string{"jobs.a", "jobs.b", "jobs.c"} {
						if _, err := w.js.Publish(t.Context(), s, fmt.Appendf(nil, "%d", i)); err != nil {
							t.Error(err)
						}
					}
					time.Sleep(2 * time.Millisecond)
				}
			}()
			for i := range stops {
				time.Sleep(150 * time.Millisecond)
				if err := stops[i](); err != nil {
					t.Fatal(err)
				}
				routes := []Route{a, b}
				if i%2 == 1 {
					routes = []Route{a, c, b}
				}
				_, stops[i] = w.start(Config{Logger: quiet, Instance: fmt.Sprint("i", i)}, routes...)
			}
			<-done
			w.eventually("all are handled", func() bool { return h.count("a") >= each && h.count("b") >= each && h.count("c") >= each })
			time.Sleep(500 * time.Millisecond)
			if list := h.wrong(); len(list) > 0 {
				t.Errorf("%d wrong: %.2000q", len(list), list)
			}
		})
	}
}

// Messages of both routes in any order, some handled, some failing, some not yet delivered when a route joins or grows.
func TestCatchUp_randomOrder(t *testing.T) {
	t.Parallel()
	for range 12 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(seed, 0))
			w := newWorld(t)
			retention := []jetstream.RetentionPolicy{jetstream.LimitsPolicy, jetstream.WorkQueuePolicy}[rnd.IntN(2)]
			w.retention("JOBS", retention, "jobs.>")
			var h handledBy
			held := make(chan struct{})
			slow := func(r Route) Route {
				next := r.Handler
				var failed sync.Map
				r.Retry.Min, r.Retry.Max = 300*time.Millisecond, 300*time.Millisecond
				r.Concurrency = 1 + rnd.IntN(4)
				r.Handler = HandlerFunc(func(ctx context.Context, m *Msg) error {
					switch n := m.Sequence % 7; {
					case n == 1:
						select {
						case <-held:
						case <-ctx.Done():
							return ctx.Err()
						}
					case n == 2:
						if _, again := failed.LoadOrStore(m.Sequence, true); !again {
							return errors.New("the first time")
						}
					}
					return next.Handle(ctx, m)
				})
				return r
			}
			before := rnd.IntN(60)
			var all []string // the subjects, in order
			publish := func(n int) {
				for range n {
					subject := []string{"jobs.a.x", "jobs.b.x"}[rnd.IntN(2)]
					if _, err := w.js.Publish(t.Context(), subject, fmt.Appendf(nil, "%d", len(all))); err != nil {
						t.Fatal(err)
					}
					all = append(all, subject)
				}
			}
			r, stop := w.start(Config{Logger: quiet, Drain: 200 * time.Millisecond}, slow(h.route("a", Start{Policy: "all"}, "jobs.a.>")))
			publish(before)
			time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
			start := Start{Policy: "all"}
			wants := func(int) bool { return true }
			which := rnd.IntN(4)
			if retention == jetstream.WorkQueuePolicy {
				which = 0
			}
			switch which {
			case 1:
				start = Start{Policy: "new"}
				wants = func(i int) bool { return i >= before }
			case 2:
				start = Start{Policy: "seq", Seq: uint64(rnd.IntN(before+1) + 1)}
				wants = func(i int) bool { return i+1 >= int(start.Seq) }
			case 3:
				if before > 0 {
					from := rnd.IntN(before)
					start = Start{Policy: "since", Since: w.storedAt("JOBS", uint64(from+1))}
					wants = func(i int) bool { return i >= from }
				}
			}
			b := slow(h.route("b", start, "jobs.b.>"))
			a := slow(h.route("a", Start{Policy: "all"}, "jobs.a.>"))
			if rnd.IntN(2) == 0 {
				if _, err := r.Change(t.Context(), Change{Add: []Route{b}}); err != nil {
					t.Fatal(err)
				}
			} else {
				if err := stop(); err != nil {
					t.Log(err)
				}
				r, _ = w.start(Config{Logger: quiet}, a, b)
			}
			publish(rnd.IntN(30))
			close(held)
			wantA, wantB := 0, 0
			for i, m := range all {
				switch {
				case m == "jobs.a.x":
					wantA++
				case wants(i):
					wantB++
				}
			}
			w.eventually("all are handled", func() bool { return h.count("a") >= wantA && h.count("b") >= wantB })
			w.eventually("it is over", func() bool {
				record, err := catchup.NewBook(r.engine.Stores.Ledgers).Get(t.Context(), "JOBS", "shared")
				return err == nil && record.IsOver() && w.info("JOBS", "shared").NumAckPending == 0
			})
			w.eventually("the ledger is balanced", func() bool {
				a := audit.Auditor{JS: w.js, API: "$JS.API.", Service: "relay", Retry: "RELAY_RETRY", Book: r.engine.Stores.Ledgers}
				b, err := a.Audit(t.Context(), "JOBS", "shared", audit.AllRoutes, 0)
				return err == nil && b.Verdict == audit.Balanced
			})
			if h.count("a") != wantA || h.count("b") != wantB || len(h.wrong()) > 0 {
				t.Errorf("wrong %q; start %v, %d before: a handled %d, want %d; b %d, want %d", h.wrong(), start, before, h.count("a"), wantA, h.count("b"), wantB)
			}
		})
	}
}

func (w *world) storedAt(stream string, seq uint64) time.Time {
	w.t.Helper()
	s, err := w.js.Stream(w.t.Context(), stream)
	if err != nil {
		w.t.Fatal(err)
	}
	m, err := s.GetMsg(w.t.Context(), seq)
	if err != nil {
		w.t.Fatal(err)
	}
	return m.Time
}

// An instance ended between the moment at which it noted what a durable will pass, and the one at which it knew how far that is: before the durable was
// widened, or after.
func TestCatchUp_anEndInBetween(t *testing.T) {
	t.Parallel()
	for _, widened := range []bool{false, true} {
		t.Run(fmt.Sprint("widened ", widened), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.retention("JOBS", jetstream.LimitsPolicy, "jobs.>")
			var h handledBy
			all := Start{Policy: "all"}
			a, b := h.route("a", all, "jobs.a"), h.route("b", all, "jobs.b")
			r, stop := w.start(Config{Logger: quiet}, a)
			for i := range 20 {
				for _, s := range []string{"jobs.a", "jobs.b"} {
					if _, err := w.js.Publish(t.Context(), s, fmt.Append(nil, i)); err != nil {
						t.Fatal(err)
					}
				}
			}
			w.eventually("the first are handled", func() bool { return h.count("a") == 20 && w.info("JOBS", "shared").AckFloor.Consumer == 20 })
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			info := w.info("JOBS", "shared")
			_, err := catchup.NewBook(r.engine.Stores.Ledgers).Change(t.Context(), "JOBS", "shared", func(*catchup.Record) (*catchup.Record, error) {
				record := &catchup.Record{Created: info.Created, Changing: catchup.Claim{By: "gone", Until: time.Now().Add(time.Second)}}
				record.Begin(catchup.Range{Pattern: "jobs.b", Except: []string{}, Held: 20, Began: time.Now()})
				return record, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if widened {
				c := info.Config
				c.FilterSubject, c.FilterSubjects = "", []string{"jobs.a", "jobs.b"}
				if c.Metadata["relay.route.b"] = c.Metadata["relay.route.a"]; c.Metadata["relay.route.b"] == "" {
					t.Fatalf("metadata %v", c.Metadata)
				}
				c.Metadata["relay.route.b"] = strings.ReplaceAll(c.Metadata["relay.route.b"], "jobs.a", "jobs.b")
				if _, err := w.js.UpdateConsumer(t.Context(), "JOBS", c); err != nil {
					t.Fatal(err)
				}
			}
			r, _ = w.start(Config{Logger: quiet}, a, b)
			w.eventually("all are handled", func() bool { return h.count("b") >= 20 })
			w.eventually("it is over", func() bool {
				record, err := catchup.NewBook(r.engine.Stores.Ledgers).Get(t.Context(), "JOBS", "shared")
				return err == nil && record.IsOver()
			})
			if list := h.wrong(); len(list) > 0 || h.count("a") != 20 || h.count("b") != 20 {
				t.Errorf("a handled %d, b %d; wrong: %q", h.count("a"), h.count("b"), list)
			}
		})
	}
}

// A durable that had been widened once, and had passed messages by that, was widened again: relay took the first message that it had passed for where the durable
// goes on, and left out what lies behind it.
func TestCatchUp_regressionADurableThatIsWidenedTwice(t *testing.T) {
	t.Parallel()
	for name, pause := range map[string]time.Duration{"at once": 0, "when the first is handed over": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.stream("JOBS", "a.>", "b.>", "c.>")
			h := new(handledBy)
			r, _ := w.start(Config{Logger: quiet}, h.route("a", StartAll, "a.y"))
			for _, subj := range []string{"c.x", "a.x", "b.x", "b.z"} {
				w.publish(subj, 1)
			}
			change := func(subjects ...string) {
				t.Helper()
				if _, err := r.Update(t.Context(), h.route("a", StartAll, subjects...)); err != nil {
					t.Fatal(err)
				}
			}
			change("a.x")
			time.Sleep(pause)
			w.publish("c.y", 1)
			change("a.x", "b.x", "c.*")
			w.eventually("all that it wants is handled", func() bool { return h.count("a") == 4 })
			w.stays("nothing comes twice", func() bool { return len(h.wrong()) == 0 && h.count("a") == 4 })
		})
	}
}
