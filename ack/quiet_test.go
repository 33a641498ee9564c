package ack

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestSession_acksAreKeptBackWhileTheServerLooksForWhatIsDue(t *testing.T) {
	for name, c := range map[string]struct {
		outstanding int
		plain       bool          // only NAKs without a delay
		roundTrip   time.Duration // of the NAKs
		held        bool
	}{
		"many outstanding":           {scanned + 1, false, time.Millisecond, true},
		"few outstanding":            {scanned, false, time.Millisecond, false},
		"given back without a delay": {scanned + 1, true, time.Millisecond, false},
		"a server far away":          {scanned + 1, false, tooFar + 2*time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 30*time.Second, func(w *world) {
				w.set(func() { w.pending = c.outstanding })
				w.check(w.arrive(1, 1).Nak(time.Now().Add(time.Hour)), nil)
				time.Sleep(burstEvery)
				w.confirm(w.one(`-NAK {"delay":3599901000000}`))
				time.Sleep(time.Second) // the session asks how many are outstanding

				for seq := range uint64(2) {
					d := w.arrive(2+seq, 1)
					if d.plain = c.plain; c.plain {
						w.check(d.GiveBack(), nil)
					} else {
						w.check(d.Nak(time.Now().Add(time.Second)), nil)
					}
				}
				time.Sleep(burstEvery + c.roundTrip)
				naks := w.taken()
				w.confirm(naks[0])
				w.check(w.arrive(4, 1).Ack(nil), nil)
				w.one("+ACK") // the server has not taken the last NAK yet
				w.confirm(naks[1])
				w.check(w.arrive(5, 1).Ack(nil), nil)
				w.check(w.arrive(6, 1).Ack(nil), nil)
				if n := len(w.taken()); c.held != (n == 0) {
					t.Errorf("%d acks left at once", n)
				}
				time.Sleep(quietFor)
				if n := len(w.taken()); c.held != (n == 2) {
					t.Errorf("%d acks left after the quiet", n)
				}
				w.check(w.arrive(7, 1).Ack(nil), nil)
				w.one("+ACK")
			})
		})
	}
}

// The answer may come when nobody is there any more who would end the quiet.
func TestSession_noQuietAfterTheEndOfRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 30*time.Second)
		w.s.pending = scanned + 1
		w.run(func() {
			synctest.Wait()
			w.s.acks.held = true
			w.check(w.arrive(1, 1).Ack(nil), nil)
			w.check(w.arrive(2, 1).Nak(time.Now().Add(time.Second)), nil)
			w.nothing()
		})
		list := w.taken()
		if len(list) != 2 || list[1].payload != "+ACK" {
			t.Fatalf("sent %v at the end, want a NAK and an ack", list)
		}
		w.confirm(list[0])
		w.check(w.arrive(3, 1).Ack(nil), nil)
		if list = w.taken(); len(list) != 1 {
			t.Errorf("sent %v after it, want an ack", list)
		}
	})
}

// While it is in doubt whose durable it is, nothing is settled, but leases are extended. What was kept back leaves afterwards.
func TestSession_Pause(t *testing.T) {
	for name, abandoned := range map[string]bool{"the same durable": false, "another one": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 30*time.Second, func(w *world) {
				acked, naked, _ := w.arrive(1, 1), w.arrive(2, 1), w.arrive(3, 1)
				w.s.Pause()
				w.check(acked.Ack(nil), nil)
				w.check(naked.Nak(time.Now().Add(time.Hour)), nil)
				time.Sleep(15 * time.Second)
				for _, m := range w.taken() {
					if m.payload != "+WPI" {
						t.Errorf("sent: %s", m.payload)
					}
				}
				if abandoned {
					w.s.Abandon()
				}
				w.s.Resume()
				time.Sleep(burstEvery)
				got := w.taken()
				if abandoned && len(got) > 0 || !abandoned && (len(got) != 2 || got[0].payload != "+ACK" || !strings.HasPrefix(got[1].payload, "-NAK")) {
					t.Errorf("sent: %+v", got)
				}
			})
		})
	}
}
