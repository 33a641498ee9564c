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
		l.Measured(trip, bytes, now)
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
	l.limit.Store(MostComing)
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

// A backlog of large messages came at two thirds of the speed for the first seconds: the limit doubled once a second only.
func TestLink_regressionGrowsSoonOnAFastLink(t *testing.T) {
	for _, c := range []struct {
		name string
		rate int // bytes a second
		soon bool
	}{
		{"fast", 500 << 20, true},
		{"nothing comes yet", 0, false},
		{"slow", 512 << 10, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := New(30 * time.Second)
			first := l.Coming()
			now, bytes := time.Unix(0, 0), uint64(0)
			for range 5 {
				if l.Every() != growing && l.Coming() < MostComing {
					t.Errorf("every %v", l.Every())
				}
				l.Measured(time.Millisecond, bytes, now)
				now, bytes = now.Add(l.Every()), bytes+uint64(float64(c.rate)*l.Every().Seconds())
			}
			if c.soon && l.Coming() != MostComing {
				t.Errorf("%d bytes after %v, want %d", l.Coming(), now.Sub(time.Unix(0, 0)), MostComing)
			}
			if !c.soon && l.Coming() > 2*first {
				t.Errorf("%d bytes after %v, %d at first", l.Coming(), now.Sub(time.Unix(0, 0)), first)
			}
			for range 40 {
				l.Measured(time.Millisecond, bytes, now)
				now, bytes = now.Add(l.Every()), bytes+uint64(float64(c.rate)*l.Every().Seconds())
			}
			if l.Coming() != MostComing || l.Every() != time.Second {
				t.Errorf("in the end: %d bytes, every %v", l.Coming(), l.Every())
			}
		})
	}
}
