package chaos

import (
	"sync"
	"time"
)

// Watch looks for stalls beside a run: messages wait, NATS answers, an instance lives, and no handler starts or ends.
type Watch struct {
	w       *World
	stop    chan struct{}
	wg      sync.WaitGroup
	mu      sync.Mutex
	longest time.Duration
	blind   bool // the nemesis has taken something away that relay cannot do without
}

// StallLimit is I-12: longer is a stall.
const StallLimit = 30 * time.Second

// NewWatch begins to look; End reports.
func NewWatch(w *World) *Watch {
	v := &Watch{w: w, stop: make(chan struct{})}
	v.wg.Go(v.run)
	w.T.Cleanup(func() { v.End() })
	return v
}

// Blind says that nothing can be expected just now.
func (v *Watch) Blind() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.blind = true
}

// See ends Blind.
func (v *Watch) See() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.blind = false
}

func (v *Watch) run() {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	var size int64
	since := time.Now()
	for {
		select {
		case <-v.stop:
			return
		case <-tick.C:
		}
		r := v.w.rest()
		now := v.w.ledgers.Size()
		v.mu.Lock()
		switch {
		case r.err != nil, r.pending == 0, v.blind, now != size:
			size, since = now, time.Now()
		default:
			v.longest = max(v.longest, time.Since(since))
		}
		v.mu.Unlock()
	}
}

// End stops looking, and fails the test if there was a stall. It returns the longest standstill.
func (v *Watch) End() time.Duration {
	v.mu.Lock()
	select {
	case <-v.stop:
	default:
		close(v.stop)
	}
	v.mu.Unlock()
	v.wg.Wait()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.longest > StallLimit {
		v.w.T.Errorf("%s: nothing happened for %v, although messages waited and NATS was there", Stalled, v.longest)
		v.longest = 0 // said
	}
	return v.longest
}
