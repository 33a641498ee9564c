package ack

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
)

func TestDelivery_wireBytes(t *testing.T) {
	for name, c := range map[string]struct {
		settle  func(*Delivery)
		after   time.Duration // until it leaves
		payload string
	}{
		"ack":             {func(d *Delivery) { _ = d.Ack(nil) }, 0, "+ACK"},
		"nak":             {func(d *Delivery) { _ = d.Nak(time.Now().Add(5 * time.Second)) }, 99 * time.Millisecond, `-NAK {"delay":4901000000}`},
		"nak of the past": {func(d *Delivery) { _ = d.Nak(time.Now().Add(-time.Hour)) }, 99 * time.Millisecond, `-NAK {"delay":10000000}`},
		"nak for long":    {func(d *Delivery) { _ = d.Nak(time.Now().Add(24 * time.Hour)) }, 99 * time.Millisecond, `-NAK {"delay":86399901000000}`},
		"give back":       {func(d *Delivery) { _ = d.GiveBack() }, 99 * time.Millisecond, "-NAK"},
		"nothing":         {func(*Delivery) {}, 9899 * time.Millisecond, "+WPI"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 30*time.Second, func(w *world) {
				c.settle(w.arrive(7, 1))
				if c.after > 0 {
					time.Sleep(c.after - 1)
					w.nothing()
					time.Sleep(time.Nanosecond)
				}
				m := w.one(c.payload)
				if m.to != reply(7, 1, storedAt) || !strings.HasPrefix(m.reply, inbox+".a.") {
					t.Errorf("sent to %s with reply %s", m.to, m.reply)
				}
			})
		})
	}
}

func TestDelivery_isSettledOnce(t *testing.T) {
	verbs := map[string]func(*Delivery) error{
		"ack":       func(d *Delivery) error { return d.Ack(nil) },
		"nak":       func(d *Delivery) error { return d.Nak(time.Now().Add(time.Second)) },
		"give back": func(d *Delivery) error { return d.GiveBack() },
		"release":   func(d *Delivery) error { d.Release(); return nil },
	}
	for first, a := range verbs {
		for second, b := range verbs {
			t.Run(first+", "+second, func(t *testing.T) {
				bubble(t, 30*time.Second, func(w *world) {
					d := w.arrive(1, 1)
					w.check(a(d), nil)
					if second == "release" {
						d.Release() // a second release is no error
					} else {
						w.check(b(d), ErrSettled)
					}
					time.Sleep(time.Second)
					want := 1
					if first == "release" {
						want = 0
					}
					if list := w.taken(); len(list) != want {
						t.Errorf("sent %v", list)
					}
				})
			})
		}
	}
}

func TestSession_naksLeaveInBursts(t *testing.T) {
	bubble(t, 30*time.Second, func(w *world) {
		due := time.Now().Add(10 * time.Second)
		for seq := range uint64(50) {
			w.check(w.arrive(seq+1, 1).Nak(due), nil)
			time.Sleep(7 * time.Millisecond)
		}
		time.Sleep(100 * time.Millisecond)
		bursts := map[time.Duration]int{}
		for _, m := range w.taken() {
			bursts[m.at]++
			if want := fmt.Sprintf(`-NAK {"delay":%d}`, due.Sub(w.began)-m.at); m.payload != want {
				t.Errorf("after %v: %s, want %s", m.at, m.payload, want)
			}
		}
		for at := range bursts {
			if at%burstEvery != 0 {
				t.Errorf("a NAK left after %v", at)
			}
		}
		if len(bursts) != 4 {
			t.Errorf("bursts %v, want 4", bursts)
		}
		w.stats("Naked:50 Unconfirmed:50 Live:0")
	})
}

func TestSession_unconfirmedAckIsSentAgain(t *testing.T) {
	bubble(t, 30*time.Second, func(w *world) {
		confirmed := 0
		w.check(w.arrive(1, 1).Ack(told(func() { confirmed++ })), nil)
		first := w.one("+ACK")
		time.Sleep(resendAfter)
		w.nothing()
		time.Sleep(infoEvery)
		second := w.one("+ACK")
		if second.to != first.to || second.reply == first.reply {
			t.Errorf("sent again as %+v after %+v", second, first)
		}
		w.confirm(first) // late, and of a slot in other use
		w.stats("Unconfirmed:1 Confirmed:0 Resent:1")
		w.confirm(second)
		w.confirm(second)
		w.stats("Unconfirmed:0 Confirmed:1 Resent:1")
		if confirmed != 1 {
			t.Errorf("told %d times that it is confirmed", confirmed)
		}
		time.Sleep(10 * time.Second)
		w.nothing()
	})
}

