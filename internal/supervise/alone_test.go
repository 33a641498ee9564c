package supervise

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/supervisor"
)

// warden plays the owner: it holds the group, waits until nothing runs, and starts what must run alone.
func warden(ctx context.Context, g *Group, kicked <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-kicked:
		}
		g.Hold()
		for {
			for n, _ := g.Busy(); n > 0; n, _ = g.Busy() {
				<-kicked
			}
			if !g.StartAlone() {
				break
			}
		}
		g.Release()
	}
}

func (b *bench) sendAlone(handle handlerFunc, key string, seq uint64) {
	b.mu.Lock()
	m := &Message{Key: key, Sequence: seq, Size: 100, Returns: 1, Alone: true}
	b.add(m, handle)
	b.mu.Unlock()
	b.g.Deliver(m)
}

// They filled the window, and nothing was fetched that could have run in the meantime: after the death of an instance with
// much in hand, the others stood still until all of that had run, one by one.
func TestAlone_regressionLeavesRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Concurrency: 4, Alone: func() {}})
		free := func() int { room, _ := b.g.Free(); return room.Messages }
		want := free()
		for i := range uint64(500) {
			b.sendAlone(succeed, fmt.Sprint(i), i+1)
		}
		if got := free(); got != want {
			t.Errorf("room for %d beside 500 that must run alone, %d without them", got, want)
		}
		for i := uint64(500); i < 2*MaxWindow; i++ {
			b.sendAlone(succeed, fmt.Sprint(i), i+1)
		}
		if got := free(); got != 0 {
			t.Errorf("room for %d beside %d that must run alone", got, 2*MaxWindow)
		}
		if got := b.g.Status().Window; got != 2*MaxWindow {
			t.Errorf("%d messages wait, want %d", got, 2*MaxWindow)
		}
		b.close()
	})
}

func TestAlone_nothingElseRunsBesideIt(t *testing.T) {
	made := func(context.Context, string) (any, error) {
		time.Sleep(10 * time.Millisecond)
		return "child", nil
	}
	for name, opts := range map[string]Options{
		"shared":                {},
		"children":              {New: made},
		"children, few":         {New: made, Config: supervisor.Config{MaxChildren: 2}},
		"ordered":               {Ordered: true},
		"ordered with children": {Ordered: true, New: made},
		"one slot":              {Concurrency: 1},
		"small stash":           {StashMessages: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				kicked := make(chan struct{}, 1)
				opts.Alone = func() {
					select {
					case kicked <- struct{}{}:
					default:
					}
				}
				b := newBench(t, opts)
				ctx, cancel := context.WithCancel(t.Context())
				go warden(ctx, b.g, kicked)
				var running, alone atomic.Int64
				other := func(context.Context, *Message, int) Verdict {
					running.Add(1)
					defer running.Add(-1)
					if n := alone.Load(); n > 0 {
						t.Errorf("%d run that should run alone", n)
					}
					time.Sleep(30 * time.Millisecond)
					return ok
				}
				suspect := func(_ context.Context, m *Message, n int) Verdict {
					if alone.Add(1) > 1 || running.Load() > 0 {
						t.Errorf("%d others run", running.Load())
					}
					defer alone.Add(-1)
					time.Sleep(20 * time.Millisecond)
					if running.Load() > 0 {
						t.Errorf("%d others run", running.Load())
					}
					if m.Sequence%3 == 0 && n == 1 {
						panic("it ends its child")
					}
					return ok
				}
				const n = 60
				for i := uint64(1); i <= n; i++ {
					key := fmt.Sprintf("k%d", i%4)
					if i%5 == 0 {
						b.sendAlone(suspect, key, i)
					} else {
						b.send(other, key, i)
					}
					if i%7 == 0 {
						time.Sleep(15 * time.Millisecond)
					}
				}
				time.Sleep(time.Hour)
				for i := uint64(1); i <= n; i++ {
					b.wantFinal(i, AckMessage)
				}
				cancel()
				b.close()
			})
		})
	}
}

