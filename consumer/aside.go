package consumer

import (
	"time"

	"github.com/relaymq/relay/internal/failpoint"
	"github.com/relaymq/relay/supervisor"
)

// A key that waits keeps what the stash has room for, and gives the rest back to come again later. As NAKs with a delay these
// stay outstanding, and once MaxAckPending are, the server delivers nothing more on the durable: one dead dependency with
// a backlog would stop all other keys. Long before, each thousand of them costs the others half a percent of a full rate.
// So they are put aside, into the retry stream, when they get many.

const (
	// asidePaths is how many messages of a route are put aside at once.
	asidePaths = 64
	// asideMost is how many may wait for that, and asideMostBytes their size, above which the pull loops of the route do not
	// ask for more: each is in memory, and the server has them as well.
	asideMost      = 4096
	asideMostBytes = 16 << 20
	// asideFrom is how many deliveries of the durable may be outstanding before small messages are put aside. Large ones
	// stay for longer: the server has to write them once more each time.
	asideFrom  = 1024
	asideSmall = 4 << 10
	// asideTold is after how many of them the log says so again.
	asideTold = 10_000
)

// shouldPutAside tells whether a message that is given back unstarted should leave its durable. It does not go by park_after:
// it is the same wait again each time.
func (m *message) shouldPutAside(o supervisor.Outcome) bool {
	if o.Due.IsZero() || m.suspect != nil || !m.mayPark() {
		return false
	}
	room := maxAckPending / 8
	switch {
	case time.Until(o.Due) <= soon, o.Suspended: // these can be called back, from their durable only
		room = maxAckPending / 2
	case m.Size <= asideSmall:
		room = asideFrom
	}
	return m.source.session.AckPending() > room
}

// putAside parks a message that spent no attempt. Where that fails it is given back after all.
func (m *message) putAside(o supervisor.Outcome) {
	rt, size := m.route, int64(m.Size)
	rt.asideBytes.Add(size)
	rt.aside.Go(func() {
		m.parkUnstarted(o)
		rt.asideBytes.Add(-size)
		if rt.asideWasFull.Load() && !rt.asideAbove(2) && rt.asideWasFull.CompareAndSwap(true, false) {
			rt.more()
		}
	})
}

func (m *message) parkUnstarted(o supervisor.Outcome) {
	rt := m.route
	origin := m.from()
	origin.Attempts, origin.FirstFailure, origin.Returns = o.Attempts, o.FirstFailure, m.Returns+1
	if m.recorded {
		if rec, known := m.source.records.Cached(m.delivery.Sequence, m.delivery.Deliveries); known {
			origin.LastFailure, origin.LastError = rec.LastFailure, rec.LastError
		}
	}
	failpoint.At("parking")
	if err := m.park(origin, o.Due); err != nil {
		rt.log.Debug("message not put aside; it waits in its consumer", m.attrs("error", err)...)
		if m.giveBack(o.Due); o.Suspended {
			rt.sentAway(m)
		}
		return
	}
	failpoint.At("parked")
	if rt.count.aside.Add(1)%asideTold == 1 {
		rt.log.Warn("messages of keys that wait are parked, lest they fill the durable",
			m.attrs("ack_pending", m.source.session.AckPending(), "due", o.Due)...)
	}
	m.done()
}

// asideFull tells whether too many wait to be put aside; the pull loops are woken when they are half as many.
func (rt *route) asideFull() bool {
	if !rt.asideAbove(1) {
		return false
	}
	rt.asideWasFull.Store(true)
	return rt.asideAbove(1) // else nobody may be left who would wake them
}

// asideAbove tells whether more than that part of what may wait does.
func (rt *route) asideAbove(part int) bool {
	return rt.aside.Len() > asideMost/part || rt.asideBytes.Load() > int64(asideMostBytes/part)
}
