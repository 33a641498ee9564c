package batches

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

type msg struct {
	id   string
	size int
	ask  func(context.Context) error
}

func (m msg) ID() string                          { return m.id }
func (m msg) Size() int                           { return m.size }
func (m msg) Wanted() func(context.Context) error { return m.ask }

var (
	errDead = errors.New("dead")
	errDone = errors.New("done with")
	errWait = errors.New("come later")
)

func means(err error) Meaning {
	switch {
	case err == nil, errors.Is(err, errDone):
		return Done
	case errors.Is(err, errDead):
		return Dead
	case errors.Is(err, errWait):
		return Elsewhere
	}
	return Failed
}

func ended(p any) error { return fmt.Errorf("ended by %v", p) }

func batcher(cfg Config) *Batcher {
	cfg.Means, cfg.Ended = means, ended
	cfg.Size, cfg.Bytes = max(cfg.Size, 2), max(cfg.Bytes, 1<<10)
	if cfg.Wait == 0 {
		cfg.Wait = 200 * time.Millisecond
	}
	return New(cfg)
}

// handle hands n messages to b at once, and returns their errors.
func handle(ctx context.Context, b *Batcher, n int, m func(i int) msg) []error {
	list := make([]error, n)
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() { list[i] = b.Handle(ctx, m(i)) })
	}
	calls.Wait()
	return list
}

func numbered(i int) msg { return msg{id: fmt.Sprint(i), size: 1} }

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

func TestBatcher_anOutageChargesThree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs, down := 0, errors.New("down")
		b := batcher(Config{Size: 64, Call: func(context.Context, []Message) ([]error, error) { runs++; return nil, down }})
		charged := 0
		for _, err := range handle(t.Context(), b, 64, numbered) {
			switch {
			case !errors.Is(err, down):
				t.Errorf("%v", err)
			case !is[*NotStartedError](err):
				charged++
			}
		}
		if charged != outage || runs > 12 {
			t.Errorf("%d are charged, after %d runs", charged, runs)
		}
	})
}

func TestBatcher_timeBytesAndOneThatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var sizes []int
		b := batcher(Config{Size: 64, Call: func(_ context.Context, list []Message) ([]error, error) {
			mu.Lock()
			defer mu.Unlock()
			sizes = append(sizes, len(list))
			return nil, nil
		}})
		sized := func(size int) func(int) msg { return func(i int) msg { return msg{id: fmt.Sprint(i), size: size} } }
		began := time.Now()
		handle(t.Context(), b, 3, sized(300))
		if took := time.Since(began); took != 200*time.Millisecond {
			t.Errorf("three messages took %v", took)
		}
		handle(t.Context(), b, 4, sized(300)) // the fourth does not fit
		handle(t.Context(), b, 1, sized(2000))
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := handle(ctx, b, 1, sized(1))[0]; !is[*NotStartedError](err) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("who left got %v", err)
		}
		time.Sleep(time.Second)
		mu.Lock()
		defer mu.Unlock()
		if fmt.Sprint(sizes) != "[3 3 1 1]" {
			t.Errorf("batches of %v", sizes)
		}
	})
}

func TestBatcher_oneThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		b := batcher(Config{Call: func(context.Context, []Message) ([]error, error) { <-release; return nil, nil }})
		for i := range maxHung + 1 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			began := time.Now()
			for _, err := range handle(ctx, b, 2, func(j int) msg { return numbered(2*i + j) }) {
				if !is[*AloneError](err) || !errors.Is(err, errHung) {
					t.Errorf("%v", err)
				}
			}
			if took := time.Since(began); took != time.Second+grace {
				t.Errorf("given up after %v", took)
			}
			cancel()
		}
		if err := b.Handle(t.Context(), numbered(1000)); !is[*HungError](err) {
			t.Errorf("with so many that hang: %v", err)
		}
		if n := b.Hung(); n != maxHung+1 {
			t.Errorf("%d are counted as hung", n)
		}
		close(release)
		synctest.Wait()
		if n := b.Hung(); n != 0 {
			t.Errorf("%d are counted as hung after they returned", n)
		}
	})
}

// Messages of a batch that panicked or called runtime.Goexit run alone when they come again, and together once they succeeded.
func TestBatcher_aPanicEndsItsBatch(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("oh") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var sizes []int
				bad := true
				b := batcher(Config{Size: 4, Call: func(_ context.Context, list []Message) ([]error, error) {
					sizes = append(sizes, len(list))
					if bad {
						end()
					}
					return nil, nil
				}})
				for _, err := range handle(t.Context(), b, 4, numbered) {
					var alone *AloneError
					if !errors.As(err, &alone) || alone.Delay != aloneAfter || !strings.Contains(alone.Err.Error(), "ended by") {
						t.Errorf("%v", err)
					}
				}
				bad = false
				for i := range 4 {
					if err := b.Handle(t.Context(), numbered(i)); err != nil {
						t.Errorf("alone: %v", err)
					}
				}
				handle(t.Context(), b, 4, numbered)
				if fmt.Sprint(sizes) != "[4 1 1 1 1 4]" {
					t.Errorf("batches of %v", sizes)
				}
			})
		})
	}
}

