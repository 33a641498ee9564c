package supervisor

import (
	"fmt"
	"math"
)

// flood guards the dead letters: when nearly all of the last completions of a route were answered with dead, over several keys,
// it is rather what answers that is broken than the messages. Then the route is suspended (see routesuspended.go).
type flood struct {
	need, of int
	last     []doom // a ring
	next     int
	dead     map[string]int // of last, by key
	deads    int
}

// doom is a completion, with its key when it was dead.
type doom struct {
	key  string
	dead bool
}

// deadTripKeys is over how many keys the dead ones must be: one producer of bad messages is not the endpoint.
const deadTripKeys = 3

func newFlood(c Config) flood {
	of := *c.DeadTrip.Of
	return flood{need: int(math.Ceil(c.DeadTrip.Share * float64(of))), of: of}
}

// ended notes a completion, and reports whether the route is to be suspended.
func (f *flood) ended(key string, how Kind) bool {
	if f.of == 0 || how != Dead && f.deads == 0 { // a route without dead ones pays nothing for this
		return false
	}
	d := doom{dead: how == Dead}
	if d.dead {
		d.key = key
		if f.dead == nil {
			f.dead = make(map[string]int)
		}
		f.dead[key]++
		f.deads++
	}
	if len(f.last) < f.of {
		f.last = append(f.last, d)
	} else {
		f.leaves(f.last[f.next])
		f.last[f.next] = d
		f.next = (f.next + 1) % f.of
	}
	return d.dead && f.deads >= f.need && len(f.dead) >= deadTripKeys
}

// leaves counts a completion out that is not one of the last any more.
func (f *flood) leaves(d doom) {
	if !d.dead {
		return
	}
	f.deads--
	if f.dead[d.key]--; f.dead[d.key] == 0 {
		delete(f.dead, d.key)
	}
}

// clear forgets all completions.
func (f *flood) clear() { *f = flood{need: f.need, of: f.of} }

// why says what the flood was, before it is cleared.
func (f *flood) why(err error) string {
	return fmt.Sprintf("%d of the last %d completions were dead, over %d keys (dead_trip): %s", f.deads, len(f.last), len(f.dead), text(err))
}
