package usercode

import (
	"context"
	"testing"
	"time"
)

type lively struct{ begun, stopped int }

func (l *lively) Start(context.Context) error { l.begun++; return nil }
func (l *lively) Stop(context.Context) error  { l.stopped++; return nil }

func TestSame(t *testing.T) {
	t.Parallel()
	a, f := new(lively), func() {}
	if !Same(a, a) || Same(a, new(lively)) || Same(f, f) || Same(nil, nil) || Same(a, nil) {
		t.Error("handlers are compared otherwise")
	}
}

// A handler that several routes have ends once none has it any more, and not with one of them.
func TestShared(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	h := new(lively)
	first := Shared{}.Next(h, time.Second)
	if err := first.Life().Begin(ctx); err != nil || h.begun != 1 {
		t.Fatalf("begun %d times, %v", h.begun, err)
	}
	if _ = first.Life().End(ctx, time.Second); h.stopped > 0 {
		t.Error("one of the routes stopped it")
	}
	second := first.Next(h, time.Minute)
	if first.EndBefore(ctx, second); second.Life() != first.Life() || h.stopped > 0 {
		t.Error("it does not go on with what comes after")
	}
	other := second.Next(new(lively), time.Second)
	if second.EndBefore(ctx, other); h.stopped != 1 || other.Life() == second.Life() {
		t.Errorf("it was stopped %d times when another one took its place", h.stopped)
	}
	plain := other.Next(7, time.Second)
	if plain.Life() != nil {
		t.Error("what need not be started has a life")
	}
	plain.EndBefore(ctx, Shared{})
}
