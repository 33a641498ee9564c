package beat

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestTicker_ticksTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := epoch
		defer func() { epoch = begun }()
		epoch = time.Now()
		first := NewTicker(time.Second)
		defer first.Stop()
		time.Sleep(300 * time.Millisecond)
		second := NewTicker(time.Second)
		defer second.Stop()
		for i := range 3 {
			a, b := <-first.C, <-second.C
			if !a.Equal(b) || a.Sub(epoch) != time.Duration(i+1)*time.Second {
				t.Errorf("tick %d: %v and %v after the begin", i, a.Sub(epoch), b.Sub(epoch))
			}
			time.Sleep(200 * time.Millisecond) // what it does then does not move the next one
			first.Next()
			second.Next()
		}
		first.Reset(500 * time.Millisecond)
		if a := <-first.C; a.Sub(epoch) != 3500*time.Millisecond {
			t.Errorf("the shorter one: %v after the begin", a.Sub(epoch))
		}
	})
}

// The time of a bubble is long before the process began: a tick came after one period or nearly two, by chance.
func TestUntil_regressionInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if d := Until(time.Second); d != time.Second {
			t.Errorf("%v", d)
		}
		time.Sleep(300 * time.Millisecond)
		if d := Until(time.Second); d != 700*time.Millisecond {
			t.Errorf("%v", d)
		}
	})
}
