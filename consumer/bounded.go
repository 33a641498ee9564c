package consumer

import (
	"errors"
	"time"

	"github.com/relaymq/relay/consumer/internal/unstored"
	"github.com/relaymq/relay/supervisor"
)

// Somebody may give a durable a bound of deliveries while relay runs (max_deliver, or backoff, which comes with one). The server
// then drops a message that is given back once too often. Until that is changed back, a message leaves the durable for the
// retry stream, or it stays here with its lease. A drain lets go what the retry stream does not take.

var errBounded = errors.New("the durable has max_deliver or backoff set, so the server may drop a message that is given back")

// unlessBounded gives the message back. On a bounded durable it parks the message, which may block, or keeps it to try again.
func (m *message) unlessBounded(park func() bool, giveBack func()) {
	switch {
	case !m.source.health.IsBounded():
		giveBack()
	case m.delivery.Fenced():
		m.delivery.Release()
	case m.mayPark() && park():
	default:
		m.hold(time.Now().Add(unstored.Every), errBounded, func() { m.unlessBounded(park, giveBack) })
	}
}

// parkUnread parks a message of which nothing is known but what came with it.
func (m *message) parkUnread(elsewhere bool) bool {
	if elsewhere && len(m.data) == 0 {
		return false // its body has not come
	}
	if m.park(m.from(), time.Now(), m.route.parkRoom(1), settleTimeout) != nil {
		return false
	}
	m.route.count.Parked.Add(1)
	m.done()
	return true
}

// comeAgain gives back a message that spent no attempt, in one way or the other.
func (m *message) comeAgain(o supervisor.Outcome) {
	if m.shouldPutAside(o) {
		m.putAside(o)
		return
	}
	m.sendBack(o)
}
