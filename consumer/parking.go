package consumer

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/unstored"
	"github.com/relaymq/relay/internal/pool"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/supervisor"
)

// A key that waits keeps what the stash has room for, and gives the rest back to come again later. As NAKs with a delay these
// stay outstanding, and once MaxAckPending are, the server delivers nothing more on the durable: one dead dependency with
// a backlog would stop all other keys. Long before, each thousand of them costs the others half a percent of a full rate.
// So they are put aside, into the retry stream, when they get many.

const (
	// asidePaths is how many messages of a route are put aside at once.
	asidePaths = 64
	// asidePatience bounds one of them, and asideRest is how long none is after one that the retry stream did not take.
	asidePatience = 2 * time.Second
	asideRest     = 10 * time.Second
	// asideMost is how many may wait for that, and asideMostBytes their size, above which the pull loops of the route do not
	// ask for more: each is in memory, and the server has them as well.
	asideMost      = 4096
	asideMostBytes = 16 << 20
	// asideFrom is how many deliveries of the durable may be outstanding before small messages are put aside. Large ones
	// stay for longer: the server has to write them once more each time.
	asideFrom  = 1024
	asideSmall = 4 << 10
	// asideMostPending is how many may be outstanding before messages leave the durable that would be called back from there.
	asideMostPending = maxAckPending / 4 * 3
	// asideShare of park_max, and of parked, is for them: each costs the server up to 1 KiB of memory, and none while it is in its stream.
	asideShare = 10
	// asideTold is after how many of them the log says so again.
	asideTold = 100_000
)

// aside are the messages of a route that are on their way to the retry stream without an attempt.
type aside struct {
	paths    *pool.Pool
	bytes    atomic.Int64
	wasFull  atomic.Bool   // a pull loop waits
	failures atomic.Uint64 // of the retry stream
	again    atomic.Int64  // after one: when the next message may try, in Unix nanoseconds; 0 after a success
}

func newAside() aside { return aside{paths: pool.New(asidePaths)} }

// mayTry is true but after a failure: then one message tries, every asideRest.
func (a *aside) mayTry(now time.Time) bool {
	at := a.again.Load()
	return at == 0 || now.UnixNano() >= at && a.again.CompareAndSwap(at, now.Add(asideRest).UnixNano())
}

// full tells whether too many wait; the pull loops are woken when they are half as many.
func (a *aside) full() bool {
	if !a.above(1) {
		return false
	}
	a.wasFull.Store(true)
	return a.above(1) // else nobody may be left who would wake them
}

// above tells whether more than that part of what may wait does.
func (a *aside) above(part int) bool {
	return a.paths.Len() > asideMost/part || a.bytes.Load() > int64(asideMostBytes/part)
}

// shouldPutAside tells whether a message that is given back without an attempt should leave its durable. It does not go by
// park_after: it is the same wait again each time.
func (m *message) shouldPutAside(o supervisor.Outcome) bool {
	if m.source.health.IsBounded() {
		return m.mayPark()
	}
	if time.Until(o.Due) <= soon || m.suspect != nil || !m.mayPark() {
		return false
	}
	if m.origin != nil && time.Until(m.origin.Due) > soon {
		return false // the server's clock is ahead of ours: parked again, it would come at once
	}
	room := maxAckPending / 8
	switch {
	case o.Aside:
		room = m.route.relay.cfg.asideMostPending // from the durable only they can be called back
	case m.Size <= asideSmall && !o.Snoozed:
		room = asideFrom
	}
	return m.source.session.AckPending() > room && m.route.aside.mayTry(time.Now())
}

// putAside parks a message that spent no attempt. Where that fails it is given back after all.
func (m *message) putAside(o supervisor.Outcome) {
	rt, a, size := m.route, &m.route.aside, int64(m.Size)
	failures := a.failures.Load()
	a.bytes.Add(size)
	a.paths.Go(func() {
		m.parkUnstarted(o, failures)
		a.bytes.Add(-size)
		if a.wasFull.Load() && !a.above(2) && a.wasFull.CompareAndSwap(true, false) {
			rt.more()
		}
	})
}

// parkUnstarted gives the message back at once if another one failed since it was queued, when so many had failed.
func (m *message) parkUnstarted(o supervisor.Outcome, failures uint64) {
	rt, a := m.route, &m.route.aside
	switch {
	case m.delivery.Fenced(): // it stood in the queue for too long: another instance may have it
		m.delivery.Release()
		return
	case a.failures.Load() != failures:
		m.sendBack(o)
		return
	}
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
	switch err := m.park(origin, due, rt.parkRoom(asideShare), asidePatience); {
	case err == nil:
		a.again.Store(0)
		if n := rt.count.Aside.Add(1); n%asideTold == 1 {
			rt.log.Warn("messages of keys that wait are parked, so that they do not fill the durable",
				m.attrs("ack_pending", m.source.session.AckPending(), "due", o.Due, "so_far", n)...)
		}
		m.done()
		m.gone(o)
	case errors.Is(err, retry.ErrParkFull), errors.Is(err, nats.ErrMaxPayload):
		m.sendBack(o)
	default:
		a.failures.Add(1)
		rt.relay.notStored()
		if a.again.Swap(time.Now().Add(asideRest).UnixNano()) == 0 {
			rt.log.Warn("cannot park messages of keys that wait; they stay in the durable, and may fill it",
				m.attrs("error", err)...)
		}
		// The parked copy may be stored although the confirmation failed. If the message comes again and must still wait, its new copy
		// replaces that one.
		o.Due = time.Now().Add(asideRest)
		m.sendBack(o)
	}
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
