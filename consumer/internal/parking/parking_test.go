package parking

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/relaymq/relay/internal/provision"
)

type pending int

func (p pending) AckPending() int { return int(p) }

func TestWait(t *testing.T) {
	t.Parallel()
	const all = provision.MaxAckPending
	type message struct {
		wait       time.Duration
		aside      bool
		size       int
		snoozed    bool
		before     time.Duration // 0: it was never parked
		calledFrom int           // 0: the constant
	}
	for _, tt := range []struct {
		name      string
		message   message
		failed    int // above how many outstanding it leaves when it failed; -1: always
		unstarted int // when it spent no attempt; 1<<30: never
	}{
		{"at once", message{}, all / 2, 1 << 30},
		{"soon", message{wait: 4 * time.Second}, all / 2, 1 << 30},
		{"small, later", message{wait: time.Minute}, all / 8, unstartedFrom},
		{"large, later", message{wait: time.Minute, size: small + 1}, all / 8, all / 8},
		{"snoozed", message{wait: time.Minute, snoozed: true}, all / 8, all / 8},
		{"much later", message{wait: time.Hour}, -1, unstartedFrom},
		{"called back", message{wait: time.Hour, aside: true}, all / 4 * 3, all / 4 * 3},
		{"called back, in a test", message{wait: time.Hour, aside: true, calledFrom: 1500}, 1500, 1500},
		{"it came too early", message{wait: time.Minute, before: time.Minute}, all / 8, 1 << 30},
		{"it came when it was due", message{wait: time.Minute, before: -time.Minute}, all / 8, unstartedFrom},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, n := range []int{0, unstartedFrom, unstartedFrom + 1, 1500, 1501, all / 8, all/8 + 1, all / 2, all/2 + 1, all / 4 * 3, all/4*3 + 1, all} {
				w := Wait{Durable: pending(n), Due: time.Now().Add(tt.message.wait), Aside: tt.message.aside, CalledBackFrom: CalledBackFrom, Snoozed: tt.message.snoozed}
				if tt.message.calledFrom > 0 {
					w.CalledBackFrom = tt.message.calledFrom
				}
				if got := w.LeavesFailed(10 * time.Minute); got != (n > tt.failed) {
					t.Errorf("it failed, and %d are outstanding: %v", n, got)
				}
				var before time.Time
				if tt.message.before != 0 {
					before = time.Now().Add(tt.message.before)
				}
				if got := w.LeavesUnstarted(tt.message.size, before); got != (n > tt.unstarted) {
					t.Errorf("it was not started, and %d are outstanding: %v", n, got)
				}
			}
		})
	}
}

// When the retry stream fails for one, those that were queued before are sent back without asking it. A later one tries again after a rest.
func TestQueue_oneFailureSendsAllBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(func() {})
		var asked, back atomic.Int64
		const many = 3000
		for range many {
			if q.MayTry(time.Now()) {
				q.Add(10, func() bool {
					asked.Add(1)
					time.Sleep(Patience)
					q.Fails(time.Now())
					return false
				}, func() { back.Add(1) })
			}
		}
		q.Wait()
		if asked.Load() != paths || back.Load() != many-paths || q.Failures() != paths {
			t.Errorf("%d asked, %d sent back, %d failures", asked.Load(), back.Load(), q.Failures())
		}
		if q.Fails(time.Now()) {
			t.Error("the failure is told as new")
		}
		tries := 0
		for range 30 {
			if q.MayTry(time.Now()) {
				tries++
			}
			time.Sleep(time.Second)
		}
		if tries < 2 || tries > 3 {
			t.Errorf("%d tries in 30 s", tries)
		}
		q.Works()
		first := q.MayTry(time.Now())
		if second := q.MayTry(time.Now()); !first || !second || !q.Fails(time.Now()) {
			t.Error("after a success none may try")
		}
	})
}

// Whatever the sizes, whoever was told that the queue is full hears once that it is not, and not before it is half empty.
func TestQueue_full(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]int{0, 100, 64 << 10, 1 << 20}).Draw(t, "size")
		most := Most + 1 // waiting
		if size > 0 {
			most = min(most, MostBytes/size-paths+1)
		}
		var told atomic.Int64
		q, answer := NewQueue(func() { told.Add(1) }), make(chan struct{})
		for n := 0; ; n++ {
			if q.Full() {
				if n < most {
					t.Fatalf("it is full with %d of %d bytes", n, size)
				}
				break
			}
			if n > most+paths {
				t.Fatalf("it is not full with %d of %d bytes", n, size)
			}
			q.Add(size, func() bool { <-answer; return true }, func() {})
		}
		if told.Load() != 0 {
			t.Fatal("it was told too early")
		}
		close(answer)
		q.Wait()
		if told.Load() != 1 || q.Full() {
			t.Fatalf("told %d times, full %v", told.Load(), q.Full())
		}
	})
}
