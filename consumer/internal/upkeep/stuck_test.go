package upkeep

import (
	"testing"
	"testing/synctest"
	"time"
)

// They are searched at the start by all, then hourly by the first, and by each some time after it could not store something.
func TestStuck_due(t *testing.T) {
	t.Parallel()
	now := time.Now()
	first, other := func() bool { return true }, func() bool { return false }
	for what, c := range map[string]struct {
		since  time.Duration // the last search; 0: none
		failed time.Duration // ago; 0: nothing did
		first  func() bool
		due    bool
	}{
		"start":           {0, 0, other, true},
		"lately":          {unstickEvery - 1, 0, first, false},
		"an hour":         {unstickEvery, 0, first, true},
		"not the first":   {unstickEvery, 0, other, false},
		"trouble":         {time.Minute, unstickCalm, other, true},
		"no calm yet":     {time.Minute, unstickCalm - 1, first, false},
		"calm and hourly": {unstickEvery, 1, first, true},
	} {
		var s stuck
		failed := int64(0)
		if c.since > 0 {
			s.looked = now.Add(-c.since)
		}
		if c.failed > 0 {
			failed = now.Add(-c.failed).UnixNano()
		}
		if due := s.due(now, failed, c.first); due != c.due {
			t.Errorf("%s: due %v", what, due)
		}
	}
}

// What fails during a search may not have been found by it.
func TestStuck_troubleDuringASearchStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := New(Config{})
		u.NotStored()
		before := u.stuck.failed.Load()
		time.Sleep(time.Second)
		u.NotStored()
		u.stuck.found(time.Now(), before)
		last := u.stuck.failed.Load()
		if last == 0 {
			t.Fatal("the later one is forgotten")
		}
		if u.stuck.found(time.Now(), last); u.stuck.failed.Load() != 0 {
			t.Error("it is searched for ever")
		}
	})
}

func TestUpkeep_watchStuckSearchesAtTheStart(t *testing.T) {
	t.Parallel()
	w := newWatched(t, Room{})
	w.NotStored()
	w.stuck.failed.Store(time.Now().Add(-unstickCalm).UnixNano())
	stop := w.run(w.WatchStuck)
	w.eventually("the retry stream is searched", func() bool { return w.stuck.failed.Load() == 0 })
	stop()
	if w.stuck.looked.IsZero() {
		t.Error("it is not noted")
	}
}

// The records of messages are swept by all, bodies and the rest by the first.
func TestUpkeep_sweep(t *testing.T) {
	t.Parallel()
	w := newWatched(t, Room{})
	defer w.run(w.Sweep)()
	w.eventually("records are swept", func() bool { return w.swept.Load() == 1 })
	if !w.first() {
		t.Error("the only instance is not the first")
	}
}