func TestSession_reconnectSendsAgainAtOnce(t *testing.T) {
	bubble(t, 30*time.Second, func(w *world) {
		w.check(w.arrive(1, 1).Ack(nil), nil)
		w.check(w.arrive(2, 1).Nak(time.Now().Add(time.Hour)), nil)
		time.Sleep(150 * time.Millisecond)
		if n := len(w.taken()); n != 2 {
			t.Fatalf("sent %d", n)
		}
		w.reconnect()
		list := w.taken()
		slices.SortFunc(list, func(a, b sent) int { return strings.Compare(a.payload, b.payload) }) // either may leave first
		if len(list) != 2 || list[0].payload != "+ACK" || !strings.HasPrefix(list[1].payload, `-NAK {"delay":35998`) {
			t.Fatalf("sent %v", list)
		}
	})
}

// The question that must be answered before anything is sent again was lost with the connection too. Its time-out once
// kept the session from asking again for seconds.
func TestSession_reconnectEndsALostQuestion(t *testing.T) {
	bubble(t, 30*time.Second, func(w *world) {
		w.set(func() { w.lost = true })
		w.check(w.arrive(1, 1).Ack(nil), nil)
		time.Sleep(resendAfter + infoEvery)
		w.one("+ACK")
		w.set(func() { w.lost = false })
		w.reconnect()
		w.one("+ACK")
	})
}

func TestSession_nothingIsSentAgainOnAGuess(t *testing.T) {
	bubble(t, 30*time.Second, func(w *world) {
		w.set(func() { w.mute = true })
		w.check(w.arrive(1, 1).Ack(nil), nil)
		w.one("+ACK")
		time.Sleep(20 * time.Second)
		w.nothing()
		w.set(func() {
			if w.mute = false; w.asked > 20 {
				t.Errorf("asked %d times in 20 s", w.asked)
			}
		})
		time.Sleep(infoEvery)
		w.one("+ACK")
	})
}

// The stream is deleted and made anew while acks are unconfirmed and a handler runs: the same sequences are other messages
// now, which the old settlements would end.
func TestSession_recreatedDurableGetsNoOldSettlements(t *testing.T) {
	bubble(t, 30*time.Second, func(w *world) {
		running, failing, last := w.arrive(1, 1), w.arrive(2, 1), w.arrive(3, 1)
		w.check(w.arrive(4, 1).Ack(nil), nil)
		w.check(w.arrive(5, 1).Nak(time.Now().Add(time.Hour)), nil)
		away := w.away(last, 2*time.Hour)
		time.Sleep(150 * time.Millisecond)
		for _, m := range w.taken() {
			if m.to == reply(3, 1, storedAt) {
				w.confirm(m)
			}
		}
		waited := make(chan error, 1)
		go func() { waited <- w.s.Wait(context.Background()) }()
		w.set(func() { w.created = w.created.Add(time.Second) })
		time.Sleep(resendAfter + infoEvery)
		w.nothing()
		w.check(<-waited, nil)
		if !running.Fenced() {
			t.Error("a live delivery of the old durable is not fenced")
		}
		w.check(running.Ack(nil), ErrFenced)
		w.check(failing.Nak(time.Now()), ErrFenced)
		away.Recall(time.Time{})
		if w.arrive(9, 1) != nil {
			t.Error("a delivery was handed out")
		}
		time.Sleep(time.Minute)
		w.nothing()
		w.stats("Forgotten:2 Unconfirmed:0 Live:0")
	})
}

// The same, and a message of the new stream arrives before anybody has noticed.
func TestSession_messageOfRecreatedStreamIsNotTheOldOne(t *testing.T) {
	for name, settle := range map[string]func(*Delivery) error{
		"acked": func(d *Delivery) error { return d.Ack(nil) },
		"naked": func(d *Delivery) error { return d.Nak(time.Now().Add(time.Hour)) },
		"live":  func(*Delivery) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 30*time.Second, func(w *world) {
				old := w.arrive(1, 1)
				w.check(settle(old), nil)
				time.Sleep(100 * time.Millisecond)
				w.taken()
				d, err := w.s.Receive(&nats.Msg{Sub: &w.sub, Reply: reply(1, 1, storedAt.Add(1))})
				if err != nil || d == nil {
					t.Fatalf("not handed out: %v", err)
				}
				w.check(old.Ack(nil), ErrSettled)
				time.Sleep(5 * time.Second)
				w.nothing()
				w.check(d.Ack(nil), nil)
				w.one("+ACK")
			})
		})
	}
}

