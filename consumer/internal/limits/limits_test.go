package limits

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/fleet"
	"github.com/relaymq/relay/internal/limit"
	"github.com/relaymq/relay/internal/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// Limits and routes that make no sense are refused, each with what to do.
func TestCheck_refused(t *testing.T) {
	t.Parallel()
	all := map[string]Limit{"tenant": {Concurrency: 1, Per: "{2}"}, "everywhere": {Concurrency: 1, Per: "{2}", Scope: ScopeService}, "gateway": {Concurrency: 1}}
	for _, c := range []struct {
		route Route
		want  string
	}{
		{Route{Limits: []string{"gatway"}}, `limit "gatway" is not defined`},
		{Route{Limits: []string{"gateway", "gateway"}}, "listed twice"},
		{Route{Subjects: []string{"orders.*"}, Limits: []string{"everywhere"}}, "instances: one"},
		{Route{Subjects: []string{"orders"}, Limits: []string{"tenant"}}, "has fewer tokens than"},
		{Route{Subjects: []string{"orders.*.*"}, Key: "{3}", Limits: []string{"tenant"}}, "messages of one key would have different limits"},
		{Route{Subjects: []string{"orders.*.*"}, Key: "route", Limits: []string{"tenant"}}, "messages of one key would have different limits"},
	} {
		if err := c.route.Check(all); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.route.Limits, err, c.want)
		}
	}
	for _, ok := range []Route{
		{Subjects: []string{"orders.>"}, Limits: []string{"tenant", "gateway"}},
		{Subjects: []string{"orders.*.*"}, Key: "{2}.{3}", Limits: []string{"tenant"}},
	} {
		if err := ok.Check(all); err != nil {
			t.Errorf("%v: %v", ok.Subjects, err)
		}
	}
	for _, text := range []string{"0/s", "-1/s", "5", "5/w", "1.5/s", "/s", "99999999999/s"} {
		if err := new(Rate).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("rate %q was taken", text)
		}
	}
	for i, l := range []Limit{{}, {Concurrency: -1}, {Burst: 3, Concurrency: 1}, {Concurrency: 1, Per: "x"}, {Concurrency: 1, Per: "{0}"}, {Concurrency: 1, Scope: "cluster"}} {
		if l.Validate() == nil {
			t.Errorf("limit %d was taken: %+v", i, l)
		}
	}
	if faults := Check(map[string]Limit{"a b": {Concurrency: 1}, "c": {}}); len(faults) != 2 || !strings.HasPrefix(faults[0].Error(), "limits.a b: a name must be") {
		t.Errorf("faults: %q", faults)
	}
	for _, r := range []Rate{{Count: 100, Per: time.Second}, {Count: 30, Per: time.Minute}, {Count: 1000, Per: time.Hour}, {Count: 5000, Per: 24 * time.Hour}} {
		var back Rate
		if err := back.UnmarshalText([]byte(r.String())); err != nil || back != r {
			t.Errorf("%v came back as %v: %v", r, back, err)
		}
	}
}

// A message needs a place of each limit that its route names: of one with per, of the value in its subject, and of the route's own.
func TestSet_needs(t *testing.T) {
	t.Parallel()
	all := map[string]Limit{"gateway": {Concurrency: 2}, "tenant": {Concurrency: 1, Per: "{2}"}}
	s := NewSet(all)
	r := Route{Limits: []string{"gateway", "tenant"}, Own: &Own{Route: "a", Bounds: limit.Bounds{Rate: 10, Burst: 1}}}
	if got := r.Names(); !slices.Equal(got, []string{"gateway", "tenant", "rate of a"}) {
		t.Errorf("names: %q", got)
	}
	always, also := s.Needs(r, all)
	names := func(needs []limit.Need) (list []string) {
		for _, n := range needs {
			list = append(list, n.Limit.Name()+"/"+n.Value)
		}
		return list
	}
	if got := names(always); !slices.Equal(got, []string{"gateway/", "rate of a/"}) {
		t.Errorf("always: %q", got)
	}
	for subject, want := range map[string]string{"orders.blue.x": "tenant/blue", "orders": "tenant/orders"} {
		if got := names(also(subject)); !slices.Equal(got, []string{want}) {
			t.Errorf("%s also needs %q, want %q", subject, got, want)
		}
	}
	if always, also := s.Needs(Route{}, all); always != nil || also != nil {
		t.Errorf("a route without limits needs %v", always)
	}
	if s.Book().Discard(); s.Own("a") != nil {
		t.Error("the limit of a change stays that was refused")
	}
	s.SetOwn(*r.Own)
	if own := s.Own("a"); own == nil || own.Status().Bounds.Rate != 10 {
		t.Errorf("the own limit: %v", own)
	}
	s.RemoveOwn("a")
	if s.Own("a") != nil {
		t.Error("the limit of a route outlives it")
	}
}

