package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// Whatever comes and goes: a suspect has its process alone, no process has more than it may, half of them are left to ordinary messages
// while few suspects wait, and everybody who waits gets a place once places are given back.
func TestPlaces_model(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		processes, inFlight := rapid.IntRange(1, 5).Draw(rt, "processes"), rapid.IntRange(1, 4).Draw(rt, "in flight")
		steps := rapid.SliceOfN(rapid.IntRange(0, 9), 1, 60).Draw(rt, "steps")
		var fault string
		synctest.Test(t, func(*testing.T) {
			p := newPlaces(processes, inFlight)
			type holder struct {
				of class
				sl *slot
			}
			var held []holder
			var waits [classes]int
			got := make(chan holder, len(steps))
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			settle := func() {
				synctest.Wait()
				for len(got) > 0 {
					h := <-got
					waits[h.of]--
					held = append(held, h)
				}
				has, alone := make(map[*slot]int), make(map[*slot]bool)
				for _, h := range held {
					has[h.sl]++
					alone[h.sl] = alone[h.sl] || h.of != ordinary
					if h.of == ordinary && h.sl == p.solo {
						fault = "an ordinary message in the process for suspects"
					}
				}
				for sl, n := range has {
					if n > inFlight || alone[sl] && n > 1 {
						fault = fmt.Sprintf("%d messages in a process, a suspect among them: %v", n, alone[sl])
					}
				}
			}
			for _, step := range steps {
				switch {
				case step < 6:
					of := class(step) % classes
					waits[of]++
					go func() {
						if sl, err := p.take(ctx, of); err == nil {
							got <- holder{of, sl}
						}
					}()
				case step < 9 && len(held) > 0:
					i := step % len(held)
					p.give(held[i].sl)
					held = slices.Delete(held, i, i+1)
				default:
					time.Sleep(patience / 2)
				}
				settle()
			}
			for len(held) > 0 {
				p.give(held[0].sl)
				held = held[1:]
				settle()
			}
			if waits != [classes]int{} {
				fault = fmt.Sprintf("all have been given back, and %v wait", waits)
			}
		})
		if fault != "" {
			rt.Fatal(fault)
		}
	})
}

// Suspects leave ordinary messages half of the processes, until more of them wait than a crash makes; then both go on in turn.
func TestPlaces_crowded(t *testing.T) {
	p := newPlaces(4, 2)
	take := func(of class) *slot {
		t.Helper()
		sl, err := p.take(t.Context(), of)
		if err != nil {
			t.Fatal(err)
		}
		return sl
	}
	for range 3 { // the process for suspects, and half of the others
		take(untried)
	}
	var first [4]*slot
	for i := range first {
		first[i] = take(ordinary)
	}
	took := make(chan class, 8)
	for i := range 3 {
		go func() {
			if sl, err := p.take(t.Context(), untried); err == nil {
				took <- untried
				p.give(sl)
			}
		}()
		for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(time.Millisecond) {
			p.mu.Lock()
			n := len(p.lines[untried])
			p.mu.Unlock()
			if n == i+1 {
				break
			}
		}
	}
	if !p.isCrowded() {
		t.Fatal("3 suspects wait, and 2 is what a crash makes")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.take(ctx, ordinary); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	p.give(first[0])
	select {
	case of := <-took:
		t.Errorf("a process that has another message was given a message of class %d, too", of)
	case <-time.After(20 * time.Millisecond):
	}
	for _, sl := range first[1:] {
		p.give(sl)
	}
	for range 3 {
		<-took
	}
}

// The process for suspects may be held for long by one that hangs. An untried one has another process soon, also when nothing else happens.
func TestPlaces_patience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces(1, 2)
		if sl, err := p.take(t.Context(), tried); err != nil || sl != p.solo {
			t.Fatal(sl, err)
		}
		began := time.Now()
		if sl, err := p.take(t.Context(), untried); err != nil || sl == p.solo || time.Since(began) != patience {
			t.Error(sl, err, time.Since(began))
		}
	})
}