func TestSession_unconfirmedNak(t *testing.T) {
	soon, late := 300*time.Millisecond, time.Hour
	for name, c := range map[string]struct {
		delay time.Duration
		meet  func(w *world, m []sent)
		again bool
	}{
		"of a message that is still away is sent again":     {late, func(*world, []sent) {}, true},
		"that may have been taken is not sent again":        {soon, func(*world, []sent) {}, false},
		"is sent again if a later answer shows it was lost": {soon, func(w *world, _ []sent) { w.s.Contact(time.Now()) }, true},
		"is not sent again if its answer may be lost": {soon, func(w *world, _ []sent) {
			w.set(func() { w.mute = true })
			w.reconnect()
			time.Sleep(time.Millisecond)
			w.s.Contact(time.Now())
			w.set(func() { w.mute = false })
		}, false},
		"is sent again if nobody was there to take it": {soon, func(w *world, m []sent) { w.refuse(m[0]) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 30*time.Second, func(w *world) {
				w.check(w.arrive(1, 1).Nak(time.Now().Add(c.delay)), nil)
				time.Sleep(500 * time.Millisecond)
				c.meet(w, w.taken())
				time.Sleep(3 * time.Second)
				if list := w.taken(); (len(list) > 0) != c.again {
					t.Errorf("sent %v", list)
				}
				if !c.again {
					w.stats("Unconfirmed:0 Forgotten:1")
				}
			})
		})
	}
}

func TestSession_nakThatNeverLeftIsSentAfterTheReconnect(t *testing.T) {
	bubble(t, 30*time.Second, func(w *world) {
		w.set(func() { w.down = true })
		w.check(w.arrive(1, 1).Nak(time.Now().Add(200*time.Millisecond)), nil)
		time.Sleep(time.Second)
		w.set(func() { w.down = false })
		w.reconnect()
		w.one(`-NAK {"delay":10000000}`)
	})
}

func TestSession_leasesAreExtended(t *testing.T) {
	bubble(t, 30*time.Second, func(w *world) {
		d := w.arrive(1, 1)
		list := w.confirmAll(5 * time.Minute)
		if len(list) < 30 || len(list) > 31 {
			t.Errorf("%d extensions in 5 minutes, want one every 10 s", len(list))
		}
		last := time.Duration(0)
		for _, m := range list {
			if gap := m.at - last; m.payload != "+WPI" || gap > 10*time.Second || gap < 9800*time.Millisecond {
				t.Errorf("%s after %v", m.payload, gap)
			}
			last = m.at
		}
		if d.Fenced() {
			t.Error("fenced although extended")
		}
		w.check(d.Nak(time.Now().Add(time.Hour)), nil)
		if list := w.confirmAll(5 * time.Minute); len(list) != 1 {
			t.Errorf("after a NAK: sent %v", list)
		}
	})
}

func TestSession_nothingIsExtendedAfterTheLeaseMayBeLost(t *testing.T) {
	bubble(t, 3*time.Second, func(w *world) {
		d := w.arrive(1, 1)
		time.Sleep(time.Minute)
		list := w.taken()
		if len(list) == 0 {
			t.Fatal("no extension was asked for")
		}
		for _, m := range list {
			if m.payload != "+WPI" || m.at >= 3*time.Second {
				t.Errorf("%s after %v", m.payload, m.at)
			}
		}
		if !d.Fenced() {
			t.Error("not fenced although nothing was answered")
		}
		w.check(d.Ack(nil), nil) // a success counts
		w.one("+ACK")
	})
}

// The link stalls with a +WPI on it, for longer than AckWait. Another instance gets the message; then the server takes the
// +WPI, which extends the other's lease, and answers.
func TestSession_lateAnswerDoesNotBringALeaseBack(t *testing.T) {
	bubble(t, 3*time.Second, func(w *world) {
		d := w.arrive(1, 1)
		time.Sleep(2900 * time.Millisecond)
		list := w.taken()
		last := list[len(list)-1]
		time.Sleep(time.Second)
		w.confirm(last)
		if time.Since(w.began)-last.at >= 3*time.Second || !d.Fenced() {
			t.Errorf("lease extended by an answer to %v at %v", last.at, time.Since(w.began))
		}
		w.check(d.Nak(time.Now()), ErrFenced)
		w.nothing()
	})
}

