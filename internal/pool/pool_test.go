package pool

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestPool_runsAllOnABoundedNumberOfGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(3)
		var running, most, done atomic.Int64
		for range 20 {
			p.Go(func() {
				n := running.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				time.Sleep(time.Second)
				running.Add(-1)
				done.Add(1)
			})
		}
		synctest.Wait()
		if n := p.Len(); n != 17 {
			t.Errorf("%d queued, want 17", n)
		}
		p.Wait()
		if most.Load() != 3 || done.Load() != 20 {
			t.Errorf("%d at once, %d done, want 3 and 20", most.Load(), done.Load())
		}
	})
}
