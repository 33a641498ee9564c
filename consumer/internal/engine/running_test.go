package engine

import (
	"testing"

	"github.com/relaymq/relay/consumer/internal/source"
)

// A durable that was made anew as the drain began was pulled from for as long as the drain lasted.
func TestRunning_regressionNoSourceTakesOverDuringADrain(t *testing.T) {
	r, u := newRunning(), new(Unit)
	old, next := new(source.Source), new(source.Source)
	old.Join(u)
	next.Join(u)
	r.Add(u, func() {})
	r.Include(old)
	if last := r.Drain(); len(last) != 1 || len(last[0].Open()) != 1 {
		t.Fatalf("last units %v", last)
	}
	if r.Replace(old, next) || r.Sources()[0] != old {
		t.Error("a source took over")
	}
}
