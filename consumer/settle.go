package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/failpoint"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/teeth"
	"github.com/relaymq/relay/supervisor"
)

// settleTimeout bounds one call to the server on the slow path. A time-out proves nothing.
const settleTimeout = 5 * time.Second

// failed logs a failure, and returns what is to be remembered of the message.
func (m *message) failed(o supervisor.Outcome) retry.Record {
	rec := retry.Record{
		Attempts: o.Attempts, FirstFailure: o.FirstFailure, LastFailure: time.Now(), Due: o.Due, LastError: errorText(o.Err),
		Crashes: m.crashes(),
	}
	if o.Aside {
		rec.Due = o.Own
	}
	m.route.log.Warn("attempt failed", m.attrs("attempt", o.Attempts, "delay", time.Until(o.Due).Round(time.Millisecond), "error", rec.LastError)...)
	return rec
}

// Remember stores the failure of a message that waits in the stash.
func (m *message) Remember(o supervisor.Outcome, stored func(ok bool)) {
	m.route.count.Kept.Add(1)
	m.toldBySettlement(o)
	m.route.slow.Go(func() {
		if m.suspect != nil {
			m.acquit()
		}
		rec := m.failed(o)
		rec.Kept = true
		m.recordKept(rec, stored)
	})
}

// recordKept tries to store the record of a message that stays until it is stored, or until somebody else may have the message.
func (m *message) recordKept(rec retry.Record, stored func(ok bool)) {
	failpoint.At("recording")
	err := m.record(rec)
	if err != nil && !errors.Is(err, retry.ErrOtherVersion) && !m.delivery.Fenced() && !m.source.pulls.IsDraining() &&
		m.route.held.Add(time.Now(), err, func() { m.recordKept(rec, stored) }) {
		return
	}
	if err == nil && m.suspect != nil {
		m.suspect.Record = rec // what is written when it runs alone again
	}
	failpoint.At("recorded")
	stored(err == nil)
}

// retry remembers the attempts of a message that failed, and has it come again: as a delayed NAK, or parked when the wait
// is long or delayed messages fill the durable.
func (m *message) retry(o supervisor.Outcome) {
	rt, rec := m.route, m.failed(o)
	if m.isOld(&rec) {
		rt.log.Info("an old delivery is acknowledged: a later copy of its message waits for a retry, or is a dead letter", m.attrs("attempts", rec.Attempts)...)
		m.done()
		m.gone(o)
		return
	}
	if m.shouldPark(o) && m.parkFailed(&rec) {
		m.gone(o)
		return
	}
	m.recordThen(rec, func() {
		failpoint.At("recorded")
		m.unlessBounded(func() bool { return m.parkFailed(&rec) }, func() {
			if m.delivery.Nak(o.Due) != nil {
				return // fenced: somebody else has it
			}
			failpoint.At("given back")
			rt.count.Naked.Add(1)
			if o.Aside {
				m.forgetBytes()
			}
			m.givenBack()
		})
	})
}

// isOld tells whether an old delivery has failed that came again because its ack was lost, while a copy of its message that has as many attempts
// waits elsewhere, or its message is dead. Given back, it would go on beside that from its own, lower count.
//
// It is asked after the attempt and not before: what comes again after the death of an instance has mostly not been settled, and then succeeds.
// So thousands of these cost no question, and a lost ack one start. What failed the time before, by its record, is not asked about either.
func (m *message) isOld(rec *retry.Record) bool {
	if !m.doubtful || teeth.Copies() {
		return false
	}
	ctx, cancel := context.WithTimeout(m.route.work, settleTimeout)
	defer cancel()
	origin, r := m.from(), m.route.relay
	origin.Attempts = rec.Attempts
	old, err := r.stores.Retries.Ahead(ctx, origin, m.own())
	if err == nil && !old {
		old, err = r.stores.Dead.Has(ctx, r.stores.DeadPrefix(m.route.cfg.DeadLetter.Prefix), origin)
	}
	rec.Copied = err != nil // asked again when it has failed the next time
	return old
}

// own is the number of the delivery among the copies of its message.
func (m *message) own() uint64 {
	if m.origin == nil || !m.source.due {
		return 0
	}
	return m.route.relay.stores.Retries.Own(m.delivery.Msg.Subject, m.delivery.Sequence, *m.origin)
}

func (m *message) park(origin retry.Origin, due time.Time, room retry.Room, patience time.Duration) error {
	failpoint.At("parking")
	ctx, cancel := context.WithTimeout(m.route.work, patience)
	defer cancel()
	err := m.route.relay.stores.Retries.Park(ctx, origin, m.header, m.data, due, room, m.own())
	m.route.count.tally.NotParked(err)
	if err == nil {
		failpoint.At("parked")
	}
	return err
}

// parkFailed parks a message that failed, with its attempts, and acknowledges it. It returns false when the retry stream has
// not taken it, and notes in the record when that is not certain.
func (m *message) parkFailed(rec *retry.Record) bool {
	rt := m.route
	origin := m.from()
	origin.Attempts, origin.Returns, origin.FirstFailure, origin.LastFailure, origin.LastError =
		rec.Attempts, m.Returns, rec.FirstFailure, rec.LastFailure, rec.LastError
	switch err := m.park(origin, rec.Due, rt.parkRoom(1), settleTimeout); {
	case err == nil:
		rt.count.Parked.Add(1)
		m.done()
		return true
	case !errors.Is(err, retry.ErrParkFull) && !errors.Is(err, nats.ErrMaxPayload):
		rec.Copied = true
		rt.relay.upkeep.NotStored()
		rt.aside.Fails(time.Now())
		if others, ok := rt.said.unparked.May(time.Now()); ok {
			rt.log.Warn("cannot park the message; it waits in its durable", m.attrs("others", others, "error", err)...)
		}
	}
	return false
}

