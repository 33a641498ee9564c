package consumer

import (
	"time"

	"github.com/relaymq/relay/internal/failpoint"
	"github.com/relaymq/relay/supervisor"
)

// A key that waits keeps what the stash has room for, and gives the rest back to come again later. As NAKs with a delay these
// stay outstanding, and once MaxAckPending are, the server delivers nothing more on the durable: one dead dependency with
// a backlog would stop all other keys. So they are put aside, into the retry stream, when they get many.

const (
	// asidePaths is how many messages of a route are put aside at once.
	asidePaths = 64
	// asideMost is how many may wait for that, above which the pull loops of the route do not ask for more: each is in
	// memory, and the server has them as well.
	asideMost = 4096
	// asideTold is after how many of them the log says so again.
	asideTold = 10_000
)

// shouldPutAside tells whether a message that is given back unstarted should leave its durable.
func (m *message) shouldPutAside(due time.Time) bool {
	return !due.IsZero() && m.suspect == nil && m.shouldPark(due)
}

// putAside parks a message that spent no attempt. Where that fails it is given back after all.
func (m *message) putAside(o supervisor.Outcome) {
	rt := m.route
	defer rt.asideShrank()
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
		rt.log.Warn("messages of keys that wait fill the durable; from an eighth of its window on they are parked",
			m.attrs("ack_pending", m.source.session.AckPending(), "due", o.Due)...)
	}
	m.done()
}

// asideFull tells whether too many wait to be put aside; the pull loops are woken when they are half as many.
func (rt *route) asideFull() bool {
	full := rt.aside.Len() > asideMost
	if full {
		rt.asideWas.Store(true)
	}
	return full
}

func (rt *route) asideShrank() {
	if rt.aside.Len() <= asideMost/2 && rt.asideWas.CompareAndSwap(true, false) {
		rt.more()
	}
}
