package supervisor

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// flood guards the dead letters: when nearly all of the last answers of a route were dead, over several keys, and no success came
// when one was due, it is rather what answers that is broken than the messages. Then dead is not believed (see doubt.go). Since
// the last success at most as many are believed as are looked at, however seldom successes come. Failures are no answers.
type flood struct {
	need, of int
	last     []bool // a ring of answers: which were dead
	next     int
	deads    int // of last
	rhythm   rhythm
	keys     []string  // of the dead ones since the last success, up to deadTripKeys of them
	began    time.Time // the first of these
}

// deadTripKeys is over how many keys the dead ones must be: one producer of bad messages is not the endpoint.
const deadTripKeys = 3

func newFlood(c Config) flood {
	of := *c.DeadTrip.Of
	return flood{need: int(math.Ceil(c.DeadTrip.Share * float64(of))), of: of}
}

// died notes a message that is dead, and reports whether that is to be believed no longer.
func (f *flood) died(key string, began time.Time) bool {
	if f.of == 0 {
		return false
	}
	if f.rhythm.since == 0 {
		f.keys, f.began = f.keys[:0], began
	}
	f.rhythm.failed()
	f.add(true)
	if len(f.keys) < deadTripKeys && !slices.Contains(f.keys, key) {
		f.keys = append(f.keys, key)
	}
	return f.deads >= f.need && len(f.keys) == deadTripKeys && f.rhythm.overdue(f.of)
}

// succeeded notes a success. One that began before the dead ones is of another time: what answers has changed since.
func (f *flood) succeeded(began time.Time) {
	if f.rhythm.since > 0 && began.Before(f.began) {
		return
	}
	f.rhythm.succeeded()
	if f.deads > 0 { // a route without dead ones pays nothing for this
		f.add(false)
	}
}

func (f *flood) add(dead bool) {
	if dead {
		f.deads++
	}
	if len(f.last) < f.of {
		f.last = append(f.last, dead)
		return
	}
	if f.last[f.next] {
		f.deads--
	}
	f.last[f.next] = dead
	f.next = (f.next + 1) % f.of
}

// clear forgets the answers, but not how often successes come.
func (f *flood) clear() { f.last, f.next, f.deads = f.last[:0], 0, 0 }

// why says what the flood was, before it is cleared.
func (f *flood) why(err error) string {
	return fmt.Sprintf("%d of the last %d answers were dead, over %d keys or more (dead_trip): %s", f.deads, len(f.last), len(f.keys), text(err))
}

func text(err error) string {
	if err == nil {
		return "no reason given"
	}
	return err.Error()
}