// A message that must run alone may be what a key, or the whole route, probes with.
func TestAlone_probes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kicked := make(chan struct{}, 1)
		b := newBench(t, Options{
			Config: supervisor.Config{RouteTrip: supervisor.RouteTrip{Of: new(3)}, TripAfter: new(0), Restart: supervisor.Backoff{Min: time.Second}},
			Alone: func() {
				select {
				case kicked <- struct{}{}:
				default:
				}
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		go warden(ctx, b.g, kicked)
		b.redeliver = false // what failed stays away
		for i := range uint64(3) {
			b.send(failing, fmt.Sprintf("k%d", i), i+1)
		}
		synctest.Wait()
		if s := b.g.Status().State; s != Waiting {
			t.Fatalf("the route is %v", s)
		}
		b.sendAlone(succeed, "k9", 9)
		synctest.Wait()
		b.wantStarts(9)
		time.Sleep(time.Minute)
		b.wantFinal(9, AckMessage)
		if s := b.g.Status().State; s != Flowing {
			t.Errorf("the route is %v", s)
		}
		cancel()
		b.close()
	})
}

// While the group is held nothing is asked for; afterwards it is again.
func TestHold_nothingStartsAndNothingIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var more atomic.Int64
		b := newBench(t, Options{More: func() { more.Add(1) }})
		b.g.Hold()
		b.send(succeed, "k", 1, 2, 3)
		time.Sleep(time.Hour)
		if free, flows := b.g.Free(); free != (Room{}) || flows || len(b.allStarts()) > 0 {
			t.Errorf("held: %d free (%v), %d started", free, flows, len(b.allStarts()))
		}
		b.g.Release()
		synctest.Wait()
		for i := range uint64(3) {
			b.wantFinal(i+1, AckMessage)
		}
		if more.Load() == 0 {
			t.Error("nobody is told that there is room again")
		}
		b.close()
	})
}

type preparedWork struct {
	prepare func() (Verdict, bool)
	do      func(ctx context.Context) Verdict
	settled chan Outcome
}

func (w preparedWork) Prepare() (Verdict, bool)                     { return w.prepare() }
func (w preparedWork) Do(ctx context.Context, _ int, _ any) Verdict { return w.do(ctx) }
func (w preparedWork) Settle(o Outcome)                             { w.settled <- o }
func (w preparedWork) Away() Away                                   { return nil }
func (w preparedWork) Remember(_ Outcome, stored func(ok bool))     { stored(true) }

// A preparation that took longer than the timeout was charged to the message as a hang.
func TestAlone_regressionTheClockOfAnAttemptBeginsAfterItsPreparation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kicked := make(chan struct{}, 1)
		g := New(Options{Timeout: time.Second, Alone: func() {
			select {
			case kicked <- struct{}{}:
			default:
			}
		}})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go warden(ctx, g, kicked)
		settled := make(chan Outcome, 1)
		left := time.Duration(0)
		g.Deliver(&Message{Key: "k", Sequence: 1, Returns: 1, Alone: true, Work: preparedWork{
			prepare: func() (Verdict, bool) { time.Sleep(5 * time.Second); return Verdict{}, true },
			do: func(ctx context.Context) Verdict {
				deadline, _ := ctx.Deadline()
				left = time.Until(deadline)
				time.Sleep(900 * time.Millisecond)
				if ctx.Err() != nil {
					t.Error("cancelled before its timeout")
				}
				return Verdict{Kind: Ack}
			}, settled: settled,
		}})
		if o := <-settled; o.Action != AckMessage || left != time.Second {
			t.Errorf("settled %v with %v left, want an ack and the whole timeout", o.Action, left)
		}
		// What is not ready is no attempt.
		g.Deliver(&Message{Key: "k", Sequence: 2, Returns: 1, Alone: true, Work: preparedWork{
			prepare: func() (Verdict, bool) { return Verdict{Kind: Lost}, false },
			do:      func(context.Context) Verdict { t.Error("it was started"); return Verdict{Kind: Ack} }, settled: settled,
		}})
		if o := <-settled; o.Action != LetGo {
			t.Errorf("settled %v", o.Action)
		}
		// A handler that hangs is found as soon as without a preparation.
		began := time.Now()
		block := make(chan struct{})
		g.Deliver(&Message{Key: "k", Sequence: 3, Returns: 1, Alone: true, Work: preparedWork{
			prepare: func() (Verdict, bool) { return Verdict{}, true },
			do:      func(context.Context) Verdict { <-block; return Verdict{Kind: Ack} }, settled: settled,
		}})
		<-settled
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("the hang was noticed after %v", took)
		}
		close(block)
		g.Close(t.Context())
		cancel()
		synctest.Wait()
	})
}
