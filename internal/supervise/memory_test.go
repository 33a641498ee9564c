package supervise

import (
	"context"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/supervisor"

	"github.com/relaymq/relay/internal/race"
)

// countedWork is work without a bench, which would remember it all.
type countedWork struct {
	fails         bool
	done, retried *atomic.Int64
}

func (w countedWork) Do(context.Context, int, any) Verdict {
	if w.fails {
		return failed
	}
	return ok
}

func (w countedWork) Away() Away                            { return nil }
func (w countedWork) Remember(_ Outcome, stored func(bool)) { stored(true) }

func (w countedWork) Settle(o Outcome) {
	if o.Action == AckMessage {
		w.done.Add(1)
	} else {
		w.retried.Add(1)
	}
}

func heapInUse() uint64 {
	runtime.GC() // what is in a sync.Pool survives one
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}

func TestKeys_aMillionWithOneInAHundredFailingLeaveNothingBehind(t *testing.T) {
	n := 1_000_000
	if race.Enabled {
		n = 200_000
	}
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Config: supervisor.Config{RouteTrip: supervisor.RouteTrip{Of: new(0)}}})
		base, most := heapInUse(), uint64(0)
		var done, retried atomic.Int64
		for i := range n {
			m := &Message{Key: strconv.Itoa(i), Sequence: uint64(i), Work: countedWork{i%100 == 0, &done, &retried}}
			b.g.Deliver(m)
			if i%100 == 99 {
				synctest.Wait()
				time.Sleep(10 * time.Millisecond) // 10,000 a second
			}
			if i%(n/5) == n/5-1 {
				most = max(most, heapInUse())
			}
		}
		synctest.Wait()
		if done.Load() != int64(n-n/100) || retried.Load() != int64(n/100) {
			t.Errorf("%d done, %d retried", done.Load(), retried.Load())
		}
		if grown := int64(most) - int64(base); grown > 32<<20 {
			t.Errorf("the heap grew by %d MiB", grown>>20)
		}
		if k := b.keys(); k > n/100 {
			t.Errorf("%d keys are remembered, %d failed", k, n/100)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if k := b.keys(); k != 0 {
			t.Errorf("%d keys left", k)
		}
		if grown := int64(heapInUse()) - int64(base); grown > 4<<20 {
			t.Errorf("%d MiB left", grown>>20)
		}
		b.close()
	})
}
