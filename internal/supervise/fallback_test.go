package supervise

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/supervisor"
)

// substituteBench is what a bench knows of the fallback of its group.
type substituteBench struct {
	handle  handlerFunc
	began   []uint64 // the messages that it got
	started map[uint64]int
	live    map[*Message]time.Time
	onStart func(m *Message)
	onEnd   func(ctx context.Context, m *Message, v Verdict, returned bool)
}

// DoFallback is one attempt of the fallback.
func (w *testWork) DoFallback(ctx context.Context, _ int, _ any) (v Verdict) {
	b, s := w.b, &w.b.substitute
	b.check()
	b.mu.Lock()
	if s.started == nil {
		s.started, s.live = map[uint64]int{}, map[*Message]time.Time{}
	}
	s.began = append(s.began, w.m.Sequence)
	s.started[w.m.Sequence]++
	n := s.started[w.m.Sequence]
	if s.onStart != nil {
		s.onStart(w.m)
	}
	deadline, _ := ctx.Deadline()
	s.live[w.m] = deadline.Add(hangGrace)
	running := 0
	for _, until := range s.live {
		if time.Now().Before(until) {
			running++
		}
	}
	if most := cmp.Or(b.most.Fallback.Concurrency, 8); running > most {
		b.fault("%d of the fallback run, its concurrency is %d", running, most)
	}
	b.mu.Unlock()
	returned := false
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(s.live, w.m)
		if s.onEnd != nil {
			s.onEnd(ctx, w.m, v, returned)
		}
	}()
	v = s.handle(ctx, w.m, n)
	returned = true
	return v
}

func (b *bench) substituted() []uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.substitute.began)
}

// An outage of the main handler: messages go to the fallback as they come, one at a time probes, and once it works again the
// fallback has nothing more.
func TestFallback_handlesWhatWaits(t *testing.T) {
	for _, scope := range []string{"key", "route"} {
		t.Run(scope, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := supervisor.Config{TripAfter: new(3), RouteTrip: supervisor.RouteTrip{Of: new(0)}}
				key := func(uint64) string { return "k" }
				if scope == "route" {
					cfg = supervisor.Config{RouteTrip: supervisor.RouteTrip{Of: new(6)}}
					key = func(n uint64) string { return string(rune('a'+n%26)) + string(rune('a'+n/26%26)) }
				}
				b := newBench(t, Options{Config: cfg, Fallback: &Fallback{Waiting: true}, Retry: supervisor.Backoff{Min: 500 * time.Millisecond}})
				defer b.close()
				up, probes := false, 0
				main := func(context.Context, *Message, int) Verdict {
					b.mu.Lock()
					defer b.mu.Unlock()
					if up {
						return ok
					}
					probes++
					return failed
				}
				b.substitute.handle = func(context.Context, *Message, int) Verdict { return ok }
				sent := map[uint64]time.Time{}
				late := func() {
					b.mu.Lock()
					defer b.mu.Unlock()
					for n, at := range sent {
						if os := b.outcomes[n]; time.Since(at) > 2*time.Second && (len(os) == 0 || os[len(os)-1].Action != AckMessage) {
							t.Errorf("message %d waits for %v", n, time.Since(at))
							delete(sent, n)
						}
					}
				}
				send := func(from, to uint64) {
					for n := from; n <= to; n++ {
						sent[n] = time.Now()
						b.send(main, key(n), n)
						time.Sleep(20 * time.Millisecond)
						late()
					}
				}
				send(1, 3000) // a minute
				b.mu.Lock()
				asked := probes
				b.mu.Unlock()
				if asked > 300 {
					t.Errorf("the main handler was asked %d times while it was down", asked)
				}
				b.mu.Lock()
				up = true
				b.mu.Unlock()
				time.Sleep(time.Minute)
				before := len(b.substituted())
				send(3001, 3100)
				if n := len(b.substituted()) - before; n > 1 {
					t.Errorf("the fallback got %d messages after the main handler worked again", n)
				}
				s, _ := b.g.Fallback()
				if s.Running != 0 || int(s.Done) != before || s.Failed != 0 {
					t.Errorf("%+v after %d", s, before)
				}
				for n := uint64(1); n <= 3100; n++ {
					o, _ := b.final(n)
					if o.Action != AckMessage || o.Fallback && o.Attempts > 2 {
						t.Errorf("message %d: %+v", n, o)
					}
				}
			})
		})
	}
}

