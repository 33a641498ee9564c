package supervise

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestClose_givesBackWhatDidNotStartAndLetsTheRestFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{Concurrency: 1})
		b.redeliver = false
		b.send(takes(time.Second), "a", 1)
		synctest.Wait()
		b.send(succeed, "a", 2)
		b.send(succeed, "b", 3)
		b.g.Drain()
		b.send(succeed, "c", 4)
		for s := uint64(2); s <= 4; s++ {
			if o := b.wantLast(s, GiveBack); !o.Due.IsZero() {
				t.Errorf("message %d comes again at %v, want at once", s, o.Due)
			}
		}
		if n := b.g.Close(t.Context()); n != 0 {
			t.Errorf("%d interrupted", n)
		}
		b.wantFinal(1, AckMessage)
		b.wantOrder(1)
		b.close()
	})
}

func TestClose_anInterruptedAttemptIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{})
		b.redeliver = false
		b.send(obeying, "a", 1)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		synctest.Wait()
		if n := b.g.Close(ctx); n != 1 || time.Since(b.began) != 2*time.Second {
			t.Errorf("%d interrupted after %v", n, time.Since(b.began))
		}
		if o := b.wantLast(1, GiveBack); o.Attempts != 0 {
			t.Errorf("outcome %+v", o)
		}
		b.close()
	})
}

func TestClose_letsGoOfWhatDoesNotReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		opts := Options{}
		f := newFamily(&opts)
		b := newBench(t, opts)
		b.redeliver = false
		b.send(ignoring(release), "a", 1)
		b.send(succeed, "b", 2)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if n := b.g.Close(ctx); n != 1 || time.Since(b.began) > 4*time.Second {
			t.Errorf("%d interrupted after %v", n, time.Since(b.began))
		}
		b.wantLast(1, LetGo)
		f.want(t, "a:1 b:1", "a-1:1 b-1:1")
		close(release)
		b.close()
	})
}

func TestClose_aFactoryThatHangsDoesNotKeepIt(t *testing.T) {
	for name, obeys := range map[string]bool{"obeys": true, "ignores": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				b := newBench(t, Options{New: func(ctx context.Context, _ string) (any, error) {
					if obeys {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					<-release
					return nil, nil
				}})
				b.redeliver = false
				b.send(succeed, "a", 1)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				b.g.Close(ctx)
				if d := time.Since(b.began); d > 2*time.Second {
					t.Errorf("closed after %v", d)
				}
				close(release)
				b.close()
			})
		})
	}
}

func TestClose_whileEverythingMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := Options{Concurrency: 4, StashMessages: 20}
		newFamily(&opts)
		b := newBench(t, opts)
		var callers sync.WaitGroup
		for c := range uint64(4) {
			callers.Go(func() {
				for s := range uint64(200) {
					key := fmt.Sprint("k", s%7)
					b.send([]handlerFunc{succeed, failing, panicking, takes(10 * time.Millisecond)}[s%4], key, c*1000+s+1)
					switch s % 20 {
					case 3:
						b.g.SuspendKey(key, "test")
					case 5:
						b.g.ResumeKey(key)
					case 7:
						b.g.Pause()
					case 8:
						b.g.Resume()
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		time.Sleep(100 * time.Millisecond)
		b.mu.Lock()
		b.closed = true
		b.mu.Unlock()
		callers.Go(func() { b.g.Close(t.Context()) })
		b.g.Close(t.Context())
		callers.Wait()
		b.close()
	})
}