// A fenced NAK once left its delivery live, which swallowed every redelivery from then on and kept its lease alive: the
// message was never handled again.
func TestSession_fencedNakLetsTheMessageComeAgain(t *testing.T) {
	for name, settle := range map[string]func(*Delivery) error{
		"nak":       func(d *Delivery) error { return d.Nak(time.Now()) },
		"give back": func(d *Delivery) error { return d.GiveBack() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 3*time.Second, func(w *world) {
				d := w.arrive(1, 1)
				time.Sleep(4 * time.Second)
				w.taken()
				w.check(settle(d), ErrFenced)
				w.check(settle(d), ErrSettled)
				time.Sleep(time.Second)
				w.nothing()
				w.s.Contact(time.Now())
				if d = w.arrive(1, 2); d == nil {
					t.Fatal("swallowed")
				}
				w.check(d.Nak(time.Now()), nil)
				w.stats("Received:2 Fenced:1 Absorbed:0")
			})
		})
	}
}

// The process is stopped between a NAK and its burst (SIGSTOP), and goes on after the lease.
func TestSession_nakIsNotSentAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3*time.Second)
		w.check(w.arrive(1, 1).Nak(time.Now().Add(time.Hour)), nil)
		time.Sleep(3 * time.Second) // the session does not run
		w.s.burst()
		w.nothing()
		w.stats("Fenced:1 Naked:0 Unconfirmed:0")
		w.check(w.s.Wait(w.t.Context()), nil)
	})
}

// The lease is lost between a NAK and its burst, and the server is quicker than the fence: the NAK would take away the
// message that has just come.
func TestSession_nakOfAReplacedDeliveryIsNotSent(t *testing.T) {
	bubble(t, 30*time.Second, func(w *world) {
		w.check(w.arrive(1, 1).Nak(time.Now().Add(time.Hour)), nil)
		d := w.arrive(1, 2)
		if d == nil {
			t.Fatal("not handed out")
		}
		time.Sleep(time.Second)
		w.nothing()
		w.stats("Live:1 Released:1 Naked:0")
		w.check(d.Ack(nil), nil)
		w.one("+ACK")
	})
}

// A stalled link brings deliveries that the server gave to somebody else meanwhile: their age counts from the last sign of
// life before them.
func TestSession_ageCountsFromContact(t *testing.T) {
	bubble(t, 3*time.Second, func(w *world) {
		time.Sleep(2 * time.Second)
		w.s.Contact(time.Now())
		time.Sleep(2900 * time.Millisecond)
		if w.arrive(1, 1).Fenced() {
			t.Error("fenced although there was contact within AckWait")
		}
		time.Sleep(100 * time.Millisecond)
		w.taken()
		old := w.arrive(2, 1)
		if !old.Fenced() {
			t.Error("not fenced although there was no contact for AckWait")
		}
		w.s.Contact(time.Now())
		if !old.Fenced() || w.arrive(3, 1).Fenced() {
			t.Error("contact counts for what arrives after it, and nothing else")
		}
		// An answer proves contact too, for the time its question was sent.
		time.Sleep(500 * time.Millisecond)
		w.check(w.arrive(4, 1).Ack(nil), nil)
		m := w.one("+ACK")
		time.Sleep(2 * time.Second)
		w.confirm(m)
		d := w.arrive(5, 1)
		time.Sleep(time.Second - 1)
		if d.Fenced() {
			t.Error("fenced too early")
		}
		time.Sleep(time.Nanosecond)
		if !d.Fenced() {
			t.Error("the answer proved more than it can")
		}
	})
}

func TestSession_redeliveryOfWhatIsHandledHere(t *testing.T) {
	bubble(t, 3*time.Second, func(w *world) {
		d := w.arrive(1, 1)
		time.Sleep(3500 * time.Millisecond) // nothing is answered: the lease is lost
		w.taken()
		w.s.Contact(time.Now())
		if w.arrive(1, 2) != nil {
			t.Fatal("started twice here")
		}
		if d.Fenced() {
			t.Error("the new lease is not ours")
		}
		w.check(d.Ack(nil), nil)
		if m := w.one("+ACK"); m.to != reply(1, 2, storedAt) {
			t.Errorf("acked %s", m.to)
		}
		w.stats("Received:1 Absorbed:1")
	})
}

