package supervise

import (
	"math"
	"time"

	"github.com/relaymq/relay/supervisor"
)

// evidence decides whether failures mean that what the whole route depends on is down. It looks at the last completions:
// every success, and of the failures the first one of each message and those of probes. What fails again was known to fail,
// and says nothing new of the others.
//
// A few keys that fail beside others that succeed are not an outage, however many messages the failing ones have: as long
// as successes come in their usual distance from each other, nothing trips.
type evidence struct {
	need     int // how many of the last completions must have failed
	of, keys int
	window   time.Duration

	last   []completion // a ring, begun by a failure
	next   int
	failed int // of last
	rhythm rhythm
	good   goodKeys
}

type completion struct {
	key    string
	failed bool
	at     time.Time
}

func newEvidence(c supervisor.Config) evidence {
	of := *c.RouteTrip.Of
	return evidence{
		need: int(math.Ceil(c.RouteTrip.Share * float64(of))), of: of, keys: c.RouteTrip.Keys, window: c.Window,
	}
}

// succeeded notes that a handler answered.
func (e *evidence) succeeded(key string, now time.Time) {
	e.rhythm.succeeded()
	if e.failed > 0 { // a route without failures pays nothing for this
		e.add(completion{key, false, now})
	}
}

// fails notes a failure, and reports whether the route trips.
func (e *evidence) fails(key string, now time.Time) bool {
	if e.of == 0 {
		return false
	}
	e.rhythm.failed()
	e.add(completion{key, true, now})
	return len(e.last) == e.of && e.failed >= e.need && e.rhythm.overdue(maxOverdue) && e.recent(now) && e.distinct()
}

func (e *evidence) add(c completion) {
	if c.failed {
		e.failed++
	}
	if len(e.last) < e.of {
		e.last = append(e.last, c)
		return
	}
	if e.last[e.next].failed {
		e.failed--
	}
	e.last[e.next] = c
	e.next = (e.next + 1) % e.of
}

// enough is how many completions tell whether most fail, for what does no harm where it is wrong: handlers that hang, a few at once, take minutes to
// complete as many as a trip needs.
const enough = 8

// half tells whether half of the last completions failed, or more.
func (e *evidence) half() bool { return e.share(2, 1) }

// nearlyAll tells whether four of five of the last completions failed, or more.
func (e *evidence) nearlyAll() bool { return e.share(5, 4) }

// share tells whether failed of so many of the last completions failed, or more.
func (e *evidence) share(of, failed int) bool {
	n := len(e.last)
	return e.of > 0 && n >= min(e.of, enough) && of*e.failed >= failed*n
}

// recent tells whether the oldest of the completions is within the window.
func (e *evidence) recent(now time.Time) bool {
	oldest := 0
	if len(e.last) == e.of {
		oldest = e.next
	}
	return now.Sub(e.last[oldest].at) < e.window
}

// distinct tells whether the failures are of enough keys.
func (e *evidence) distinct() bool {
	seen := make(map[string]struct{}, e.keys)
	for _, c := range e.last {
		if c.failed {
			seen[c.key] = struct{}{}
			if len(seen) >= e.keys {
				return true
			}
		}
	}
	return false
}

// clear forgets the completions, but not how often successes come.
func (e *evidence) clear() {
	clear(e.last)
	e.last, e.next, e.failed = e.last[:0], 0, 0
}

// goodKeys are keys that succeeded lately, while others failed or often: the best ones to ask whether all is well again.
type goodKeys struct {
	known map[string]struct{}
	names []string // a ring
	next  int
}

const maxGoodKeys = 256

func (g *goodKeys) has(key string) bool {
	_, ok := g.known[key]
	return ok
}

func (g *goodKeys) add(key string) {
	if g.has(key) {
		return
	}
	if g.known == nil {
		g.known = make(map[string]struct{}, maxGoodKeys)
	}
	g.known[key] = struct{}{}
	if len(g.names) < maxGoodKeys {
		g.names = append(g.names, key)
		return
	}
	delete(g.known, g.names[g.next])
	g.names[g.next] = key
	g.next = (g.next + 1) % maxGoodKeys
}

// remove is for a key that failed, or whose message was dead.
func (g *goodKeys) remove(key string) {
	delete(g.known, key) // its name in the ring makes room for another one in its turn
}
