package supervisor

import (
	"runtime"
	"testing"
	"time"
)

// A worker that waits for the lock while the grace of a key ends finds the key queued when it has the lock. It once looked at
// the clock before that, found that the grace was not over yet, and dropped the key: its messages waited for ever. On the
// real clock, because time stands still in a bubble while a lock is waited for.
func TestGroup_regressionAKeyQueuedWhileAWorkerWaitsForTheLockStarts(t *testing.T) {
	b := newBench(t, Options{Config: Config{Restart: Backoff{Min: time.Millisecond}}})
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
		held.attend(k)
	}
	held.startAll()
	held.unlock()
	await("the probe starts", func() bool { return len(b.startsOf(2)) == 1 })
	g.Close(t.Context())
}
