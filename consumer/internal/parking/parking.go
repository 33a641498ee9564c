// Package parking says which messages that wait leave their durable for the retry stream, and paces those that leave it without an attempt.
//
// A key that waits keeps what the stash has room for, and gives the rest back to come again later. As NAKs with a delay these
// stay outstanding, and once MaxAckPending are, the server delivers nothing more on the durable: one dead dependency with
// a backlog would stop all other keys. Long before, each thousand of them costs the others half a percent of a full rate.
// So they are put aside, into the retry stream, when they get many.
package parking

import (
	"time"

	"github.com/relaymq/relay/internal/provision"
)

const (
	// soon is a wait that is better spent in the durable: parking costs the server several times as much as a delayed NAK,
	// and one that parks thousands a second falls behind. Longer waits leave the durable earlier, because the server looks
	// through all that is outstanding to find what is due, and begins anew when an ack arrives meanwhile (consumer.go,
	// checkPending). Acks are kept back when it looks after a burst of NAKs, but not otherwise, and not those of other instances.
	soon = 5 * time.Second
	// unstartedFrom is how many deliveries of the durable may be outstanding before small messages are put aside. Large ones
	// stay for longer: the server has to write them once more each time.
	unstartedFrom = 1024
	small         = 4 << 10
	// CalledBackFrom is how many may be outstanding before messages leave the durable that would be called back from there.
	CalledBackFrom = provision.MaxAckPending / 4 * 3
)

// Wait is a message that waits, and its durable.
type Wait struct {
	// Durable tells how many of its deliveries are outstanding.
	Durable interface{ AckPending() int }
	Due     time.Time
	// Aside: it is called back when its key works again, which is possible from the durable only. It leaves when more than CalledBackFrom are
	// outstanding.
	Aside          bool
	CalledBackFrom int
	// Snoozed: the handler put it off, and no other message of its key waits for that.
	Snoozed bool
}

// LeavesFailed tells whether a message that failed should leave its durable: it waits for longer than parkAfter, or many are outstanding.
func (w Wait) LeavesFailed(parkAfter time.Duration) bool {
	wait, from := time.Until(w.Due), provision.MaxAckPending/8
	switch {
	case w.Aside:
		from = w.CalledBackFrom
	case wait > parkAfter:
		return true
	case wait <= soon:
		from = provision.MaxAckPending / 2
	}
	return w.Durable.AckPending() > from
}

// LeavesUnstarted tells whether a message of that size that is given back without an attempt should leave its durable. It does not go by park_after:
// it is the same wait again each time. Before is when it was due the last time, if it comes from the retry stream.
func (w Wait) LeavesUnstarted(size int, before time.Time) bool {
	if time.Until(w.Due) <= soon {
		return false
	}
	if time.Until(before) > soon {
		return false // the server's clock is ahead of ours: parked again, it would come at once
	}
	from := provision.MaxAckPending / 8
	switch {
	case w.Aside:
		from = w.CalledBackFrom
	case size <= small && !w.Snoozed:
		from = unstartedFrom
	}
	return w.Durable.AckPending() > from
}
