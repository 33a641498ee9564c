package events

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/eventkind"
	"github.com/relaymq/relay/internal/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// sink is what a bus published, with when.
type sink struct {
	mu   sync.Mutex
	list []event.Event
	at   []time.Time
	err  error
}

func (s *sink) publish(e event.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list, s.at = append(s.list, e), append(s.at, time.Now())
	return s.err
}

func (s *sink) all() []event.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.list)
}

// Whatever is reported and whenever: each event is told once, in its group's first or a later gathering, at most one of a group a minute.
func TestBus_tellsOfEveryEventOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
			return step{
				kind: rapid.SampledFrom([]event.Kind{eventkind.KeyWaiting, eventkind.DeadLetter, eventkind.Audit}).Draw(rt, "kind"), why: rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "why"),
				route: rapid.SampledFrom([]string{"billing", "slack"}).Draw(rt, "route"), rest: time.Duration(rapid.IntRange(0, 90).Draw(rt, "rest")) * time.Second,
			}
		}), 1, 60).Draw(rt, "steps")
		synctest.Test(t, func(t *testing.T) { run(t, rt, steps) })
	})
}

type step struct {
	kind       event.Kind
	route, why string
	rest       time.Duration
}

func run(t *testing.T, rt *rapid.T, steps []step) {
	var s sink
	b := NewBus("relay", "here", func(why string) string { return why }, s.publish)
	b.Mute("slack")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go b.Run(ctx)
	want := map[group]int{}
	for _, st := range steps {
		b.Report(st.kind, event.Data{Route: st.route, Why: st.why})
		if st.route != "slack" {
			want[group{st.kind, st.route, st.why}]++
		}
		time.Sleep(st.rest)
	}
	time.Sleep(time.Millisecond)
	ended := time.Now()
	cancel()
	synctest.Wait()
	got, last := map[group]int{}, map[group]time.Time{}
	for i, e := range s.all() {
		g := group{e.Kind, e.Route, e.Why}
		got[g] += e.Count
		if e.First.After(e.Time) || e.Count < 1 || e.ID == "" {
			rt.Errorf("%+v", e)
		}
		at := s.at[i]
		if before, ok := last[g]; ok && e.Kind != eventkind.Audit && at.Sub(before) < window-time.Second && at.Before(ended) {
			rt.Errorf("two of %v within %v", g, at.Sub(before))
		}
		last[g] = at
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		rt.Errorf("told of %v, reported %v", got, want)
	}
	n := 0
	for range b.Events() { // closed
		n++
	}
	if n != len(s.all()) {
		rt.Errorf("%d in this process, %d published", n, len(s.all()))
	}
}

// A storm is one event at once, and one a minute; whoever reports is never kept waiting, though nothing is published.
func TestBus_aStormIsOneEventAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sink{err: errors.New("the connection is away")}
		b := NewBus("relay", "here", func(string) string { return "" }, s.publish)
		for range 3 * queued {
			b.Report(eventkind.DeadLetter, event.Data{Route: "billing"}) // nobody takes them yet
		}
		if n := b.dropped.Load(); n != 2*queued {
			t.Errorf("%d dropped, want %d", n, 2*queued)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go b.Run(ctx)
		synctest.Wait()
		if len(s.all()) != 1 || s.all()[0].Count != 1 {
			t.Fatalf("at once: %+v", s.all())
		}
		time.Sleep(window + time.Second)
		synctest.Wait()
		if len(s.all()) != 2 || s.all()[1].Count != queued-1 {
			t.Fatalf("after a minute: %+v", s.all())
		}
		time.Sleep(3 * window)
		cancel()
		synctest.Wait()
		if len(s.all()) != 2 || b.unsent.Load() != 2 {
			t.Errorf("%d events, %d unsent", len(s.all()), b.unsent.Load())
		}
	})
}
