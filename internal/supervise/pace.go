package supervise

import "time"

// pace tells whether one goroutine is enough. When handlers return after a few microseconds, several goroutines that take
// message after message get in each other's way: they wake each other, and wait for the group's lock. One goroutine does as
// much alone, until a message takes longer. Then the others wait behind it, and nobody else looks: so a watchdog does, within
// two milliseconds, and the route has as many goroutines as messages again, until handlers have been quick for a while.
type pace struct {
	mean     time.Duration // of the last runs, roughly
	ended    uint8         // runs, up to paceKnown
	watching bool
	started  uint64 // when the watchdog was set
}

const (
	// quickRun is how long a run may take on average that is not worth a goroutine of its own.
	quickRun = 5 * time.Microsecond
	// patience is how long nothing may start before more goroutines are needed.
	patience = time.Millisecond
	// paceKnown is after how many runs the mean says something.
	paceKnown = 100
)

// ran notes how long a run took.
func (p *pace) ran(took time.Duration) {
	p.mean += (took - p.mean) / 16
	p.ended = min(p.ended+1, paceKnown)
}

func (p *pace) quick() bool { return p.ended == paceKnown && p.mean < quickRun }

// watch sets the watchdog, with how many runs have started. It reports whether it was not set before.
func (p *pace) watch(started uint64) bool {
	if p.watching {
		return false
	}
	p.watching, p.started = true, started
	return true
}

// look is what the watchdog does: when nothing started since it was set, handlers are not quick any more.
func (p *pace) look(started uint64) {
	if p.watching && p.started == started {
		p.ended = 0
	}
	p.watching = false
}