// What the fallback fails, panics with or hangs on waits as if there were none, and spends no attempt; it is asked again later.
func TestFallback_failuresAreContained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []error // read after synctest.Wait
		var up atomic.Bool
		var never [9]atomic.Bool // the fallback said that it never can
		b := newBench(t, Options{
			Config: supervisor.Config{TripAfter: new(1), RouteTrip: supervisor.RouteTrip{Of: new(0)}, Restart: supervisor.Backoff{Min: time.Hour, Max: time.Hour}},
			Retry:  supervisor.Backoff{Min: time.Second, Max: time.Second}, MaxAttempts: 3,
			Fallback: &Fallback{Waiting: true, Timeout: time.Second, Failing: func(err error) { told = append(told, err) }},
		})
		defer b.close()
		b.substitute.handle = func(ctx context.Context, m *Message, n int) Verdict {
			if up.Load() {
				return ok
			}
			switch m.Sequence % 4 {
			case 0:
				panic("boom")
			case 1:
				<-ctx.Done()
				time.Sleep(10 * time.Second)
			case 2:
				never[m.Sequence].Store(true)
				return Verdict{Kind: Dead, Err: errDown}
			}
			return failed
		}
		main := func(context.Context, *Message, int) Verdict { return failed }
		b.send(main, "k", 1, 2, 3, 4, 5, 6, 7, 8)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		s, _ := b.g.Fallback()
		if s.Done != 0 || s.Failed < 10 || s.Err == nil || s.Since.IsZero() || len(told) != 1 || told[0] == nil {
			t.Errorf("%+v, told %v", s, told)
		}
		for _, st := range b.allStarts() {
			if st.at > time.Second {
				t.Errorf("the main handler was asked during its wait: %+v", st)
			}
		}
		up.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(told) != 2 || told[1] != nil {
			t.Errorf("told %v", told)
		}
		for n := uint64(1); n <= 8; n++ {
			o, done := b.final(n)
			if never[n].Load() && n != 2 && done {
				t.Errorf("message %d: %+v", n, o)
			}
			if !never[n].Load() && (!o.Fallback || o.Attempts > 1) {
				t.Errorf("message %d: %+v", n, o)
			}
		}
	})
}

// Before it is dead-lettered, a message goes to the fallback once; what that fails is dead with the error of both.
func TestFallback_isTheLastResort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{
			Config: supervisor.Config{TripAfter: new(0), RouteTrip: supervisor.RouteTrip{Of: new(0)}}, Retry: supervisor.Backoff{Min: time.Second, Max: time.Second}, MaxAttempts: 2,
			Fallback: &Fallback{Exhausted: true, Concurrency: 1},
		})
		defer b.close()
		b.substitute.handle = func(_ context.Context, m *Message, _ int) Verdict {
			time.Sleep(100 * time.Millisecond)
			if m.Sequence%2 == 0 {
				return failed
			}
			return ok
		}
		b.send(func(context.Context, *Message, int) Verdict { return failed }, "k", seq(1, 10)...)
		time.Sleep(10 * time.Minute)
		if n := len(b.substituted()); n != 10 {
			t.Errorf("%d attempts of the fallback", n)
		}
		for n := uint64(1); n <= 10; n++ {
			o, done := b.final(n)
			want, byFallback := AckMessage, true
			if n%2 == 0 {
				want, byFallback = DeadLetter, false
			}
			if !done || o.Action != want || o.Fallback != byFallback || o.Attempts != 2 || len(b.startsOf(n)) != 2 {
				t.Errorf("message %d: %+v", n, o)
			}
		}
	})
}

// Of an ordered key the fallback has the first message only, and nothing starts beside it.
func TestFallback_keepsTheOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Ordered: true, Config: supervisor.Config{TripAfter: new(1)}, Fallback: &Fallback{Waiting: true}})
		defer b.close()
		var up atomic.Bool
		var all []uint64 // by one handler at a time; read after synctest.Wait
		b.substitute.handle = func(_ context.Context, m *Message, n int) Verdict {
			time.Sleep(30 * time.Millisecond)
			if m.Sequence == 5 && n == 1 {
				return failed
			}
			all = append(all, m.Sequence)
			return ok
		}
		b.send(func(_ context.Context, m *Message, _ int) Verdict {
			if !up.Load() {
				return failed
			}
			all = append(all, m.Sequence)
			return ok
		}, "k", seq(1, 200)...)
		time.AfterFunc(2*time.Second, func() { up.Store(true) })
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if !slices.Equal(all, seq(1, 200)) || len(b.substituted()) < 5 || len(b.startsOf(200)) == 0 {
			t.Errorf("done %v, by the fallback %v", all, b.substituted())
		}
	})
}
