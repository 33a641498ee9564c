package ack

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/nats-io/nats.go"
)

// ackAll acks each of the messages as they arrive, and returns what was sent.
func (w *world) ackAll(sequences ...uint64) []sent {
	w.t.Helper()
	for _, seq := range sequences {
		w.check(w.arrive(seq, 1).Ack(nil), nil)
	}
	list := w.taken()
	if len(list) != len(sequences) {
		w.t.Fatalf("sent %v for %d acks", list, len(sequences))
	}
	return list
}

func TestSession_oneAnswerConfirmsTheAcksBeforeIt(t *testing.T) {
	bubble(t, 30*time.Second, func(w *world) {
		first := w.ackAll(1, 2, 3, 4)
		if first[0].reply == "" || first[1].reply != "" || first[2].reply != "" || first[3].reply != "" {
			t.Fatalf("sent %v, want that only the first one asks for an answer", first)
		}
		w.confirm(first[0])
		w.stats("Confirmed:1 Unconfirmed:3")
		second := w.ackAll(5)
		w.stats("Confirmed:1 Unconfirmed:4")
		w.confirm(second[0])
		w.stats("Confirmed:5 Unconfirmed:0 Resent:0")
	})
}

func TestSession_lastAcksAreConfirmedWithoutAFurtherOne(t *testing.T) {
	bubble(t, 30*time.Second, func(w *world) {
		w.confirm(w.ackAll(1, 3, 2)[0])
		w.nothing()
		time.Sleep(burstEvery)
		last := w.one("+ACK")
		if last.to != reply(3, 1, storedAt) || last.reply == "" {
			t.Errorf("asked with %v, want with the highest sequence", last)
		}
		w.confirm(last)
		w.stats("Confirmed:3 Unconfirmed:0 Resent:0")
		time.Sleep(time.Second)
		w.nothing()
	})
}

// A leader that has just been elected drops without a word the ack of a sequence that it believes was never delivered.
func TestSession_answerDoesNotConfirmAHigherSequence(t *testing.T) {
	bubble(t, 30*time.Second, func(w *world) {
		w.confirm(w.ackAll(1, 9, 2)[0])
		w.confirm(w.ackAll(5)[0])
		w.stats("Confirmed:3 Unconfirmed:1")
		w.confirm(w.ackAll(10)[0])
		w.stats("Confirmed:5 Unconfirmed:0")
	})
}

// What the old connection had in its buffers is lost, whatever is answered on the new one.
func TestSession_answerOnAnotherConnectionConfirmsNothingElse(t *testing.T) {
	bubble(t, 30*time.Second, func(w *world) {
		w.confirm(w.ackAll(1, 2, 3)[0])
		w.set(func() { w.links++ }) // nats.go knows before the session is told
		w.confirm(w.ackAll(4)[0])
		w.stats("Confirmed:1 Unconfirmed:3")
		w.s.Reconnected()
		again := w.taken()
		if len(again) != 3 {
			t.Fatalf("sent %v, want the three acks again", again)
		}
		w.confirm(again[2])
		w.stats("Confirmed:4 Unconfirmed:0 Resent:3")
	})
}

// A leader that resigns throws away the acks in its queue, and no connection breaks.
func TestSession_acksBeforeALeaderChangeAreSentAgain(t *testing.T) {
	bubble(t, 30*time.Second, func(w *world) {
		list := w.ackAll(1, 2, 3)
		w.confirm(list[0])
		w.s.LeaderChanged()
		w.confirm(w.ackAll(4)[0])
		w.stats("Confirmed:2 Unconfirmed:2")
		again := w.confirmAll(2 * infoEvery)
		if len(again) != 2 || again[0].to != list[1].to && again[0].to != list[2].to {
			t.Errorf("sent %v, want 2 and 3 again", again)
		}
		w.stats("Confirmed:4 Unconfirmed:0 Resent:2")
	})
}

// Nobody leads the durable: whatever was sent lately is lost with the ack that was refused.
func TestSession_refusedAckTakesThoseBeforeItAlong(t *testing.T) {
	bubble(t, 30*time.Second, func(w *world) {
		w.refuse(w.ackAll(1, 2, 3)[0])
		w.stats("Confirmed:0 Unconfirmed:3")
		if again := w.confirmAll(2 * infoEvery); len(again) != 3 {
			t.Errorf("sent %v, want the three acks again", again)
		}
		w.stats("Confirmed:3 Unconfirmed:0 Resent:3")
	})
}

// An ack that fails to leave is sent again, and so are those that a later answer would have been taken to confirm.
func TestSession_acksThatDidNotLeaveAreSentAgain(t *testing.T) {
	bubble(t, 30*time.Second, func(w *world) {
		w.confirm(w.ackAll(1, 2)[0])
		w.set(func() { w.down = true })
		w.check(w.arrive(3, 1).Ack(nil), nil)
		w.set(func() { w.down = false })
		w.confirm(w.ackAll(4)[0])
		w.stats("Confirmed:2 Unconfirmed:2")
		w.confirmAll(2 * infoEvery)
		w.stats("Confirmed:4 Unconfirmed:0")
	})
}

