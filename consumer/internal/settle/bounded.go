package settle

import (
	"errors"
	"time"

	"github.com/relaymq/relay/consumer/internal/unstored"
)

// Somebody may give a durable a bound of deliveries while relay runs (max_deliver, or backoff, which comes with one). The server
// then drops a message that is given back once too often. Until that is changed back, a message leaves the durable for the
// retry stream, or it stays here with its lease. A drain lets go what the retry stream does not take.

var errBounded = errors.New("the durable has max_deliver or backoff set, so the server may drop a message that is given back")

// UnlessBounded gives the message back. On a bounded durable it parks the message, which may block, or keeps it to try again.
func (m *Unsettled) UnlessBounded(park func() bool, giveBack func()) {
	switch {
	case !m.Durable.Health.IsBounded():
		giveBack()
	case m.Delivery.Fenced():
		m.Delivery.Release()
	case m.mayPark() && park():
	default:
		m.Hold(time.Now().Add(unstored.Every), errBounded, func() { m.UnlessBounded(park, giveBack) })
	}
}

// ParkUnread parks a message of which nothing is known but what came with it.
func (m *Unsettled) ParkUnread() bool {
	if m.park(m.From(), time.Now(), m.Path.Room(), Timeout) != nil {
		return false
	}
	m.Path.Count.Parked.Add(1)
	m.Done()
	return true
}
