package link

import (
	"testing"
	"time"
)

func TestLink_limitFollowsWhatComes(t *testing.T) {
	l := New(30 * time.Second)
	now, bytes := time.Unix(0, 0), uint64(0)
	pass := func(trip time.Duration, rate int) {
		now, bytes = now.Add(max(trip, time.Second)), bytes+uint64(float64(rate)*max(trip, time.Second).Seconds())
		l.Measured(trip, true, bytes, now)
	}
	for range 4 {
		pass(time.Millisecond, 100<<20)
	}
	if n := l.Coming(); n != MostComing {
		t.Errorf("a fast link: %d bytes, want %d", n, MostComing)
	}
	pass(20*time.Second, 512<<10)
	if n := l.Coming(); n < 1<<20 || n > 2<<20 {
		t.Errorf("512 KiB/s: %d bytes, want what comes in an eighth of 30s", n)
	}
	pass(2500*time.Millisecond, 512<<10)
	if n := l.Coming(); n > 2<<20 {
		t.Errorf("as before: %d bytes", n)
	}
	for range 6 {
		pass(time.Millisecond, 0)
	}
	if n := l.Coming(); n != MostComing {
		t.Errorf("fast again: %d bytes, want %d", n, MostComing)
	}
}

// A route that was added with a short AckWait got leases that were nearly over: contact was proven as seldom as before.
func TestLink_regressionAShorterAckWaitHasContactProvenMoreOften(t *testing.T) {
	l := New(30 * time.Second)
	l.Cover(30 * time.Second)
	if l.Every() != time.Second || len(l.shorter) != 0 {
		t.Errorf("every %v, told %d times", l.Every(), len(l.shorter))
	}
	for _, ackWait := range []time.Duration{4 * time.Second, 2 * time.Second, time.Hour} {
		l.Cover(ackWait)
	}
	if l.Every() != 250*time.Millisecond || len(l.shorter) != 1 {
		t.Errorf("every %v, told %d times", l.Every(), len(l.shorter))
	}
}
