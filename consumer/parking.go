package consumer

import (
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/parking"
	"github.com/relaymq/relay/consumer/internal/unstored"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/supervisor"
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
func (m *message) wait(o supervisor.Outcome) parking.Wait {
	return parking.Wait{Durable: m.source.session, Due: o.Due, Aside: o.Aside, CalledBackFrom: m.route.relay.cfg.asideMostPending}
}

// shouldPark tells whether a message that failed should wait outside its durable. A NAK may be the end of a message when somebody has given the
// durable a bound of deliveries.
func (m *message) shouldPark(o supervisor.Outcome) bool {
	return m.mayPark() && (m.source.health.IsEdited() || m.wait(o).LeavesFailed(m.route.now().Retry.ParkAfter))
}

// mayPark is false for messages of ordered keys, those that may be another instance's by now, and those that would not be
// known any more.
func (m *message) mayPark() bool {
	return m.route.cfg.Order != supervisor.OrderKey && !m.delivery.Fenced() && m.crashes() == 0
}

// shouldPutAside tells whether a message that is given back without an attempt should leave its durable.
func (m *message) shouldPutAside(o supervisor.Outcome) bool {
	if m.source.health.IsBounded() {
		return m.mayPark()
	}
	if m.suspect != nil || !m.mayPark() {
		return false
	}
	var before time.Time
	if m.origin != nil {
		before = m.origin.Due
	}
	return m.wait(o).LeavesUnstarted(m.Size, o.Snoozed, before) && m.route.aside.MayTry(time.Now())
}

// putAside parks a message that spent no attempt. Where that fails it is given back after all.
func (m *message) putAside(o supervisor.Outcome) {
	unlessFenced := func(do func()) { // it may stand in the queue for too long: another instance may have it
		if m.delivery.Fenced() {
			m.delivery.Release()
			return
		}
		do()
	}
	m.route.aside.Add(m.Size, func() (works bool) {
		works = true
		unlessFenced(func() { works = m.parkUnstarted(o) })
		return works
	}, func() { unlessFenced(func() { m.sendBack(o) }) })
}

// parkUnstarted parks a message that spent no attempt, or gives it back. It returns false when the retry stream failed.
func (m *message) parkUnstarted(o supervisor.Outcome) bool {
	rt := m.route
	origin := m.from()
	origin.Attempts, origin.FirstFailure, origin.Returns = o.Attempts, o.FirstFailure, m.Returns+1
	if m.recorded {
		if rec, known := m.source.records.Cached(m.delivery.Sequence, m.delivery.Deliveries); known {
			origin.LastFailure, origin.LastError = rec.LastFailure, rec.LastError
		}
	}
	due := o.Due
	if due.IsZero() {
		due = time.Now()
	}
	switch err := m.park(origin, due, rt.parkRoom(asideShare), parking.Patience); {
	case err == nil:
		rt.aside.Works()
		if n := rt.count.Aside.Add(1); n%asideTold == 1 {
			rt.log.Warn("messages of keys that wait are parked, so that they do not fill the durable",
				m.attrs("ack_pending", m.source.session.AckPending(), "due", o.Due, "so_far", n)...)
		}
		m.done()
		m.gone(o)
	case errors.Is(err, retry.ErrParkFull), errors.Is(err, nats.ErrMaxPayload):
		m.sendBack(o)
	default:
		rt.relay.upkeep.NotStored()
		if rt.aside.Fails(time.Now()) {
			rt.log.Warn("cannot park messages of keys that wait; they stay in the durable, and may fill it",
				m.attrs("error", err)...)
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
func (m *message) sendBack(o supervisor.Outcome) {
	if m.source.health.IsBounded() {
		m.hold(time.Now().Add(unstored.Every), errBounded, func() { m.comeAgain(o) })
		return
	}
	if o.Aside || m.route.cfg.Order == supervisor.OrderKey {
		m.forgetBytes() // it is called back, and its bytes come with it
	}
	m.giveBack(o.Due)
}

// gone tells the group that a message that it has in mind is not in its durable any more.
func (m *message) gone(o supervisor.Outcome) {
	if o.Aside {
		m.route.group.Gone(&m.Message)
	}
}
