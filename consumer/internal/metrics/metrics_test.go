package metrics

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/orphans"
	"github.com/relaymq/relay/internal/supervise"
)

// world is an instance whose snapshot a test makes.
type world struct {
	*Collector
	t    *testing.T
	snap Snapshot
}

func newWorld(t *testing.T, also ...prometheus.Collector) *world {
	w := &world{t: t, snap: Snapshot{Connected: true, Ready: true}}
	cfg := Config{
		Answers: [Answers]string{"yes", "no", "nobody", "unknown", "again"}, Replies: [Replies]string{"delivered", "nobody", "failed", "sent"},
		Snapshot: func() Snapshot {
			s := w.snap
			s.Ended = w.Ended(func() {})
			return s
		},
	}
	for _, a := range also {
		cfg.Collect, cfg.Describe = append(cfg.Collect, a.Collect), append(cfg.Describe, a.Describe)
	}
	w.Collector = New(cfg)
	return w
}

// route is a new one, which flows.
func (w *world) route(name string) Route {
	r := Route{Name: name, Count: new(RouteCount), State: control.StateFlowing}
	w.Enter(name, r.Count)
	return r
}

func (w *world) families() []*dto.MetricFamily {
	w.t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(w)
	families, err := reg.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	return families
}

// gathered are the values, by "name{label,label}", with the values of the labels. Of histograms it is how much was counted.
func (w *world) gathered() map[string]float64 {
	w.t.Helper()
	values := make(map[string]float64)
	for _, f := range w.families() {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			values[strings.TrimPrefix(f.GetName(), "relay_")+"{"+strings.Join(labels, ",")+"}"] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return values
}

func (w *world) has(want map[string]float64) {
	w.t.Helper()
	got := w.gathered()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if v, ok := got[name]; !ok || v != want[name] {
			w.t.Errorf("%s is %v (%v), want %v", name, v, ok, want[name])
		}
	}
}

func (w *world) lacks(prefixes ...string) {
	w.t.Helper()
	for name, v := range w.gathered() {
		for _, p := range prefixes {
			if strings.HasPrefix(name, p) {
				w.t.Errorf("%s is %v, and nothing is known of it", name, v)
			}
		}
	}
}

func TestCollector_whatARouteCounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.route("billing")
	w.snap.Routes = []Route{r}
	c := r.Count
	c.Verdicts[supervise.Snooze].Add(1)
	c.Settled[supervise.AckMessage].Add(2)
	c.Settled[supervise.RetryLater].Add(3)
	c.Settled[supervise.DeadLetter].Add(4)
	c.Moves[supervise.Probing].Add(5)
	c.Naked.Add(6)
	c.Parked.Add(7)
	c.Fallback.Add(8)
	c.Kept.Add(9)
	c.Aside.Add(10)
	c.NotDead.Add(11)
	c.Expired.Add(12)
	c.Forgotten.Add(13)
	c.Refused.Add(14)
	c.Answers[4].Add(15)
	c.Replies[1].Add(16)
	c.Dead(supervise.ReasonGaveUp)
	c.Dead(supervise.ReasonGaveUp)
	c.Dead("crash")
	c.Dead("no such reason")
	c.Took(time.Millisecond)
	c.Through(time.Second)
	c.Through(time.Hour)
	w.has(map[string]float64{
		"verdicts_total{billing,snooze}": 1, "verdicts_total{billing,ack}": 0,
		"settlements_total{acked,billing}": 2, "settlements_total{retried,billing}": 3, "settlements_total{dead,billing}": 4, "settlements_total{fallback,billing}": 8,
		"settlements_total{let_go,billing}": 0, "settlements_total{given_back,billing}": 0, "settlements_total{dropped,billing}": 0,
		"state_changes_total{billing,probing}": 5, "state_changes_total{billing,stopped}": 0,
		"retries_total{billing,nak}": 6, "retries_total{billing,parked}": 7, "retries_total{billing,stash}": 9,
		"put_aside_total{billing}": 10, "dead_letter_failures_total{billing}": 11, "expired_total{billing}": 12, "forgotten_total{billing}": 13,
		"caller_headers_refused_total{billing}": 14, "questions_total{again,billing}": 15, "questions_total{yes,billing}": 0, "replies_total{nobody,billing}": 16,
		"dead_letters_total{gave_up,billing}": 2, "dead_letters_total{crash,billing}": 1, "dead_letters_total{expired,billing}": 0,
		"handler_seconds{billing}": 1, "message_age_seconds{billing}": 2,
	})
	if c.Acked() != 10 || c.Retried() != 12 || c.DeadLetters() != 4 || c.Stored() != 3 {
		t.Errorf("%d acked, %d retried, %d dead letters, %d of them stored", c.Acked(), c.Retried(), c.DeadLetters(), c.Stored())
	}
}

