package consumer

import (
	"context"
	"sync"
	"time"

	"github.com/relaymq/relay/internal/beat"
	"github.com/relaymq/relay/internal/retry"
)

// The outcome of a message must be stored before relay gives the message back. While the server does not store it, the message stays
// here, the session extends its lease, and relay tries again to store the outcome. Such messages wait in a list and not on the slow
// paths, where they would stand in the way of others: a dead letter needs no bucket of attempts, and a parked message
// carries its attempts itself.

// heldEvery is how often it is tried again.
const heldEvery = time.Second

// held are the messages of a route whose outcome cannot be stored for now.
type held struct {
	mu     sync.Mutex
	list   []heldMessage
	closed bool // the drain is through with the list
	parked int  // failures that were parked because they could not be recorded, since the log said so
	said   time.Time
	err    error // the latest reason
}

type heldMessage struct {
	at  time.Time // not before then
	try func()    // settles the message, or holds it again
}

// hold keeps the message until then, to try again. While its route drains, or when another instance may have it, it is let go:
// JetStream delivers it again.
func (m *message) hold(at time.Time, why error, try func()) {
	h := &m.route.held
	if m.delivery.Fenced() || m.source.arrivals.IsDraining() || !h.add(heldMessage{at, try}, why) {
		m.delivery.Release()
	}
}

func (h *held) add(m heldMessage, why error) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.list, h.err = append(h.list, m), why
	return true
}

// take removes those whose time has come from the list.
func (h *held) take(now time.Time) (due []func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	rest := h.list[:0]
	for _, m := range h.list {
		if m.at.After(now) {
			rest = append(rest, m)
		} else {
			due = append(due, m.try)
		}
	}
	clear(h.list[len(rest):])
	h.list = rest
	return due
}

// tryHeld tries again to store the outcomes of held messages, until ctx is done.
func (r *Relay) tryHeld(ctx context.Context) {
	tick := beat.NewTicker(heldEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			tick.Next()
			for _, rt := range r.all() {
				rt.sayHeld(now)
				rt.forgetNewer(now)
				for _, try := range rt.held.take(now) {
					rt.slow.Go(try)
				}
			}
		}
	}
}

// endHeld tries all of them a last time: what cannot be stored then is let go.
func (rt *route) endHeld() {
	h := &rt.held
	h.mu.Lock()
	list := h.list
	h.list, h.closed = nil, true
	h.mu.Unlock()
	for _, m := range list {
		rt.slow.Go(m.try)
	}
}

// sayHeld has the log say, once a minute, how many are held.
func (rt *route) sayHeld(now time.Time) {
	h := &rt.held
	h.mu.Lock()
	n, parked, err := len(h.list), h.parked, h.err
	quiet := n+parked == 0 || now.Sub(h.said) < time.Minute
	if !quiet {
		h.parked, h.said = 0, now
	}
	h.mu.Unlock()
	if !quiet {
		rt.log.Error("cannot store the outcome of messages; they are held in memory or parked; retrying",
			"held", n, "parked", parked, "error", err)
	}
}

// parkUnrecorded parks a message that failed because its attempt cannot be recorded: a parked one carries its attempts in its
// headers. It returns false when the message must stay here.
func (m *message) parkUnrecorded(rec *retry.Record, why error) bool {
	rt := m.route
	if !m.mayPark() || !rt.aside.mayTry(time.Now()) || !m.parkFailed(rec) {
		return false
	}
	rt.aside.again.Store(0)
	rt.held.mu.Lock()
	rt.held.parked++
	rt.held.err = why
	rt.held.mu.Unlock()
	return true
}