func TestSession_redeliveryOfUnconfirmedAck(t *testing.T) {
	bubble(t, 3*time.Second, func(w *world) {
		confirmed := 0
		w.check(w.arrive(1, 1).Ack(told(func() { confirmed++ })), nil)
		first := w.one("+ACK")
		if w.arrive(1, 2) != nil {
			t.Fatal("started again")
		}
		m := w.one("+ACK")
		if m.to != reply(1, 2, storedAt) || m.reply == first.reply {
			t.Errorf("acked as %+v", m)
		}
		w.confirm(m)
		if w.stats("Received:1 Absorbed:1 Acked:1 Resent:1 Confirmed:1"); confirmed != 1 {
			t.Errorf("told %d times that it is confirmed", confirmed)
		}
		if w.arrive(1, 3) == nil {
			t.Error("a redelivery after the confirmation was not handed out")
		}
	})
}

func TestSession_redeliveryOfUnconfirmedNak(t *testing.T) {
	bubble(t, 30*time.Second, func(w *world) {
		w.check(w.arrive(1, 1).Nak(time.Now().Add(time.Second)), nil)
		time.Sleep(100 * time.Millisecond)
		m := w.taken()[0]
		d := w.arrive(1, 2)
		if d == nil {
			t.Fatal("not handed out")
		}
		w.confirm(m)
		w.check(d.Ack(nil), nil)
		w.confirm(w.one("+ACK"))
		w.stats("Received:2 Naked:1 Acked:1 Forgotten:1 Confirmed:1 Unconfirmed:0")
		time.Sleep(time.Minute)
		w.nothing()
	})
}

func TestSession_releasedMessageIsLeftAlone(t *testing.T) {
	bubble(t, 3*time.Second, func(w *world) {
		w.arrive(1, 1).Release()
		time.Sleep(time.Minute)
		w.nothing()
		if w.arrive(1, 2) == nil {
			t.Error("not handed out again")
		}
		w.stats("Received:2 Released:1 Live:1")
	})
}

func TestSession_wait(t *testing.T) {
	bubble(t, 30*time.Second, func(w *world) {
		w.check(w.s.Wait(w.t.Context()), nil)
		w.check(w.arrive(1, 1).Ack(nil), nil)
		w.check(w.arrive(2, 1).Nak(time.Now().Add(time.Hour)), nil)
		short, cancel := context.WithTimeout(w.t.Context(), time.Millisecond)
		defer cancel()
		w.check(w.s.Wait(short), context.DeadlineExceeded)
		began := time.Now()
		done := make(chan error)
		for range 3 {
			go func() { done <- w.s.Wait(w.t.Context()) }()
		}
		w.confirmAll(time.Second)
		for range 3 {
			w.check(<-done, nil)
		}
		if took := time.Since(began); took < 90*time.Millisecond {
			t.Errorf("returned after %v, before the burst", took)
		}
	})
}

func TestAway_recall(t *testing.T) {
	bubble(t, 3*time.Second, func(w *world) {
		d, soon := w.arrive(1, 1), w.arrive(2, 1)
		away, about := w.away(d, time.Hour), w.away(soon, 5*time.Second)
		w.confirmAll(4 * time.Second)
		away.Recall(time.Time{})
		about.Recall(time.Time{}) // about to come by itself
		time.Sleep(100 * time.Millisecond)
		m := w.one(`-NAK {"delay":10000000}`)
		if m.to != reply(1, 1, storedAt) {
			t.Errorf("recalled %s", m.to)
		}
		w.confirm(m)
		if w.arrive(1, 2) == nil {
			t.Fatal("not handed out")
		}
		away.Recall(time.Time{}) // it is back
		time.Sleep(100 * time.Millisecond)
		w.nothing()
	})
}

// The server forgets what it is about to deliver again when the stream is purged.
func TestAway_recallOnceMore(t *testing.T) {
	bubble(t, 3*time.Second, func(w *world) {
		d := w.away(w.arrive(1, 1), time.Hour)
		w.confirmAll(4 * time.Second)
		d.RecallAlone(time.Time{})
		w.confirmAll(time.Second)
		d.RecallAlone(time.Time{}) // it may be on its way
		time.Sleep(2 * time.Second)
		w.nothing()
		d.Recall(time.Time{}) // another instance may have it
		time.Sleep(100 * time.Millisecond)
		w.nothing()
		d.RecallAlone(time.Time{})
		time.Sleep(100 * time.Millisecond)
		m := w.one(`-NAK {"delay":10000000}`)
		if m.to != reply(1, 1, storedAt) {
			t.Errorf("recalled %s", m.to)
		}
		w.confirm(m)
		time.Sleep(recallMargin)
		w.s.Fence()
		d.RecallAlone(time.Time{})
		time.Sleep(100 * time.Millisecond)
		w.nothing()
	})
}