func TestCollector_howARouteIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.route("billing")
	r.State = control.StateLimited
	r.Group = supervise.Status{
		StashMessages: 1, StashBytes: 2, Aside: 3, Running: 4, Stuck: 5, Window: 6, Keys: map[supervise.State]int{supervise.Waiting: 7},
		Counts: supervise.Counts{Panics: 8, Hangs: 9, Evicted: 10}, Limited: []supervise.Limited{{Limit: "mail", Held: 11}, {Limit: "mail", Bucket: "mail/a", Held: 1}},
	}
	r.Fallback = supervise.FallbackStatus{Running: 12, Done: 13, Failed: 14}
	r.Holds, r.HeldMost, r.CatchUp = supervise.Room{Messages: 15, Bytes: 16}, 17, 18
	r.Limits, r.Here, r.Behind, r.Dead = []string{"mail", "rates"}, new(true), new(19), new(20)
	r.Backlog, r.Oldest = &control.Backlog{Stream: 21, Outstanding: 22, Parked: new(uint64(23))}, new(time.Now().Add(-90*time.Minute))
	w.snap.Routes = []Route{r}
	got := w.gathered()
	if age := got["oldest_message_age_seconds{billing}"]; age < 5400 || age > 5500 {
		t.Errorf("the oldest is %v s old", age)
	}
	w.has(map[string]float64{
		"stash_messages{billing}": 1, "stash_bytes{billing}": 2, "aside_messages{billing}": 3, "handlers_running{billing}": 4, "handlers_stuck{billing}": 5,
		"window_messages{billing}": 6, "keys{billing,waiting}": 7, "keys{billing,flowing}": 0, "handler_panics_total{billing}": 8, "handler_hangs_total{billing}": 9,
		"stash_evictions_total{billing}": 10, "limit_waiting_messages{mail,billing}": 12, "limit_waiting_messages{rates,billing}": 0, "fallback_running{billing}": 12,
		"fallback_attempts_total{done,billing}": 13, "fallback_attempts_total{failed,billing}": 14,
		"held_messages{billing}": 15, "held_bytes{billing}": 16, "held_bytes_limit{billing}": 17, "catch_up_messages{billing}": 18,
		"route_holder{billing}": 1, "partitions_behind_messages{billing}": 19, "dlq_messages{billing}": 20,
		"backlog_messages{billing,stream}": 21, "backlog_messages{billing,outstanding}": 22, "backlog_messages{billing,parked}": 23,
		"route_up{billing}": 1, "route_state{billing,limited}": 1, "route_state{billing,flowing}": 0,
	})
	for _, state := range control.States {
		w.snap.Routes[0].State = state
		up := state == control.StateFlowing || state == control.StateLimited || state == control.StateStandby
		w.has(map[string]float64{"route_up{billing}": float64(one(up)), "route_state{billing," + state + "}": 1})
	}
	w.snap.Routes[0].Oldest = new(time.Time{})
	w.has(map[string]float64{"oldest_message_age_seconds{billing}": 0})
}

