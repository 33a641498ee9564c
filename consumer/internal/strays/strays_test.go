package strays

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/subject"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

func quiet() *Strays { return New(slog.New(slog.DiscardHandler), func() {}) }

// The most specific pattern that another instance wants counts, then what the stream holds.
func TestWantedBy(t *testing.T) {
	t.Parallel()
	s := quiet()
	s.Learn([]string{"orders.>", "images.*"}, []Wanted{{"orders.>", "all"}, {"orders.eu.paid", "paid"}, {"orders.eu.*", "eu"}}, time.Now())
	for literal, want := range map[string][3]string{
		"orders.eu.paid": {"orders.eu.paid", "paid", "known"},
		"orders.eu.new":  {"orders.eu.*", "eu", "known"},
		"orders.us.new":  {"orders.>", "all", "known"},
		"images.a":       {"images.*", retry.NoRoute, ""},
		"others.a":       {"others", retry.NoRoute, ""},
	} {
		pattern, route, known := s.WantedBy(literal)
		if got := [3]string{pattern, route, map[bool]string{true: "known"}[known]}; got != want {
			t.Errorf("%s: %q, want %q", literal, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		token := rapid.SampledFrom([]string{"a", "b", "*"})
		var list []Wanted
		for range rapid.IntRange(0, 6).Draw(t, "patterns") {
			list = append(list, Wanted{strings.Join(rapid.SliceOfN(token, 3, 3).Draw(t, "pattern"), "."), "r"})
		}
		literal := strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b"}), 3, 3).Draw(t, "subject"), ".")
		s.Learn(nil, list, time.Now())
		got, _, known := s.WantedBy(literal)
		for _, w := range list {
			if subject.Matches(w.Pattern, literal) && (!known || got != w.Pattern && subject.Covers(got, w.Pattern)) {
				t.Errorf("%s is for %s, and not for %s", literal, w.Pattern, got)
			}
		}
	})
}

// Messages of a wholly new route were kept for no route until the old instance had looked at the durable again.
func TestGoesBack_regressionNothingIsKeptForNoRouteBeforeALook(t *testing.T) {
	t.Parallel()
	s := quiet()
	s.Learn(nil, nil, time.Now().Add(-2*time.Second))
	for _, c := range []struct {
		deliveries  uint64
		pending     int
		back, doubt bool
	}{
		{1, 0, true, false},
		{5, 0, true, false},
		{1, manyFrom + 1, true, true}, // it may have come before the look
		{5, manyFrom + 1, true, true},
		{6, 0, false, false}, // it was away for longer than since the look
		{5, doubtTo, false, false},
	} {
		if _, back, doubt := s.GoesBack(retry.NoRoute, c.deliveries, c.pending); back != c.back || doubt != c.doubt {
			t.Errorf("%+v: goes back %v, in doubt %v", c, back, doubt)
		}
	}
	if _, back, doubt := s.GoesBack("billing", 1, manyFrom+1); back || doubt {
		t.Error("one whose route is known goes back although many are outstanding")
	}
	for n, want := range []time.Duration{100, 200, 400, 800, 1600, 3200, 3200} {
		if after, _, _ := s.GoesBack("billing", uint64(n)+1, 0); after != want*time.Millisecond {
			t.Errorf("the %d. time it stays away for %v", n+1, after)
		}
	}
}

func TestEmpty(t *testing.T) {
	t.Parallel()
	s := quiet()
	if s.IsEmpty("billing") || !s.Empty("billing") || s.Empty("billing") || !s.IsEmpty("billing") {
		t.Error("it is told once that the stream holds none of its subjects")
	}
	if s.NotEmpty("billing"); s.IsEmpty("billing") || !s.Empty("billing") {
		t.Error("it is told again when the stream held some meanwhile")
	}
}

// While many wait to be kept, no more is pulled; there is room for more when half of them are through.
func TestKeep(t *testing.T) {
	t.Parallel()
	var kept, rooms atomic.Int64
	s := New(slog.New(slog.DiscardHandler), func() { rooms.Add(1) })
	hold := make(chan struct{})
	var begun sync.WaitGroup
	begun.Add(paths)
	for range maxWaiting + 1 {
		s.Keep(func() {
			if kept.Add(1) <= paths {
				begun.Done()
			}
			<-hold
		})
	}
	begun.Wait()
	if !s.Many() || kept.Load() != paths {
		t.Errorf("%d are being kept", kept.Load())
	}
	close(hold)
	s.Wait()
	if s.Many() || kept.Load() != maxWaiting+1 || rooms.Load() != 1 {
		t.Errorf("%d were kept; room for more was told %d times", kept.Load(), rooms.Load())
	}
}

// The log tells of each subject once a minute, however many come.
func TestTell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		s := New(slog.New(slog.NewTextHandler(&said, nil)), func() {})
		if _, _, lately := s.Lately(); lately {
			t.Error("none came, and they came lately")
		}
		began := time.Now()
		for range 1000 {
			s.Came("orders.>", "orders.first")
			s.Came("images.>", "images.first")
		}
		if n := strings.Count(said.String(), "\n"); n != 2 {
			t.Errorf("%d lines: %s", n, &said)
		}
		time.Sleep(toldEvery)
		if since, example, lately := s.Lately(); !lately || !since.Equal(began) || example != "images.first" {
			t.Errorf("since %v, %s, lately %v", since, example, lately)
		}
		said.Reset()
		s.Tell(time.Now())
		if text := said.String(); strings.Count(text, "\n") != 2 || strings.Count(text, "count=999") != 2 {
			t.Errorf("after a minute: %s", text)
		}
		said.Reset()
		time.Sleep(2 * toldEvery)
		s.Tell(time.Now())
		if _, _, lately := s.Lately(); lately || said.Len() > 0 || len(s.told) > 0 {
			t.Errorf("long after the last one: %s", &said)
		}
		s.Came("orders.>", "orders.second")
		if since, _, lately := s.Lately(); !lately || !since.Equal(time.Now()) {
			t.Errorf("since %v", since)
		}
	})
}
