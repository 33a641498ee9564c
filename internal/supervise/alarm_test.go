package supervise

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/supervisor"
)

// A worker that waits for the lock while the grace of a key ends finds the key queued when it has the lock. It once looked at
// the clock before that, found that the grace was not over yet, and dropped the key: its messages waited for ever. On the
// real clock, because time stands still in a bubble while a lock is waited for.
func TestGroup_regressionAKeyQueuedWhileAWorkerWaitsForTheLockStarts(t *testing.T) {
	b := newBench(t, Options{Config: supervisor.Config{Restart: supervisor.Backoff{Min: time.Millisecond}}})
	b.redeliver = false
	b.send(panicking, "a", 1)
	g := b.g
	within := time.Now().Add(10 * time.Second)
	await := func(what string, ok func() bool) {
		for !ok() {
			if time.Now().After(within) {
				t.Fatalf("not within 10s: %s", what)
			}
			runtime.Gosched()
		}
	}
	await("the key waits", func() bool { s := b.state("a"); return s == Waiting || s == Probing })
	b.send(succeed, "a", 2)
	var held *turn
	await("the key may probe", func() bool {
		held = g.lock()
		if held.keys["a"].is(Probing) {
			return true // with the lock
		}
		held.unlock()
		return false
	})
	held.slots.waking = true
	g.goes.Add(1)
	go g.awake()
	k := held.keys["a"]
	await("the grace ends", func() bool { return time.Now().After(k.state.until()) })
	held.now = time.Now()
	for k := held.alarm.due(held.now); k != nil; k = held.alarm.due(held.now) { // as tick does
		k.attend(held)
	}
	held.startAll()
	held.unlock()
	await("the probe starts", func() bool { return len(b.startsOf(2)) == 1 })
	g.Close(t.Context())
}

// A probe failed while an operator had paused the route: its message went back, its key was forgotten as one that nothing is left
// of, and then put among those that wait. Its memory served another key by then, or soon.
func TestAlarm_regressionAKeyThatFailsDuringAPauseIsForgottenOnce(t *testing.T) {
	for what, cfg := range map[string]supervisor.Config{
		"trips":        {TripAfter: new(1)},
		"names a time": {RetryAfter: scopeKey},
		"panics":       {},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg.RouteTrip.Of = new(3)
				b := newBench(t, Options{Config: cfg})
				for i := range uint64(3) {
					b.send(first(1, failing, succeed), fmt.Sprint("k", i), i+1)
				}
				synctest.Wait()
				fails := map[string]handlerFunc{"trips": failing, "names a time": retryAfter(time.Minute), "panics": panicking}[what]
				b.send(first(1, func(ctx context.Context, m *Message, n int) Verdict {
					time.Sleep(time.Second)
					return fails(ctx, m, n)
				}, succeed), "new", 10)
				for len(b.startsOf(10)) == 0 {
					time.Sleep(100 * time.Millisecond)
				}
				if s := b.g.Status(); s.State != Probing {
					t.Fatalf("the route is %v", s.State)
				}
				b.g.Pause()
				time.Sleep(2 * time.Second)
				turn := b.g.lock()
				for _, k := range turn.alarm.keys {
					if turn.keys[k.name] != k {
						t.Errorf("key %q is forgotten, and is to be woken at %v", k.name, k.wakeAt)
					}
				}
				turn.unlock()
				if what != "trips" && b.state("new") == Flowing { // what the route asked trips no key
					t.Error("its failure is forgotten")
				}
				b.g.Resume()
				time.Sleep(time.Hour)
				for _, seq := range []uint64{1, 2, 3, 10} {
					b.wantFinal(seq, AckMessage)
				}
				b.close()
			})
		})
	}
}