// A key may be resumed in the moment in which its messages leave.
func TestAway_recallBeforeItsNakIsConfirmed(t *testing.T) {
	bubble(t, 3*time.Second, func(w *world) {
		waiting, sent := w.arrive(1, 1), w.away(w.arrive(2, 1), time.Hour)
		time.Sleep(100 * time.Millisecond)
		if out := w.taken(); len(out) != 1 {
			t.Fatalf("sent %v, want one NAK", out)
		}
		w.away(waiting, time.Hour).Recall(time.Time{}) // before its burst
		sent.Recall(time.Time{})                       // after it, unconfirmed
		time.Sleep(100 * time.Millisecond)
		out := w.taken()
		if len(out) != 2 {
			t.Fatalf("sent %v, want two NAKs", out)
		}
		for _, m := range out {
			if m.payload != `-NAK {"delay":10000000}` {
				t.Errorf("sent %s", m.payload)
			}
			w.confirm(m)
		}
	})
}

// extend gathers what it sends under the lock and sends it later. A NAK that left in between would be undone by the +WPI
// behind it, which resets its delay.
func TestSession_noExtensionFollowsANak(t *testing.T) {
	bubble(t, 250*time.Millisecond, func(w *world) { // extended with every tick
		var settling sync.WaitGroup
		for seq := range uint64(200) {
			d := w.arrive(seq+1, 1)
			settling.Go(func() {
				time.Sleep(99*time.Millisecond - time.Duration(seq%2)) // with the tick
				if seq%4 < 2 {
					_ = d.GiveBack()
				} else {
					_ = d.Nak(time.Now().Add(time.Minute))
				}
			})
		}
		settling.Wait()
		time.Sleep(time.Second)
		over := map[string]bool{}
		for _, m := range w.taken() {
			if strings.HasPrefix(m.payload, "-NAK") {
				over[m.to] = true
			} else if over[m.to] {
				t.Errorf("%s follows a NAK of %s", m.payload, m.to)
			}
		}
		if len(over) != 200 {
			t.Errorf("%d NAKs, want 200", len(over))
		}
	})
}

func TestSession_whatIsNoDelivery(t *testing.T) {
	bubble(t, 30*time.Second, func(w *world) {
		if d, err := w.s.Receive(&nats.Msg{Sub: &w.sub, Reply: "$JS.ACK.ORDERS.billing.1.2"}); err == nil {
			t.Errorf("made %v of it", d)
		}
		for subject, ours := range map[string]bool{
			inbox + ".p.1": false, inbox + ".a.": true, inbox + ".a.0": true, inbox + ".a.zz": true, inbox + ".a.!": true,
			inbox + ".a.1zzzzzzzzzzzzzzzz": true,
		} {
			if got := w.s.Reply(&nats.Msg{Subject: subject}); got != ours {
				t.Errorf("Reply(%s) = %v", subject, got)
			}
		}
	})
}

// A flood can fill a durable in less than the second between two looks at it.
func TestSession_ackPendingCountsWhatWasGivenBackSince(t *testing.T) {
	bubble(t, 30*time.Second, func(w *world) {
		want := func(n int) {
			t.Helper()
			if got := w.s.AckPending(); got != n {
				t.Errorf("%d outstanding, want %d", got, n)
			}
		}
		for seq := range uint64(3) {
			w.check(w.arrive(1+seq, 1).Nak(time.Now().Add(time.Hour)), nil)
		}
		want(3)
		w.set(func() { w.mute = true })
		w.confirmAll(time.Second)
		want(3)
		w.set(func() { w.mute, w.pending = false, 5 }) // with those of others
		w.confirmAll(time.Second)
		want(5)
		w.check(w.arrive(4, 1).Nak(time.Now().Add(time.Hour)), nil)
		want(6)
		w.set(func() { w.pending = 0 })
		w.confirmAll(2 * time.Second)
		want(0)
	})
}
