package suspects

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/internal/supervise"
)

type soloWork struct {
	do      func()
	settled *atomic.Int64
}

func (w soloWork) Do(context.Context, int, any) supervise.Verdict {
	w.do()
	return supervise.Verdict{Kind: supervise.Ack}
}
func (w soloWork) Away() supervise.Away                            { return nil }
func (w soloWork) Remember(_ supervise.Outcome, stored func(bool)) { stored(true) }
func (w soloWork) Settle(supervise.Outcome)                        { w.settled.Add(1) }

// Suspects of any route wait for the handlers of all routes, and take no more than half of the time.
func TestSolo_suspectsRunAloneInTheProcessAndOthersGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSolo()
		for range 3 {
			s.groups = append(s.groups, supervise.New(supervise.Options{Concurrency: 8, Alone: s.Kick}))
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()

		var running, alone, fresh, suspects, settled atomic.Int64
		other := func() {
			running.Add(1)
			if alone.Load() > 0 {
				t.Error("a suspect is not alone")
			}
			time.Sleep(5 * time.Millisecond)
			running.Add(-1)
			fresh.Add(1)
		}
		suspect := func() {
			if alone.Add(1) != 1 || running.Load() != 0 || !s.Certain() {
				t.Errorf("%d suspects and %d others run", alone.Load(), running.Load())
			}
			time.Sleep(50 * time.Millisecond)
			alone.Add(-1)
			suspects.Add(1)
		}
		const n = 200 // ten seconds by themselves
		for i := range uint64(n) {
			s.groups[i%3].Deliver(&supervise.Message{
				Work: soloWork{suspect, &settled}, Key: fmt.Sprint(i), Sequence: i + 1, Returns: 1, Alone: true,
			})
		}
		began := time.Now()
		total, slow := int64(n), time.Duration(0)
		for i := uint64(0); suspects.Load() < n && time.Since(began) < time.Minute; i++ {
			// A hundred a second, which alone would be done at once.
			sent, was := time.Now(), fresh.Load()
			s.groups[i%3].Deliver(&supervise.Message{Work: soloWork{other, &settled}, Key: "k", Sequence: n + i + 1})
			total++
			time.Sleep(10 * time.Millisecond)
			if fresh.Load() == was && alone.Load() > 0 {
				slow = max(slow, time.Since(sent))
			}
		}
		if took := time.Since(began); took > 25*time.Second || suspects.Load() != n {
			t.Errorf("%d of %d suspects after %v", suspects.Load(), n, took)
		}
		time.Sleep(5 * time.Second)
		if settled.Load() != total {
			t.Errorf("%d of %d settled", settled.Load(), total)
		}
		// Afterwards nothing is held.
		was := fresh.Load()
		s.groups[0].Deliver(&supervise.Message{Work: soloWork{other, &settled}, Key: "k", Sequence: 1 << 40})
		time.Sleep(6 * time.Millisecond)
		if fresh.Load() != was+1 {
			t.Error("a fresh message waits although no suspect is left")
		}
		cancel()
		<-done
		for _, g := range s.groups {
			g.Close(t.Context())
		}
	})
}

// Six suspects of three seconds each left a quarter of a second in twelve to the others: they rested for a second at most, and for
// ten milliseconds when nothing happened to run just then.
func TestSolo_regressionSuspectsTakeHalfOfTheTimeAtMost(t *testing.T) {
	for name, every := range map[string]time.Duration{"busy": 10 * time.Millisecond, "now and then": 700 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := NewSolo()
				for range 2 {
					s.groups = append(s.groups, supervise.New(supervise.Options{Concurrency: 8, Alone: s.Kick}))
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { s.Run(ctx); close(done) }()
				var alone, suspects, fresh, settled atomic.Int64
				const n, each = 6, 3 * time.Second
				for i := range uint64(n) {
					s.groups[0].Deliver(&supervise.Message{Work: soloWork{func() {
						alone.Add(1)
						time.Sleep(each)
						alone.Add(-1)
						suspects.Add(1)
					}, &settled}, Key: fmt.Sprint(i), Sequence: i + 1, Returns: 1, Alone: true})
				}
				began := time.Now()
				for i := uint64(0); suspects.Load() < n; i++ {
					s.groups[1].Deliver(&supervise.Message{
						Work: soloWork{func() { fresh.Add(1) }, &settled}, Key: fmt.Sprint(i), Sequence: i + 1,
					})
					time.Sleep(every)
				}
				// The rest after the last of them does not count.
				if took := time.Since(began); took < (2*n-1)*each || took > (2*n+1)*each {
					t.Errorf("%d suspects of %v took %v, want as long again for the others", n, each, took)
				}
				time.Sleep(2 * each)
				cancel()
				<-done
				for _, g := range s.groups {
					g.Close(t.Context())
				}
			})
		})
	}
}

// A handler that ignored its timeout may end the process at any time: then nobody is charged.
func TestSolo_isNotCertainBesideAHandlerThatWasGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSolo()
		g := supervise.New(supervise.Options{Concurrency: 2, Timeout: time.Second, Alone: s.Kick})
		s.groups = []*supervise.Group{g}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		var settled atomic.Int64
		forever := make(chan struct{})
		g.Deliver(&supervise.Message{Work: soloWork{func() { <-forever }, &settled}, Key: "k", Sequence: 1})
		certain := make(chan bool, 2)
		for i := range uint64(2) {
			g.Deliver(&supervise.Message{
				Work: soloWork{func() { certain <- s.Certain() }, &settled}, Key: fmt.Sprint(i), Sequence: i + 2, Returns: 1, Alone: true,
			})
			time.Sleep(3 * time.Second)
			if i == 0 {
				close(forever)
				time.Sleep(time.Second)
			}
		}
		if first, second := <-certain, <-certain; first || !second {
			t.Errorf("certain: %v, then %v, want it once the handler has returned", first, second)
		}
		cancel()
		<-done
		g.Close(t.Context())
	})
}

// The route of a stuck handler was updated: its group was forgotten, and suspects of other routes were charged.
func TestSolo_regressionIsNotCertainBesideAStuckHandlerOfARouteThatEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSolo()
		g := supervise.New(supervise.Options{Timeout: time.Second})
		s.Add(g)
		var settled atomic.Int64
		forever := make(chan struct{})
		g.Deliver(&supervise.Message{Work: soloWork{func() { <-forever }, &settled}, Key: "k", Sequence: 1})
		time.Sleep(time.Minute)
		g.Close(t.Context())
		s.Remove(g)
		if running, stuck := s.busy(); running != 0 || stuck != 1 {
			t.Errorf("%d run and %d are stuck", running, stuck)
		}
		close(forever)
		synctest.Wait()
		if running, stuck := s.busy(); running != 0 || stuck != 0 || len(s.removed) != 0 {
			t.Errorf("after it returned %d run, %d are stuck", running, stuck)
		}
	})
}
