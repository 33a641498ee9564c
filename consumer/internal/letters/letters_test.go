package letters

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var errFull = errors.New("full")

// While dead letters are not taken, only so many wait. Whatever waits is stored, or comes again later.
func TestQueue_isBoundedWhileNothingIsTaken(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		size  int
		holds int // beside the one that is being stored
	}{
		{"by number", 0, most + 1},
		{"by bytes", 1 << 20, mostBytes>>20 + 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q, answer := New(1), make(chan struct{})
				var stored, later atomic.Int64
				store := func() { <-answer; stored.Add(1) }
				put := func() bool { return q.Add(tt.size, store, func() { later.Add(1) }) }
				q.Note(errFull, time.Now())
				put()
				synctest.Wait()
				n := 0
				for put() {
					n++
				}
				if n != tt.holds {
					t.Errorf("%d wait, want %d", n, tt.holds)
				}
				close(answer)
				q.Wait()
				if s, l := stored.Load(), later.Load(); s+l != int64(n+1) || tt.size > 0 && l == 0 {
					t.Errorf("%d were stored and %d come later, of %d", s, l, n+1)
				}
			})
		})
	}
}

// However many wait, all are stored while dead letters are taken.
func TestQueue_hasNoBoundWhileAllIsWell(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, answer := New(2), make(chan struct{})
		var stored atomic.Int64
		q.Note(errFull, time.Now())
		q.Note(nil, time.Now())
		for i := range 3 * most {
			if !q.Add(1<<20, func() { <-answer; stored.Add(1) }, func() { t.Error("it comes later") }) {
				t.Fatalf("number %d was refused", i)
			}
		}
		close(answer)
		q.Wait()
		if n := stored.Load(); n != 3*most {
			t.Errorf("%d were stored, want %d", n, 3*most)
		}
	})
}

// The delay grows with the failures in a row, up to about 8 s, and one success ends it.
func TestQueue_delay(t *testing.T) {
	t.Parallel()
	q, now := New(1), time.Now()
	for i := range 20 {
		if d := q.Delay(); d < time.Second/2 || d > 10*time.Second || i > 10 && d < 4*time.Second {
			t.Errorf("after %d failures the delay is %v", i, d)
		}
		q.Note(errFull, now)
		now = now.Add(10 * time.Second)
	}
	q.Note(nil, now)
	if d := q.Delay(); d > 2*time.Second {
		t.Errorf("after a success the delay is %v", d)
	}
}

// Fifty dead letters that fail while the connection is away for a moment are one failure: all of them waited for 8 s.
func TestQueue_regressionManyFailAtOnce(t *testing.T) {
	t.Parallel()
	q, now := New(1), time.Now()
	for range 50 {
		q.Note(errFull, now)
	}
	if d := q.Delay(); d > 2*time.Second {
		t.Errorf("the delay is %v", d)
	}
}

// The trouble ends with a success, and by itself when nothing was tried for a minute.
func TestQueue_trouble(t *testing.T) {
	t.Parallel()
	q, now := New(1), time.Now()
	if err := q.Trouble(now); err != nil {
		t.Errorf("nothing was tried: %v", err)
	}
	q.Note(errFull, now)
	if err := q.Trouble(now.Add(forgotten - 1)); !errors.Is(err, errFull) {
		t.Errorf("got %v, want %v", err, errFull)
	}
	if err := q.Trouble(now.Add(forgotten)); err != nil {
		t.Errorf("it is forgotten by now: %v", err)
	}
	q.Note(errFull, now)
	q.Note(nil, now)
	if err := q.Trouble(now); err != nil {
		t.Errorf("one was stored: %v", err)
	}
}
