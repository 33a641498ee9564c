package chaos

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// The harness has teeth: with a part of relay's safety switched off (package teeth), a row that is green otherwise must go
// red, and for the right reason. Each test here runs such a row and passes only if its checker bites.

// bitten is what a row fails instead of its test.
type bitten struct {
	testing.TB
	mu   sync.Mutex
	said []string
}

func (b *bitten) say(s string) {
	b.mu.Lock()
	b.said = append(b.said, s)
	b.mu.Unlock()
	b.TB.Logf("red, as it should be: %s", s)
}

// Logf leaves out the figures of a row that is not itself.
func (b *bitten) Logf(format string, args ...any) {
	if !strings.HasPrefix(format, "FIGURE") {
		b.TB.Logf(format, args...)
	}
}

func (b *bitten) Error(args ...any)                 { b.say(fmt.Sprintln(args...)) }
func (b *bitten) Errorf(format string, args ...any) { b.say(fmt.Sprintf(format, args...)) }

func (b *bitten) Fatal(args ...any) {
	b.Error(args...)
	runtime.Goexit()
}

func (b *bitten) Fatalf(format string, args ...any) {
	b.Errorf(format, args...)
	runtime.Goexit()
}

// bites runs a row with a tooth pulled, and wants the class of failure. Of these tests half run in a slice, others each time, and all that are asked for.
func bites(t *testing.T, tooth string, want Class, run func(w *World)) {
	t.Helper()
	if !Full && flag.Lookup("test.run").Value.String() == "" && rand.IntN(2) == 0 {
		t.Skip("not one of this run's half; make chaos ROW=Teeth runs all of them")
	}
	t.Parallel()
	slots <- struct{}{}
	t.Cleanup(func() { <-slots })
	b := &bitten{TB: t}
	w := New(b)
	w.Bin.Relay = weakRelay(t)
	w.env = []string{"CHAOS_PULLED=" + tooth}
	w.Note("without %s", tooth)
	began := time.Now()
	var wg sync.WaitGroup
	wg.Go(func() { run(w) })
	wg.Wait()
	if !slices.ContainsFunc(b.said, func(s string) bool { return strings.HasPrefix(s, string(want)+":") }) {
		t.Errorf("without %q the row stays green, or is red for another reason than %q: %q", tooth, want, b.said)
		return
	}
	t.Logf("FIGURE %s seed=%d: without %s the row is red: %s, after %v", row(t.Name()), w.Seed, tooth, want, time.Since(began).Round(ms))
}

func TestTeeth_acks(t *testing.T) {
	bites(t, "acks", Duplicate, func(w *World) { acksLost(w, 1) }) // F35
}

func TestTeeth_fence(t *testing.T) {
	bites(t, "fence", NotFenced, func(w *World) { pauseBeyondLease(w, 1) }) // F04
}

func TestTeeth_record(t *testing.T) {
	bites(t, "record", Attempts, func(w *World) { faultFree(w, 100, 4*time.Second) }) // F00
}

func TestTeeth_expect(t *testing.T) {
	bites(t, "expect", DeadTwice, func(w *World) { killBeforeConfirmation(w, 1) }) // F91
}

func TestTeeth_copies(t *testing.T) {
	bites(t, "copies", Attempts, func(w *World) { killedBeforeTheAck(w, 4) }) // Copies
}
