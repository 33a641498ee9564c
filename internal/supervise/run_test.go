package supervise

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"unsafe"
)

func TestRun_isAContextWithAfterFunc(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &run{child: new(child)}
		var called [4]int
		var stop [3]func() bool
		for i := range stop {
			stop[i] = r.AfterFunc(func() { called[i]++ })
		}
		if !stop[1]() || stop[1]() {
			t.Error("the second one is not stopped once")
		}
		derived, cancel := context.WithCancel(r)
		defer cancel()
		r.cancel(timedOut)
		r.cancel(cancelled)
		stopLate := r.AfterFunc(func() { called[3]++ })
		synctest.Wait()
		if called != [4]int{1, 0, 1, 1} {
			t.Errorf("called %v, want the stopped one not, the others once", called)
		}
		if stop[0]() || stopLate() {
			t.Error("stopped after it was called")
		}
		if !errors.Is(r.Err(), context.DeadlineExceeded) || derived.Err() == nil {
			t.Errorf("%v, and %v of the derived one", r.Err(), derived.Err())
		}
	})
}

// Attempt is a part of what a consumer allocates for each message, with 192 bytes of its own; the next size is a step up.
func TestRun_isSmall(t *testing.T) {
	if n := unsafe.Sizeof(Attempt{}); n > 128 {
		t.Errorf("an attempt has %d bytes, 128 are meant", n)
	}
}
