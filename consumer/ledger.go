package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/relaymq/relay/consumer/internal/caller"
	"github.com/relaymq/relay/internal/away"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/supervisor"
)

// Everything that a route holds is counted in its ledger, from the arrival of a message until the server has confirmed its
// settlement: in the window, in the stash, in a handler, on one of the slow paths, or held because nothing can be stored. What is
// not in a handler has a bound that follows from the configuration,
//
//	stash.bytes + 16 MiB for the window + 16 MiB for what is being settled
//
// and 16 MiB for what waits for its caller, where callers may be asked. The pull loops of the route ask for no more than still fits.
// Handlers have concurrency messages more.

const (
	// settlingBytes and settlingMost are for messages that are being settled: those that wait to be recorded, parked or
	// dead-lettered, and those whose settlement the server has not confirmed.
	settlingBytes = asideMostBytes
	settlingMost  = asideMost + maxUnconfirmed
	// reservePatience is how long a body that is kept elsewhere waits for room before it is fetched all the same.
	reservePatience = 10 * time.Second
)

// mostHeld is the bound of what a route with this configuration holds.
func mostHeld(o supervisor.Options, asks bool) supervisor.Room {
	most := supervisor.Room{
		Messages: o.StashMessages + o.Concurrency + max(o.Concurrency, supervisor.MaxWindow) + settlingMost,
		Bytes:    o.StashBytes + supervisor.MaxWindowBytes + settlingBytes,
	}
	if asks {
		most.Messages, most.Bytes = most.Messages+maxAsking, most.Bytes+caller.MaxWaitingBytes
	}
	return most
}

// held is what the route holds, but for the bytes of what is in its handlers.
func (rt *route) holds() supervisor.Room {
	messages, bytes := rt.ledger.Held()
	return supervisor.Room{Messages: messages, Bytes: max(0, bytes-int(rt.handling.Load()))}
}

// within is as much of what the route could use as it may hold.
func (rt *route) within(free supervisor.Room) supervisor.Room {
	holds := rt.holds()
	if rt.cfg.asks() {
		free.Messages = min(free.Messages, rt.callers.gates.Room())
	}
	return supervisor.Room{
		Messages: min(free.Messages, max(0, rt.most.Load().Messages-holds.Messages)),
		Bytes:    min(free.Bytes, max(0, rt.most.Load().Bytes-holds.Bytes)),
	}
}

// full tells whether the route holds all it may. The pull loops are woken when it is less than seven eighths.
func (rt *route) full() bool {
	over := func() bool {
		holds := rt.holds()
		return holds.Messages >= rt.most.Load().Messages || holds.Bytes >= rt.most.Load().Bytes
	}
	if !over() {
		return false
	}
	rt.ledger.Await(rt.most.Load().Messages/8*7, rt.most.Load().Bytes/8*7)
	return over()
}

var errNoRoom = errors.New("the memory of the route is full")

// reserve counts a body that is kept elsewhere before it is fetched, and waits for room for it.
func (m *message) reserve(ctx context.Context) error {
	if m.reserved {
		return nil
	}
	rt, size := m.route, dlq.BodySize(m.delivery.Msg.Header)
	select {
	case rt.reserving <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-rt.reserving }()
	for began := time.Now(); rt.holds().Bytes+size > rt.most.Load().Bytes && time.Since(began) < reservePatience; {
		if m.delivery.Fenced() || m.source.pulls.IsDraining() || ctx.Err() != nil {
			return errNoRoom
		}
		away.Pause(ctx, 100*time.Millisecond)
	}
	m.reserved = true
	m.delivery.Weigh(size)
	return nil
}

// toLetters has the message dead-lettered. While dead letters are not taken and many wait for that, it comes again later
// instead: what cannot be dead-lettered must not keep out what can be handled.
func (m *message) toLetters(o supervisor.Outcome) {
	rt, size := m.route, int64(m.Size)
	if rt.lettersCrowded() {
		rt.slow.Go(func() { m.postpone(o, m.entry(o)) })
		return
	}
	rt.lettersBytes.Add(size)
	rt.letters.Go(func() {
		crowded := rt.lettersCrowded()
		rt.lettersBytes.Add(-size)
		switch {
		case m.delivery.Fenced():
			m.delivery.Release()
		case crowded:
			m.postpone(o, m.entry(o))
		default:
			m.deadLetter(o)
		}
	})
}

func (rt *route) lettersCrowded() bool {
	return (rt.letters.Len() > asideMost || rt.lettersBytes.Load() > settlingBytes/2) && rt.undeadInARow() > 0
}
