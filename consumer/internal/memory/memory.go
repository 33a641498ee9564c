// Package memory counts what a route holds in memory, and bounds it. A message counts from its arrival until the server has confirmed its
// settlement: in the window, in the stash, in a handler, on one of the slow paths, or held because nothing can be stored. The bytes of what is
// in a handler have no bound of their own: the route's concurrency bounds them.
package memory

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/internal/inhand"
	"github.com/relaymq/relay/internal/supervise"
	"github.com/relaymq/relay/internal/transient"
)

// patience is how long a body waits for room before it is fetched all the same.
const patience = 10 * time.Second

// ErrNoRoom is returned by Reserve when the message is given up before there is room for its body.
var ErrNoRoom = errors.New("the memory of the route is full")

// Account is that of one route. Its methods are for all goroutines.
type Account struct {
	InHand   *inhand.Count // counts the deliveries that have it
	handling atomic.Int64
	most     atomic.Pointer[supervise.Room]
	turn     chan struct{} // held by whoever waits for room
}

// New makes an account with that bound. More is called when there is room again after Full said that there was none. It must not block.
func New(most supervise.Room, more func()) *Account {
	a := &Account{InHand: inhand.NewCount(more), turn: make(chan struct{}, 1)}
	a.SetMost(most)
	return a
}

// SetMost changes the bound.
func (a *Account) SetMost(most supervise.Room) { a.most.Store(&most) }

// Most is the bound.
func (a *Account) Most() supervise.Room { return *a.most.Load() }

// Handling adds to the bytes of what is in handlers. They do not count as held.
func (a *Account) Handling(bytes int) { a.handling.Add(int64(bytes)) }

// Holds is what is held now, but for the bytes of what is in handlers.
func (a *Account) Holds() supervise.Room {
	messages, bytes := a.InHand.Held()
	return supervise.Room{Messages: messages, Bytes: max(0, bytes-int(a.handling.Load()))}
}

// Within is as much of that room as may be used without passing the bound.
func (a *Account) Within(room supervise.Room) supervise.Room {
	holds, most := a.Holds(), a.most.Load()
	return supervise.Room{
		Messages: min(room.Messages, max(0, most.Messages-holds.Messages)),
		Bytes:    min(room.Bytes, max(0, most.Bytes-holds.Bytes)),
	}
}

// Full tells whether the bound is reached. Then more is called once less than seven eighths are held.
func (a *Account) Full() bool {
	over := func() bool {
		holds, most := a.Holds(), a.most.Load()
		return holds.Messages >= most.Messages || holds.Bytes >= most.Bytes
	}
	if !over() {
		return false
	}
	most := a.most.Load()
	a.InHand.Await(most.Messages/8*7, most.Bytes/8*7)
	return over() // else nobody may be left who would call more
}

// Reserve counts so many bytes more for a delivery of the account, before its body is fetched. While there is no room it blocks: for 10 s, until
// ctx is done, or until the message is given up. One caller waits at a time, and the others wait for it.
func (a *Account) Reserve(ctx context.Context, d *ack.Delivery, bytes int, givenUp func() bool) error {
	select {
	case a.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-a.turn }()
	for began := time.Now(); a.Holds().Bytes+bytes > a.most.Load().Bytes && time.Since(began) < patience; {
		if ctx.Err() != nil || givenUp() {
			return ErrNoRoom
		}
		transient.Pause(ctx, 100*time.Millisecond)
	}
	d.Weigh(bytes)
	return nil
}