func TestCollector_theInstance(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.snap.Ready = false
	w.snap.Orphans = map[string]int{orphans.Retries: 3, orphans.Durable: 0}
	w.snap.Archive = &Archive{Stored: 4, Dropped: 5}
	count := new(DurableCount)
	count.Delivered.Add(6)
	count.Late.Add(7)
	count.Rebuilds.Add(8)
	count.Strays.Add(9)
	w.snap.Durables = []Durable{{Stream: "JOBS", Name: "d", Count: count, Unconfirmed: 10, AckPending: new(11)}, {Stream: "JOBS", Name: "unknown", Count: new(DurableCount)}}
	w.snap.Limits = []Limit{{Name: "mail", Places: 12, Rate: 0.5, Running: map[string]int{"billing": 2}}}
	w.has(map[string]float64{
		"nats_connected{}": 1, "ready{}": 0, "orphaned_messages{retries}": 3, "orphaned_messages{durable}": 0, "archive_records_total{}": 4, "archive_dropped_total{}": 5,
		"deliveries_total{d,JOBS}": 6, "late_deliveries_total{d,JOBS}": 7, "pull_rebuilds_total{d,JOBS}": 8, "strays_total{d,JOBS}": 9, "unconfirmed_settlements{d,JOBS}": 10,
		"ack_pending{d,JOBS}": 11, "deliveries_total{unknown,JOBS}": 0, "limit_concurrency{mail}": 12, "limit_rate{mail}": 0.5, "limit_running{mail,billing}": 2,
	})
	w.lacks("ack_pending{unknown")
}

// 0 would say that nothing waits.
func TestCollector_whatIsNotKnownIsLeftOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.snap.Routes = []Route{w.route("billing")}
	w.lacks("backlog_", "oldest_", "dlq_", "route_holder", "partitions_behind", "archive_", "orphaned_", "ack_pending")
	w.snap.Routes[0].Backlog = &control.Backlog{Stream: 1}
	w.has(map[string]float64{"backlog_messages{billing,stream}": 1, "backlog_messages{billing,outstanding}": 0})
	w.lacks("backlog_messages{billing,parked}")
}

func TestCollector_deadLettersOfNoRoute(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.route("a"), w.route("b")
	a.Dead, b.Dead = new(2), new(3)
	w.snap.Routes = []Route{a, b}
	w.snap.DeadLetters = &dlq.Usage{Entries: 9, Oldest: time.Now().Add(-time.Hour)}
	w.has(map[string]float64{"dlq_messages{a}": 2, "dlq_messages{b}": 3, "dlq_messages{}": 4})
	if age := w.gathered()["dlq_oldest_age_seconds{}"]; age < 3600 || age > 3700 {
		t.Errorf("the oldest is %v s old", age)
	}
	w.snap.DeadLetters = &dlq.Usage{Entries: 4} // looked at before
	w.has(map[string]float64{"dlq_messages{}": 0})
	w.snap.DeadLetters = &dlq.Usage{}
	w.has(map[string]float64{"dlq_oldest_age_seconds{}": 0})
}

// The parts of a route are one route for who looks from outside.
func TestCollector_partsAreAddedUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.route("billing"), w.route("billing")
	a.Count.Parked.Add(1)
	b.Count.Parked.Add(2)
	a.Group.Running, b.Group.Running = 3, 4
	b.State = control.StateStopped
	a.Oldest, b.Oldest = new(time.Now().Add(-time.Hour)), new(time.Now())
	a.Count.Took(time.Second)
	b.Count.Took(time.Second)
	w.snap.Routes = []Route{a, b}
	w.has(map[string]float64{
		"retries_total{billing,parked}": 3, "handlers_running{billing}": 7, "route_up{billing}": 0, "route_state{billing,flowing}": 1, "route_state{billing,stopped}": 1,
		"handler_seconds{billing}": 2,
	})
	if age := w.gathered()["oldest_message_age_seconds{billing}"]; age < 3600 {
		t.Errorf("the oldest of all parts is %v s old", age)
	}
}