// A limit that becomes one of the service lets nothing start before this instance has a part of it; one that is taken away is gone.
func TestSet_replace(t *testing.T) {
	t.Parallel()
	s := NewSet(map[string]Limit{"a": {Concurrency: 2}, "b": {Concurrency: 2}})
	s.Replace(map[string]Limit{"a": {Concurrency: 2, Scope: ScopeService}, "c": {Rate: Rate{Count: 60, Per: time.Minute}}})
	told := map[string]string{}
	for _, l := range s.Status() {
		told[l.Name] = l.Closed
		if l.Name == "a" && (l.Concurrency != 2 || l.Part != 0 && l.Closed == "") || l.Name == "c" && (l.Rate != 1 || l.Scope != ScopeInstance) {
			t.Errorf("status: %+v", l)
		}
	}
	if len(told) != 2 || told["a"] != noPart || told["c"] != "" {
		t.Errorf("closed: %q", told)
	}
	if text := s.Describe("a"); !strings.Contains(text, noPart) {
		t.Errorf("described as %q", text)
	}
	if text := s.Describe("c"); !strings.Contains(text, "1 start in a second") {
		t.Errorf("described as %q", text)
	}
	s.Replace(map[string]Limit{"a": {Concurrency: 3}})
	if got := s.Status(); len(got) != 1 || got[0].Closed != "" || got[0].Concurrency != 3 {
		t.Errorf("back on each instance by itself: %+v", got)
	}
}

// Two instances never have more parts together than the service has. What one of them has stays there while it is in use.
func TestSet_share(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	all := map[string]Limit{"gateway": {Concurrency: 4, Rate: Rate{Count: 100, Per: time.Second}, Burst: 4, Scope: ScopeService}}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	type instance struct {
		set   *Set
		named chan bool // holds whether a route names the limit
	}
	join := func(name string) *instance {
		i := &instance{set: NewSet(all), named: make(chan bool, 1)}
		i.named <- true
		m := fleet.NewMembership(func(ctx context.Context) (*fleet.Fleet, error) {
			return fleet.Join(ctx, js, fleet.Config{Service: "relay", Instance: name, Version: "v1"})
		})
		running.Go(func() { m.Run(ctx) })
		running.Go(func() {
			i.set.Share(ctx, Sharing{Membership: m, Tell: func(map[string]Limit) {}, Named: func(string) bool {
				is := <-i.named
				i.named <- is
				return is
			}})
		})
		return i
	}
	part := func(i *instance) int {
		if l := i.set.Status()[0]; l.Closed == "" {
			return l.Part
		}
		return 0
	}
	// need has an instance want so many places, which it keeps.
	need := func(i *instance, n int64) {
		var waiting atomic.Int64
		waiting.Store(n)
		book, m := i.set.Book(), new(limit.Member)
		var places *limit.Places
		take := func() {
			for waiting.Load() > 0 {
				full, pass := places.Take(time.Now())
				for _, b := range pass {
					b.Pass()
				}
				if full != nil {
					return
				}
				waiting.Add(-1)
			}
		}
		m.Waiting = func(_ *limit.Bucket, most int) int { return min(most, int(waiting.Load())) }
		m.Offer = func(*limit.Bucket) bool {
			take()
			return waiting.Load() > 0
		}
		places = book.Places(m, limit.Need{Limit: book.Get("gateway")})
		take()
	}
	a, b := join("a"), join("b")
	need(a, 4)
	until := func(what string, ok func() bool) {
		t.Helper()
		for !ok() {
			if pa, pb := part(a), part(b); pa+pb > 4 {
				t.Fatalf("%s: together they have %d + %d of 4", what, pa, pb)
			}
			time.Sleep(time.Millisecond)
		}
	}
	until("the one that needs all has all", func() bool { return a.set.Status()[0].Used == 4 })
	need(b, 4)
	time.Sleep(100 * time.Millisecond)
	if used := b.set.Status()[0].Used; used != 0 {
		t.Errorf("%d more began while all are in use", used)
	}
	if l := a.set.Status()[0]; l.Used != 4 || l.Concurrency != 4 || l.Rate != 100 {
		t.Errorf("status: %+v", l)
	}
	for _, i := range []*instance{a, b} {
		i.set.Replace(map[string]Limit{"gateway": {Concurrency: 9}})
	}
	until("the other may start as many as it likes once each has the limit for itself", func() bool { return b.set.Status()[0].Used == 4 })
	if text := b.set.Describe("gateway"); !strings.Contains(text, "4 of 9 run") {
		t.Errorf("described as %q", text)
	}
}