// What is about no message, or ends all of them, is the end of the whole batch at once.
func TestBatcher_errorsOfTheWhole(t *testing.T) {
	for _, said := range []error{errDone, errWait} {
		synctest.Test(t, func(t *testing.T) {
			runs := 0
			b := batcher(Config{Size: 8, Call: func(context.Context, []Message) ([]error, error) { runs++; return nil, said }})
			for i, err := range handle(t.Context(), b, 8, numbered) {
				if !errors.Is(err, said) {
					t.Errorf("message %d: %v, want %v", i, err, said)
				}
			}
			if runs != 1 {
				t.Errorf("%v: the batch ran %d times", said, runs)
			}
		})
	}
}

// A message that waited for its batch is no part of it when its caller has gone meanwhile, and without any other the batch does not run.
func TestBatcher_asksLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("gone")
		var got []string
		b := batcher(Config{Size: 8, Call: func(_ context.Context, list []Message) ([]error, error) {
			for _, m := range list {
				got = append(got, m.ID())
			}
			return nil, nil
		}})
		asks := func(i int) msg {
			m := numbered(i)
			m.ask = func(context.Context) error {
				if i > 0 {
					return gone
				}
				return nil
			}
			return m
		}
		for i, err := range handle(t.Context(), b, 3, asks) {
			if (i > 0) != errors.Is(err, gone) {
				t.Errorf("message %d: %v", i, err)
			}
		}
		handle(t.Context(), b, 1, func(int) msg { return asks(1) })
		if fmt.Sprint(got) != "[0]" {
			t.Errorf("handled %v", got)
		}
	})
}

// A batch ends with the first of its attempts that times out, or when nobody waits for any of them.
func TestBatcher_contextOfABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took time.Duration
		b := batcher(Config{Call: func(ctx context.Context, _ []Message) ([]error, error) {
			began := time.Now()
			<-ctx.Done()
			took = time.Since(began)
			return nil, ctx.Err()
		}})
		var calls sync.WaitGroup
		for i, left := range []time.Duration{2 * time.Second, time.Second} {
			ctx, cancel := context.WithTimeout(t.Context(), left)
			defer cancel()
			calls.Go(func() {
				if err := b.Handle(ctx, numbered(i)); !is[*AloneError](err) {
					t.Errorf("%v", err)
				}
			})
		}
		calls.Wait()
		if took != time.Second {
			t.Errorf("the batch had %v", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(300*time.Millisecond, cancel)
		handle(ctx, b, 2, func(i int) msg { return numbered(10 + i) })
		if took != 300*time.Millisecond {
			t.Errorf("the batch that nobody wants had %v", took)
		}
	})
}

// Of any batch, each bad message ends with its own error, each good one with none, unless an outage was seen.
func TestBatcher_model(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		n := rapid.IntRange(1, 80).Draw(r, "messages")
		kinds := rapid.SliceOfN(rapid.SampledFrom([]string{"good", "good", "good", "good", "bad", "dead", "single"}), n, n).Draw(r, "kinds")
		size := rapid.IntRange(2, 50).Draw(r, "size")
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			done := make(map[string]int)
			bad := errors.New("bad")
			b := batcher(Config{Size: size, Bytes: 1 << 20, Call: func(_ context.Context, list []Message) ([]error, error) {
				mu.Lock()
				defer mu.Unlock()
				if len(list) > size {
					t.Errorf("a batch of %d", len(list))
				}
				var errs []error
				for _, m := range list {
					switch m.(kinded).kind {
					case "bad":
						return nil, bad
					case "dead":
						return nil, errDead
					case "single":
						errs = append(errs, bad)
					default:
						errs = append(errs, nil)
					}
				}
				for _, m := range list {
					done[m.ID()]++
				}
				return errs, nil
			}})
			list := make([]error, n)
			var calls sync.WaitGroup
			for i := range n {
				calls.Go(func() { list[i] = b.Handle(t.Context(), kinded{numbered(i), kinds[i]}) })
			}
			calls.Wait()
			for i, err := range list {
				want := map[string]error{"bad": bad, "dead": errDead, "single": bad}[kinds[i]]
				switch {
				case is[*NotStartedError](err):
					if done[fmt.Sprint(i)] > 0 {
						r.Errorf("message %d was done and is told not to have begun", i)
					}
				case !errors.Is(err, want):
					r.Errorf("message %d (%s): %v", i, kinds[i], err)
				case done[fmt.Sprint(i)] > 1:
					r.Errorf("message %d was done %d times", i, done[fmt.Sprint(i)])
				}
			}
			if !slices.Contains(kinds, "bad") && slices.ContainsFunc(list, is[*NotStartedError]) {
				r.Errorf("an outage without a failure: %v", list)
			}
		})
	})
}

type kinded struct {
	msg
	kind string
}