func TestSession_waitHasTheLastAcksConfirmed(t *testing.T) {
	bubble(t, 30*time.Second, func(w *world) {
		first := w.ackAll(1, 2, 3)
		done := make(chan error)
		go func() { done <- w.s.Wait(context.Background()) }()
		w.nothing() // the first is not answered yet
		w.confirm(first[0])
		w.confirm(w.one("+ACK")) // at once, not with the next burst
		if err := <-done; err != nil {
			t.Error(err)
		}
		w.stats("Confirmed:3 Unconfirmed:0")
	})
}

// freed counts confirmed deliveries, and those of them that are free.
type freed struct{ confirmed, free int }

func (f *freed) Confirmed() { f.confirmed++ }
func (f *freed) Free()      { f.free++ }

// The answer to a +WPI may come after the ack is confirmed, and finds the delivery through its slot.
func TestSession_regressionDeliveryWithAnExtensionOnItsWayIsNotFree(t *testing.T) {
	bubble(t, 6*time.Second, func(w *world) {
		var free freed
		w.check(w.arrive(1, 1).Ack(&free), nil)
		w.confirm(w.one("+ACK"))
		d := w.arrive(2, 1)
		time.Sleep(2 * time.Second)
		extension := w.one("+WPI")
		w.check(d.Ack(&free), nil)
		w.confirm(w.one("+ACK"))
		w.confirm(extension)
		if free != (freed{confirmed: 2, free: 1}) {
			t.Errorf("free %v, want only the first", free)
		}
	})
}

// instant answers what asks for an answer before the publish returns, as if the goroutine that flushes were slow to look at
// the link.
type instant struct {
	*world
	on bool
}

func (i *instant) PublishRequest(to, reply string, payload []byte) error {
	err := i.world.PublishRequest(to, reply, payload)
	if i.on && reply != "" {
		i.world.s.Reply(&nats.Msg{Subject: reply})
	}
	return err
}

func TestAcks_regressionAnAnswerRightAfterAReconnectConfirmsNothingOfBefore(t *testing.T) {
	w := newWorld(t, 30*time.Second)
	i := &instant{world: w}
	w.s.cfg.Conn = i
	for _, seq := range []uint64{1, 2, 3} {
		w.check(w.arrive(seq, 1).Ack(nil), nil)
	}
	w.confirm(w.wire[0])
	w.stats("Confirmed:1 Unconfirmed:2") // 2 and 3 went out on the old connection, without a reply
	w.set(func() { w.links++ })          // a new connection
	i.on = true
	w.check(w.arrive(4, 1).Ack(nil), nil) // the only ack that was sent on it
	w.stats("Confirmed:2 Unconfirmed:2")
}

// Each slot kept the list of what it had once covered. With many NAKs unanswered another slot carries the ack each time,
// and hundreds of confirmed messages stayed in memory for each.
func TestSession_regressionConfirmedAcksAreLetGo(t *testing.T) {
	bubble(t, 30*time.Second, func(w *world) {
		const rounds, each = 20, 50
		var settled []weak.Pointer[Delivery]
		seq := uint64(0)
		next := func() *Delivery { seq++; return w.arrive(seq, 1) }
		for range rounds {
			w.check(next().Nak(time.Now().Add(time.Hour)), nil) // stays unanswered, in a slot of its own
			time.Sleep(burstEvery)
			w.check(next().Ack(nil), nil)
			for range each {
				d := next()
				settled = append(settled, weak.Make(d))
				w.check(d.Ack(nil), nil)
			}
			for _, m := range w.taken() {
				if m.reply != "" && m.payload == "+ACK" {
					w.confirm(m)
				}
			}
			w.check(next().Ack(nil), nil)
			for _, m := range w.taken() {
				w.confirm(m)
			}
		}
		runtime.GC()
		kept := 0
		for _, p := range settled {
			if p.Value() != nil {
				kept++
			}
		}
		if kept > 0 {
			t.Errorf("%d of %d confirmed deliveries are still there", kept, rounds*each)
		}
	})
}

// Acks that many handlers make at the same time leave in one piece, and one answer confirms them all.
func TestSession_acksOfManyLeaveTogether(t *testing.T) {
	bubble(t, 30*time.Second, func(w *world) {
		const n = 100
		var live []*Delivery
		for i := range n {
			live = append(live, w.arrive(uint64(i+1), 1))
		}
		for _, d := range live {
			if err := d.Ack(nil); err != nil {
				t.Fatal(err)
			}
		}
		list := w.taken()
		asking := slices.DeleteFunc(slices.Clone(list), func(s sent) bool { return s.reply == "" })
		if len(list) != n || len(asking) == 0 || len(asking) > 2 {
			t.Fatalf("%d acks were sent, %d with a question, want %d and one", len(list), len(asking), n)
		}
	})
}

// The end of the session sends what its goroutine had not sent yet.
func TestSession_acksAtTheEndLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 50 {
			w := newWorld(t, 30*time.Second)
			w.alone = true
			w.run(func() {
				d := w.arrive(1, 1)
				go func() { _ = d.Ack(nil) }()
				if err := w.arrive(2, 1).Ack(nil); err != nil {
					t.Fatal(err)
				}
			})
			if list := w.taken(); len(list) < 2 {
				t.Fatalf("sent %v", list)
			}
		}
	})
}
