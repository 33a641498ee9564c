// Package identity notices that a durable may be another one of the same name: it, or its stream, was deleted and made again. The server says so on the
// pulls that are parked at that moment. And the numbers of deliveries tell: a server numbers what a durable delivers from 1 upwards, redeliveries too. A number
// that is not above the one before is of another durable, or of one whose server was killed and forgot some deliveries, or of two leaders whose deliveries came
// in another order.
//
// Only the server knows which. Until it has said so, nothing that arrives is looked at and nothing is settled: what a session takes from another durable is handled twice,
// or too late, and what it settles there is a different message with the same sequence.
package identity

import "github.com/nats-io/nats.go"

// Watch is of one session of a durable. Its methods are for the goroutine that receives.
type Watch struct {
	last    uint64    // the number of the latest delivery
	doubted bool      // the server has to say which durable this is
	asked   bool      // and is asked that
	held    *nats.Msg // the delivery that raised the doubt, if one did
}

// Begin is called with the number of the last delivery of the durable that is opened. If there was none, the first one raises doubt: it may be the first
// one of another durable.
func (w *Watch) Begin(last uint64) { *w = Watch{last: max(1, last)} }

// Delivered takes note of a delivery and its number. If that raises doubt it returns true, and the delivery is to be looked at when Settled returns it.
func (w *Watch) Delivered(m *nats.Msg, number uint64) (doubt bool) {
	if number <= w.last {
		w.doubted, w.held = true, m
		return true
	}
	w.last = number
	return false
}

// Deleted says that the server has deleted the durable.
func (w *Watch) Deleted() { w.doubted = true }

// IsDoubted tells whether nothing that arrives is to be looked at.
func (w *Watch) IsDoubted() bool { return w.doubted }

// Asks tells, once in each doubt, that the server is to be asked now. What it was asked before does not count.
func (w *Watch) Asks() bool {
	yes := w.doubted && !w.asked
	w.asked = w.asked || yes
	return yes
}

// Answered is called when a question was answered, or could not be. If it was the one of this doubt, the doubt is over; held is then the delivery that raised it,
// if one did, and the numbers begin with it.
func (w *Watch) Answered() (over bool, held *nats.Msg) {
	if over = w.asked; over {
		if held = w.held; held != nil {
			w.last = 0
		}
		w.doubted, w.asked, w.held = false, false, nil
	}
	return over, held
}
