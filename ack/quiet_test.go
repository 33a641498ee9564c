package ack

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestSession_acksAreKeptBackWhileTheServerLooksForWhatIsDue(t *testing.T) {
	for pending, held := range map[int]bool{scanned: false, scanned + 1: true} {
		bubble(t, 30*time.Second, func(w *world) {
			w.set(func() { w.pending = pending })
			w.check(w.arrive(1, 1).Nak(time.Now().Add(time.Hour)), nil)
			w.confirmAll(1100 * time.Millisecond) // and the session has asked how many are outstanding

			w.check(w.arrive(2, 1).Nak(time.Now().Add(time.Second)), nil)
			w.check(w.arrive(3, 1).Nak(time.Now().Add(time.Second)), nil)
			time.Sleep(burstEvery)
			naks := w.taken()
			w.confirm(naks[0])
			w.check(w.arrive(4, 1).Ack(nil), nil)
			w.one("+ACK") // the server has not taken the last NAK yet
			w.confirm(naks[1])
			w.check(w.arrive(5, 1).Ack(nil), nil)
			w.one("+ACK") // and looks a little later
			time.Sleep(quietAfter + time.Millisecond)
			w.check(w.arrive(6, 1).Ack(nil), nil)
			w.check(w.arrive(7, 1).Ack(nil), nil)
			if n := len(w.taken()); held != (n == 0) {
				t.Errorf("%d outstanding: %d acks left at once", pending, n)
			}
			time.Sleep(quietFor)
			if n := len(w.taken()); held != (n == 2) {
				t.Errorf("%d outstanding: %d acks left after the quiet", pending, n)
			}
		})
	}
}

func TestSession_endOfRunSendsTheAcksThatWereKeptBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 30*time.Second)
		w.s.hush(true)
		w.check(w.arrive(1, 1).Ack(nil), nil)
		w.nothing()
		w.run(func() { synctest.Wait() })
		w.one("+ACK")
		w.check(w.arrive(2, 1).Ack(nil), nil)
		w.one("+ACK")
	})
}
