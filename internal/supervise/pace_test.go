package supervise

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestPace_isQuickAfterManyQuickRuns(t *testing.T) {
	var p pace
	for i := range paceKnown {
		if p.quick() {
			t.Fatalf("quick after %d runs", i)
		}
		p.ran(time.Microsecond)
	}
	if !p.quick() {
		t.Error("100 runs of a microsecond are not quick")
	}
	if !p.watch(7) || p.watch(7) {
		t.Error("the watchdog is set once")
	}
	if p.look(8); !p.quick() {
		t.Error("a run has started since, and handlers are quick no more")
	}
	p.watch(8)
	if p.look(8); p.quick() {
		t.Error("no run has started since, and handlers are quick")
	}
	for range paceKnown {
		p.ran(time.Millisecond)
	}
	if p.quick() {
		t.Error("runs of a millisecond are quick")
	}
}

// One goroutine takes quick messages. When one message is slow, or many are, those behind it must not wait for it.
func TestPace_slowMessagesAmongQuickOnesDelayNobody(t *testing.T) {
	for _, slow := range []int{1, 10, 40} {
		t.Run(fmt.Sprint(slow, " slow"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, Options{Concurrency: 64, Timeout: time.Hour})
				for i := range 300 {
					b.send(succeed, fmt.Sprint("key ", i%100), uint64(i+1))
					if i%10 == 0 {
						synctest.Wait()
					}
				}
				synctest.Wait()
				turn := b.g.lock()
				quick := turn.slots.pace.quick()
				turn.unlock()
				if !quick {
					t.Fatal("handlers that return at once are not quick: this test proves nothing")
				}
				sent := time.Since(b.began)
				var batch []*Message
				b.mu.Lock()
				for i := range 200 {
					handle := succeed
					if i%5 == 0 && i/5 < slow {
						handle = takes(time.Minute)
					}
					m := &Message{Key: fmt.Sprint("key ", 1000+i), Sequence: uint64(1000 + i), Size: 100}
					b.add(m, handle)
					batch = append(batch, m)
				}
				b.mu.Unlock()
				b.g.Deliver(batch...)
				time.Sleep(time.Hour)
				for _, s := range b.allStarts() {
					if s.seq >= 1000 && s.at-sent > 4*time.Millisecond {
						t.Errorf("message %d started %v after it came", s.seq, s.at-sent)
					}
				}
				b.close()
			})
		})
	}
}
