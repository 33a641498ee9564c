// Package gaps finds the messages that the server delivered and that never arrived: a connection was cut, another server leads the durable, a
// former life of the process had them. They come again after AckWait, and later ones of their keys at once, so ordered routes have to hold those.
package gaps

import (
	"log/slog"
	"sync"
	"time"

	"github.com/relaymq/relay/internal/pool"
)

// attendEvery is how often Attend is to be called.
const attendEvery = time.Second

// Hold is what ordered routes are to hold: messages above a stream sequence, until then at most.
type Hold struct {
	Above uint64
	Until time.Time
	// Arrived says that what they wait for has arrived, and is on its way to the routes: Until does not count.
	Arrived bool
}

func (h Hold) over(now time.Time) bool { return !h.Arrived && !now.Before(h.Until) }

// Watch has the ordered routes of a durable hold what may not overtake a message that is missing. Its methods are for one goroutine.
type Watch struct {
	log  *slog.Logger
	hold func(Hold)
	// behind runs in order what the messages go through that have arrived.
	behind *pool.Pool
	on     bool // the durable has ordered routes
	gate   gate
	told   told
}

// NewWatch returns one that holds nothing until Begin. What is to be let go once the messages that have arrived are with their routes is let go
// by behind.
func NewWatch(log *slog.Logger, behind *pool.Pool, hold func(Hold)) *Watch {
	return &Watch{log: log, behind: behind, hold: hold}
}

// Start is what the server says of a durable that is opened.
type Start struct {
	Consumer  uint64 // sequence of its last delivery
	Delivered uint64 // stream sequence of that
	AckFloor  uint64 // stream sequence
	Pending   int    // deliveries that are not settled
	AckWait   time.Duration
	Alone     bool // nobody else takes deliveries
}

// Begin begins with a durable that was opened.
func (w *Watch) Begin(s Start, now time.Time) {
	w.on, w.gate.alone = true, s.Alone
	w.gate.begin(s.Consumer, s.AckFloor, s.Delivered, s.Pending, s.AckWait, now)
	w.Hold(now)
}

// told is what the routes were told to hold.
type told struct {
	mu      sync.Mutex
	version int // counts the changes; what was decided before the latest one is outdated
	hold    Hold
}

// Hold tells the routes what has to wait. Letting go takes the way of the messages, so that none of those that were
// waited for is overtaken while something is asked about it; until then what was held is held on.
func (w *Watch) Hold(now time.Time) {
	alone := !w.gate.shared
	above, until := w.gate.open(now)
	next := Hold{Above: above, Until: until}
	if alone && w.gate.shared {
		w.log.Info("another instance or program receives messages of this durable too; this instance does not wait for deliveries that went elsewhere")
	}
	t := &w.told
	t.mu.Lock()
	defer t.mu.Unlock()
	t.version++
	if t.hold.over(now) || !t.hold.Arrived && !until.Before(t.hold.Until) && above <= t.hold.Above {
		w.tell(next)
		return
	}
	meanwhile := Hold{Above: t.hold.Above, Arrived: true}
	if !until.IsZero() {
		meanwhile.Above = min(meanwhile.Above, above)
	}
	w.tell(meanwhile)
	version := t.version
	w.behind.Go(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if version == t.version {
			w.tell(next)
		}
	})
}

// tell is called with told locked.
func (w *Watch) tell(h Hold) {
	if h != w.told.hold {
		w.told.hold = h
		w.hold(h)
	}
}

// Delivered notes a delivery: its stream sequence, that of the durable, and how often the message was delivered. It returns true if messages may
// go now: Hold is to be called once this one is with its route.
func (w *Watch) Delivered(sequence, consumer, deliveries uint64, now time.Time) (mayGo bool) {
	if !w.on {
		return false
	}
	held := w.Missing()
	more, less := w.gate.delivered(sequence, consumer, deliveries, now)
	if !more {
		return less
	}
	if lost := w.gate.gaps[0]; !held {
		w.log.Warn("deliveries are missing: they were lost on their way, or other instances have them; "+
			"later messages of ordered routes wait until they are redelivered",
			"count", lost.missing, "above", lost.from, "until", lost.until)
	}
	w.Hold(now)
	return false
}

// MayHaveLost says that something happened that loses deliveries.
func (w *Watch) MayHaveLost(now time.Time) {
	if w.gate.mayHaveLost(now); w.Missing() {
		w.Hold(now)
	}
}

// Attend looks, once a second, whether the routes still have to wait.
func (w *Watch) Attend(now time.Time) {
	if w.Missing() {
		w.Hold(now)
	}
}

// Suspend says, before Attend, that nothing can come now: without a connection, or while what came before is being looked up. That time does not
// count.
func (w *Watch) Suspend(now time.Time) {
	if w.Missing() {
		w.gate.prolong(now.Add(2 * attendEvery))
	}
}

// Missing tells whether deliveries are missing.
func (w *Watch) Missing() bool { return len(w.gate.gaps) > 0 }

// Seen is how many gaps there were so far.
func (w *Watch) Seen() int { return w.gate.added }

// Top is the highest stream sequence that was delivered.
func (w *Watch) Top() uint64 { return w.gate.top }

// To is the highest stream sequence that may be missing. What was delivered after that is here, or was given back to wait.
func (w *Watch) To() uint64 { return w.gate.missingTo() }

// Coming is how many messages are sure to come that are waited for.
func (w *Watch) Coming(now time.Time) int { return w.gate.coming(now) }

// Fill says that nothing is missing any more.
func (w *Watch) Fill(now time.Time) {
	w.gate.fill()
	w.Hold(now)
}
