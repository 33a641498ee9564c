package supervise

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/relaymq/relay/supervisor"
)

// flood guards the dead letters: when nearly all of the last answers of a route were dead, over several keys if there are several, and
// no success came when one was due, it is rather what answers that is broken than the messages. Then dead is not believed (see doubt.go). Since
// the last success at most as many are believed as are looked at, however seldom successes come. Failures are no answers.
type flood struct {
	need, of int
	last     []answer // a ring
	next     int
	deads    int // of last
	rhythm   rhythm
	keys     []string  // of the dead ones since the last success, up to deadTripKeys of them
	began    time.Time // the first of these
	lately   distinct  // keys that had an answer
}

// answer is what the flood keeps of one.
type answer uint8

const (
	alive answer = iota // a success
	dead
)

// deadTripKeys is over how many keys the dead ones must be, if so many have answers: one producer of bad messages is not the endpoint.
const deadTripKeys = 3

// distinct counts the keys of the last minute or two, up to deadTripKeys.
type distinct struct {
	keys  []string // since then
	since time.Time
	was   int // in the minute before
}

func (d *distinct) saw(key string, now time.Time) {
	if age := now.Sub(d.since); age >= time.Minute {
		d.was = len(d.keys)
		if age >= 2*time.Minute {
			d.was = 0
		}
		d.keys, d.since = d.keys[:0], now
	}
	if len(d.keys) < deadTripKeys && !slices.Contains(d.keys, key) {
		d.keys = append(d.keys, key)
	}
}

func (d *distinct) n() int { return max(d.was, len(d.keys)) }

func newFlood(c supervisor.Config) flood {
	of := *c.DeadTrip.Of
	return flood{need: int(math.Ceil(c.DeadTrip.Share * float64(of))), of: of}
}

// died notes a message that is dead, and reports whether that is to be believed no longer.
func (f *flood) died(key string, began, now time.Time) bool {
	if f.of == 0 {
		return false
	}
	f.lately.saw(key, now)
	if f.rhythm.since == 0 {
		f.keys, f.began = f.keys[:0], began
	}
	f.rhythm.failed()
	f.add(dead)
	if len(f.keys) < deadTripKeys && !slices.Contains(f.keys, key) {
		f.keys = append(f.keys, key)
	}
	return f.deads >= f.need && len(f.keys) >= min(deadTripKeys, f.lately.n()) && f.rhythm.overdue(f.of)
}

// succeeded notes a success. One that began before the dead ones is of another time: what answers has changed since.
func (f *flood) succeeded(key string, began, now time.Time) {
	f.lately.saw(key, now)
	if f.rhythm.since > 0 && began.Before(f.began) {
		return
	}
	f.rhythm.succeeded()
	if f.deads > 0 { // a route without dead ones pays nothing for this
		f.add(alive)
	}
}

func (f *flood) add(a answer) {
	if a == dead {
		f.deads++
	}
	if len(f.last) < f.of {
		f.last = append(f.last, a)
		return
	}
	if f.last[f.next] == dead {
		f.deads--
	}
	f.last[f.next] = a
	f.next = (f.next + 1) % f.of
}

// clear forgets the answers, but not how often successes come.
func (f *flood) clear() { f.last, f.next, f.deads = f.last[:0], 0, 0 }

// why says what the flood was, before it is cleared.
func (f *flood) why(err error) string {
	over := fmt.Sprintf("over %d keys or more", len(f.keys))
	if len(f.keys) == 1 {
		over = "all of one key"
	}
	return fmt.Sprintf("%d of the last %d answers were dead, %s (dead_trip): %s", f.deads, len(f.last), over, text(err))
}

func text(err error) string {
	if err == nil {
		return "no reason given"
	}
	return err.Error()
}