// A route that gets more partitions, or fewer, goes on to count from where it was.
func TestCollector_whatARouteCountedDoesNotGetLess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old, other := w.route("billing"), w.route("mail")
	w.snap.Routes = []Route{old, other}
	old.Count.Parked.Add(5)
	old.Count.Took(time.Second)
	next := w.route("billing")
	w.Change(map[string][]*RouteCount{"billing": {old.Count}}, func() { w.snap.Routes = []Route{next, other} })
	old.Count.Parked.Add(1) // it drains
	next.Count.Parked.Add(2)
	want := map[string]float64{"retries_total{billing,parked}": 8, "handler_seconds{billing}": 1, "retries_total{mail,parked}": 0}
	w.has(want)
	last := w.route("billing")
	before := w.Ended(func() {})
	w.Change(map[string][]*RouteCount{"billing": {next.Count}}, func() { w.snap.Routes = []Route{last, other} })
	if len(before["billing"]) != 1 || len(w.Ended(func() {})["billing"]) != 2 {
		t.Errorf("%v", before)
	}
	w.has(want)
	w.Change(map[string][]*RouteCount{"billing": {last.Count}}, func() { w.snap.Routes = []Route{other} })
	w.Forget("billing")
	w.has(map[string]float64{"retries_total{mail,parked}": 0})
	for name := range w.gathered() {
		if strings.Contains(name, "billing") {
			t.Errorf("%s is still there", name)
		}
	}
	again := w.route("billing")
	w.snap.Routes = []Route{again}
	w.has(map[string]float64{"retries_total{billing,parked}": 0, "handler_seconds{billing}": 0})
	w.Enter("billing", again.Count)
	again.Count.Took(time.Second)
	w.has(map[string]float64{"handler_seconds{billing}": 1})
}

// A scrape while a route ends sees it once, and not twice or never.
func TestCollector_seesNoChangeByHalf(t *testing.T) {
	t.Parallel()
	c := New(Config{})
	here := new(RouteCount)
	var changes sync.WaitGroup
	over := make(chan struct{})
	changes.Go(func() {
		defer close(over)
		for range 200 {
			c.Change(map[string][]*RouteCount{"billing": {here}}, func() { here = new(RouteCount) })
		}
	})
	for n := 0; ; n++ {
		var now *RouteCount
		ended := c.Ended(func() { now = here })["billing"]
		if now == nil || slices.Contains(ended, now) {
			t.Fatal("one that ended is still there")
		}
		select {
		case <-over:
			changes.Wait()
			if n := len(c.Ended(func() {})["billing"]); n != 200 {
				t.Errorf("%d ended", n)
			}
			return
		default:
		}
	}
}

// What others collect goes with it, and what they may collect later is described.
func TestCollector_collectsForOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "relay_other"}, func() float64 { return 3 }))
	w.has(map[string]float64{"other{}": 3})
}

// A message on its way costs nothing but the atomics.
func TestRouteCount_allocatesNothing(t *testing.T) {
	w := newWorld(t)
	r, d := w.route("billing"), new(DurableCount)
	if n := testing.AllocsPerRun(1000, func() {
		d.Delivered.Add(1)
		r.Count.Verdicts[supervise.Ack].Add(1)
		r.Count.Settled[supervise.AckMessage].Add(1)
		r.Count.Dead(supervise.ReasonDead)
		r.Count.Took(time.Millisecond)
		r.Count.Through(time.Second)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// What becomes known only after the registration is described all the same: a registry that checks this refused a scrape, when the age of the oldest
// message was counted between both.
func TestDescribe_regressionWhatIsKnownLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.snap.Routes = []Route{w.route("orders")}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(w)
	r := &w.snap.Routes[0]
	r.Backlog, r.Oldest, r.Dead = &control.Backlog{Stream: 1, Parked: new(uint64(2))}, new(time.Now()), new(3)
	w.snap.DeadLetters = &dlq.Usage{Entries: 9, Oldest: time.Now()}
	if _, err := reg.Gather(); err != nil {
		t.Error(err)
	}
}
