package settle

import (
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/parking"
	"github.com/relaymq/relay/consumer/internal/unstored"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/supervise"
)

// Messages that wait leave their durable for the retry stream when they get many; see package parking.

const (
	// asideShare of park_max, and of parked, is for messages without an attempt: each costs the server up to 1 KiB of memory, and none while it is in
	// its stream.
	asideShare = 10
	// asideTold is after how many of them the log says so again.
	asideTold = 100_000
)

// wait is what package parking has to know of the message.
func (m *Unsettled) wait(o supervise.Outcome) parking.Wait {
	return parking.Wait{Durable: m.Durable.Session, Due: o.Due, Aside: o.Aside, CalledBackFrom: m.Path.CalledBackFrom, Snoozed: o.Snoozed}
}

// shouldPark tells whether a message that failed should wait outside its durable. A NAK may be the end of a message when somebody has given the
// durable a bound of deliveries.
func (m *Unsettled) shouldPark(o supervise.Outcome) bool {
	return m.mayPark() && (m.Durable.Health.IsEdited() || m.wait(o).LeavesFailed(m.Path.Policy().ParkAfter))
}

// mayPark is false for messages of ordered keys, those that may be another instance's by now, and those that would not be
// known any more.
func (m *Unsettled) mayPark() bool {
	return !m.Path.Ordered && !m.Delivery.Fenced() && m.crashes() == 0
}

// comeAgain gives back a message that spent no attempt, in one way or the other.
func (m *Unsettled) comeAgain(o supervise.Outcome) {
	if m.shouldPutAside(o) {
		m.putAside(o)
		return
	}
	m.sendBack(o)
}

// shouldPutAside tells whether a message that is given back without an attempt should leave its durable.
func (m *Unsettled) shouldPutAside(o supervise.Outcome) bool {
	if m.Durable.Health.IsBounded() {
		return m.mayPark()
	}
	if m.Suspect != nil || !m.mayPark() {
		return false
	}
	var before time.Time
	if m.Origin != nil {
		before = m.Origin.Due
	}
	return m.wait(o).LeavesUnstarted(m.Size, before) && m.Path.aside.MayTry(time.Now())
}

// putAside parks a message that spent no attempt. Where that fails it is given back after all.
func (m *Unsettled) putAside(o supervise.Outcome) {
	// It may stand in the queue for too long: another instance may have it.
	m.Path.aside.Add(m.Size, func() (works bool) {
		works = true
		m.unlessFenced(func() { works = m.parkUnstarted(o) })
		return works
	}, func() { m.unlessFenced(func() { m.sendBack(o) }) })
}

// parkUnstarted parks a message that spent no attempt, or gives it back. It returns false when the retry stream failed.
func (m *Unsettled) parkUnstarted(o supervise.Outcome) bool {
	p := m.Path
	origin := m.From()
	origin.Attempts, origin.FirstFailure, origin.Returns = o.Attempts, o.FirstFailure, m.Returns+1
	if m.Recorded {
		if rec, known := m.Durable.Records.Cached(m.Delivery.Sequence, m.Delivery.Deliveries); known {
			origin.LastFailure, origin.LastError = rec.LastFailure, rec.LastError
		}
	}
	due := o.Due
	if due.IsZero() {
		due = time.Now()
	}
	switch err := m.park(origin, due, p.share(asideShare), parking.Patience); {
	case err == nil:
		p.aside.Works()
		if n := p.Count.Aside.Add(1); n%asideTold == 1 {
			p.Log.Warn("messages of keys that wait are parked, so that they do not fill the durable",
				m.Attrs("ack_pending", m.Durable.Session.AckPending(), "due", o.Due, "so_far", n)...)
		}
		m.Done()
		m.gone(o)
	case errors.Is(err, retry.ErrParkFull), errors.Is(err, nats.ErrMaxPayload):
		m.sendBack(o)
	default:
		p.NotStored()
		if p.aside.Fails(time.Now()) {
			p.Log.Warn("cannot park messages of keys that wait; they stay in the durable, and may fill it",
				m.Attrs("error", err)...)
		}
		// The parked copy may be stored although the confirmation failed. If the message comes again and must still wait, its new copy
		// replaces that one.
		o.Due = time.Now().Add(parking.Rest)
		m.sendBack(o)
		return false
	}
	return true
}

// sendBack gives the message back to its durable.
func (m *Unsettled) sendBack(o supervise.Outcome) {
	if m.Durable.Health.IsBounded() {
		m.Hold(time.Now().Add(unstored.Every), errBounded, func() { m.comeAgain(o) })
		return
	}
	m.giveBack(o.Due)
}

// gone tells the group that a message that it has in mind is not in its durable any more.
func (m *Unsettled) gone(o supervise.Outcome) {
	if o.Aside {
		m.Path.Gone(&m.Message)
	}
}