// recordThen stores what is to be remembered of the message, and then does what gives it back. While nothing can be recorded the
// message is parked, or held.
func (m *message) recordThen(rec retry.Record, giveBack func()) {
	failpoint.At("recording")
	err := m.record(rec)
	switch {
	case err == nil:
		giveBack()
	case errors.Is(err, retry.ErrOtherVersion):
		m.newer(err)
	case m.delivery.Fenced():
		m.delivery.Release()
	case !m.parkUnrecorded(&rec, err):
		m.hold(time.Now(), err, func() { m.recordThen(rec, giveBack) })
	}
}

// record stores what is to be remembered of the message, before it is given back.
func (m *message) record(rec retry.Record) error {
	if teeth.Record() {
		return nil
	}
	ctx, cancel := context.WithTimeout(m.route.work, settleTimeout)
	defer cancel()
	err := m.source.records.Put(ctx, m.delivery.Sequence, m.delivery.Deliveries, rec)
	if err != nil {
		m.route.relay.upkeep.NotStored()
		return err
	}
	m.recorded = true
	return nil
}

// toLetters has the message dead-lettered. While dead letters are not taken and many wait for that, it comes again later instead.
func (m *message) toLetters(o supervisor.Outcome) {
	unlessFenced := func(do func()) func() {
		return func() {
			if m.delivery.Fenced() {
				m.delivery.Release()
				return
			}
			do()
		}
	}
	later := func() { m.postpone(o, m.entry(o)) }
	if !m.route.letters.Add(m.Size, unlessFenced(func() { m.deadLetter(o) }), unlessFenced(later)) {
		m.route.slow.Go(later)
	}
}

// deadLetter stores the message in the dead letters, and only then acknowledges it. If they do not take it, it stays where
// it is and is tried again.
func (m *message) deadLetter(o supervisor.Outcome) {
	rt := m.route
	e := m.entry(o)
	ctx, cancel := context.WithTimeout(rt.work, 2*settleTimeout)
	failpoint.At("dead-lettering")
	err := rt.relay.stores.Dead.Put(ctx, rt.relay.stores.DeadPrefix(rt.cfg.DeadLetter.Prefix), e)
	failpoint.At("dead-lettered")
	cancel()
	rt.letters.Note(err, time.Now())
	if err == nil {
		rt.log.Error("dead-lettered", m.attrs("reason", o.Reason, "attempts", o.Attempts, "error", e.LastError)...)
		rt.count.Dead(o.Reason)
		rt.reportDead(e)
		m.finish(o)
		return
	}
	rt.count.NotDead.Add(1)
	rt.relay.upkeep.NotStored()
	if others, ok := rt.said.undead.May(time.Now()); ok {
		rt.log.Error("cannot store the dead letter; the message stays in its stream; retrying", m.attrs("others", others, "error", err)...)
	}
	m.postpone(o, e)
}

// postpone has a message come again that is to be dead-lettered.
func (m *message) postpone(o supervisor.Outcome, e dlq.Entry) {
	due := time.Now().Add(m.route.letters.Delay())
	rec := retry.Record{
		Attempts: o.Attempts, FirstFailure: o.FirstFailure, LastFailure: e.LastFailure, Due: due,
		LastError: e.LastError, Dead: o.Reason, Crashes: m.crashes(),
	}
	if m.source.health.IsBounded() && !m.source.pulls.IsDraining() {
		m.hold(due, errBounded, func() { m.toLetters(o) })
		return
	}
	if err := m.record(rec); err != nil {
		m.hold(due, err, func() { m.toLetters(o) })
		return
	}
	// Parked, its verdict is forgotten, and it is started once more. That is better than its end.
	m.unlessBounded(func() bool { return m.parkFailed(&rec) }, func() { _ = m.delivery.Nak(due) })
}

// crashes is how often the message ended its process.
func (m *message) crashes() int {
	if m.suspect == nil {
		return 0
	}
	return m.suspect.Crashes
}

func (m *message) entry(o supervisor.Outcome) dlq.Entry {
	origin := m.from()
	origin.Attempts, origin.Returns, origin.Due, origin.FirstFailure = o.Attempts, 0, time.Time{}, o.FirstFailure
	switch rec, known := m.source.records.Cached(m.delivery.Sequence, m.delivery.Deliveries); {
	case o.Err != nil:
		origin.LastError, origin.LastFailure = errorText(o.Err), time.Now()
	case m.crashes() > 0:
		origin.LastError, origin.LastFailure = m.suspect.LastError, m.suspect.LastFailure
	case known:
		origin.LastError, origin.LastFailure = rec.LastError, rec.LastFailure
	}
	return dlq.Entry{
		Origin: origin, Header: m.header, Data: m.data, Reason: dlq.Reason(o.Reason), Stack: o.Stack,
		Instance: m.route.relay.cfg.Instance,
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	return text[:min(len(text), retry.MaxErrorLen)]
}
