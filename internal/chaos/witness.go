package chaos

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Silent is a relay that says that all is well while it stands still.
const Silent Class = "silent"

const (
	// stillFor is how long nothing may start, although messages wait, before an instance has to say so: the default of
	// ready.stalled, and what it takes to notice.
	stillFor = 75 * time.Second
	// muteFor is how long relay_ack_pending may be 0 though the server says otherwise: an instance asks every few seconds.
	muteFor = 30 * time.Second
)

// witness asks every instance of a run how it is, and compares that with what the ledgers and the server know.
type witness struct {
	w    *World
	stop chan struct{}
	done sync.WaitGroup

	mu     sync.Mutex
	relays []*Relay
}

// watch has the witness ask r, too. The harness is connected by then.
func (w *World) watch(r *Relay) {
	w.mu.Lock()
	if w.witness == nil {
		w.witness = &witness{w: w, stop: make(chan struct{})}
		w.witness.done.Go(w.witness.run)
	}
	w.mu.Unlock()
	w.witness.mu.Lock()
	w.witness.relays = append(w.witness.relays, r)
	w.witness.mu.Unlock()
}

// end ends the asking. A witness that was never called may be nil.
func (v *witness) end() {
	if v != nil {
		close(v.stop)
		v.done.Wait()
	}
}

// written is the size of all ledgers: it grows with each start of a handler.
func (w *World) written() (size int64) {
	books, _ := filepath.Glob(w.path("*.ledger"))
	for _, book := range books {
		if info, err := os.Stat(book); err == nil {
			size += info.Size()
		}
	}
	return size
}

func (v *witness) run() {
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	started, moved, spoke := int64(-1), time.Now(), time.Now()
	for {
		select {
		case <-v.stop:
			return
		case <-tick.C:
		}
		rest := v.w.rest()
		if n := v.w.written(); n != started || rest.pending == 0 || rest.err != nil {
			started, moved = n, time.Now()
		}
		v.mu.Lock()
		relays := slices.Clone(v.relays)
		v.mu.Unlock()
		ready, said := 0, 0.0
		for _, r := range relays {
			if ok, _ := r.Ready(); !ok {
				continue
			}
			ready++
			said += max(0, r.Metrics("relay_ack_pending"))
			if still := time.Since(moved); still > stillFor {
				v.w.Wrong(Silent, "%s is ready, though %d messages wait and nothing has started for %v", r.Name, rest.pending, still.Round(time.Second))
				return
			}
		}
		if said > 0 || ready == 0 || rest.err != nil || rest.ackPending < 20 {
			spoke = time.Now()
		}
		if mute := time.Since(spoke); mute > muteFor {
			v.w.Wrong(Silent, "relay_ack_pending is 0 for %v, and the server says %d", mute.Round(time.Second), rest.ackPending)
			return
		}
	}
}
