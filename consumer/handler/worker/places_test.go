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

// Suspects leave ordinary messages half of the processes. When more of them wait than a crash makes, no process has anything beside another message.
func TestPlaces_crowded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces(4, 2)
		ctx, cancel := context.WithCancel(t.Context())
		take := func(of class) *slot {
			sl, err := p.take(ctx, of)
			if err != nil {
				t.Error(err)
			}
			return sl
		}
		for range 3 { // the process for suspects, and half of the others
			take(untried)
		}
		var held [4]*slot
		for i := range held {
			held[i] = take(ordinary)
		}
		took := make(chan class, 4)
		for _, of := range []class{untried, untried, untried, ordinary} {
			go func() {
				if _, err := p.take(ctx, of); err == nil {
					took <- of
				} else if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			}()
		}
		synctest.Wait()
		if !p.isCrowded() {
			t.Error("3 suspects wait, and 2 is what a crash makes")
		}
		p.give(held[0])
		if synctest.Wait(); len(took) > 0 {
			t.Errorf("a message of class %d was given a process that has another one", <-took)
		}
		for _, sl := range held[1:] {
			p.give(sl)
		}
		// One of each goes on. Then no more than 2 suspects wait, and half of the processes are left to ordinary messages again.
		if synctest.Wait(); len(took) != 2 {
			t.Fatalf("%d more messages have a place, want 2", len(took))
		}
		if first, second := <-took, <-took; first == second {
			t.Errorf("both are of class %d", first)
		}
		cancel()
	})
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
