package supervise

import (
	"testing"
	"testing/synctest"
	"time"
)

// askedWork is a message of which somebody is asked for so long, and what is to become of it then.
type askedWork struct {
	*testWork
	takes time.Duration
	says  Kind
	known bool
	times int
}

func (w *askedWork) Asked(time.Time) bool { return w.known }

func (w *askedWork) Ask(g *Group) {
	w.times++
	time.AfterFunc(w.takes, func() {
		w.known = w.says == Ack
		g.Answered(w.m, Verdict{Kind: w.says, Delay: time.Minute, Gone: true})
	})
}

// ask sends a message about which somebody is asked.
func (b *bench) ask(key string, seq uint64, takes time.Duration, says Kind, handle handlerFunc) *askedWork {
	m := &Message{Key: key, Sequence: seq, Size: 100, Asks: true}
	b.mu.Lock()
	b.add(m, handle)
	w := &askedWork{testWork: m.Work.(*testWork), takes: takes, says: says}
	m.Work = w
	b.mu.Unlock()
	b.g.Deliver(m)
	return w
}

func TestAsking_takesNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Concurrency: 1})
		for seq := range uint64(100) {
			b.ask("a", seq+1, time.Minute, Ack, succeed)
		}
		b.send(succeed, "a", 101)
		b.send(succeed, "b", 102)
		time.Sleep(time.Hour)
		b.wantStarts(101, 0)
		b.wantStarts(102, 0)
		for seq := range uint64(100) {
			b.wantStarts(seq+1, time.Minute)
		}
		b.close()
	})
}

// Nothing of an ordered key overtakes a message about which somebody is asked, however long that takes.
func TestAsking_keepsTheOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, ordered)
		b.redeliver = false
		b.ask("a", 1, 10*time.Hour, Ack, succeed)
		b.ask("a", 2, time.Second, Lost, succeed)
		w := b.ask("a", 3, time.Second, Ack, succeed)
		b.send(succeed, "a", 4)
		b.send(succeed, "b", 5)
		time.Sleep(24 * time.Hour)
		b.wantOrder(5, 1, 3, 4)
		b.wantStarts(4, 10*time.Hour+2*time.Second)
		if w.times != 1 {
			t.Errorf("asked %d times", w.times)
		}
		if n := b.keys(); n != 0 {
			t.Errorf("%d keys are left", n)
		}
		b.close()
	})
}

// What comes back while the group drains goes on to its stream, as does what is to come again later.
func TestAsking_goesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{})
		b.redeliver = false
		b.ask("a", 1, time.Second, Snooze, succeed)
		b.ask("a", 2, time.Minute, Ack, succeed)
		b.ask("a", 3, time.Minute, Snooze, succeed)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if list := b.outcomes[1]; len(list) != 1 || list[0].Action != GiveBack || time.Until(list[0].Due) != 59*time.Second || !list[0].Snoozed {
			t.Errorf("%+v", list)
		}
		b.g.Drain()
		time.Sleep(time.Minute)
		synctest.Wait()
		for seq := uint64(2); seq <= 3; seq++ {
			if list := b.outcomes[seq]; len(list) != 1 || list[0].Action != GiveBack || !list[0].Due.IsZero() {
				t.Errorf("%d: %+v", seq, list)
			}
		}
		b.wantOrder()
		b.close()
	})
}
