package settle

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/failpoint"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/supervise"
	"github.com/relaymq/relay/internal/teeth"
)

// failed logs a failure, and returns what is to be remembered of the message.
func (m *Unsettled) failed(o supervise.Outcome) retry.Record {
	rec := retry.Record{
		Attempts: o.Attempts, FirstFailure: o.FirstFailure, LastFailure: time.Now(), Due: o.Due, LastError: ErrorText(o.Err),
		Crashes: m.crashes(),
	}
	if o.Aside {
		rec.Due = o.Own
	}
	m.Path.Log.Warn("attempt failed", m.Attrs("attempt", o.Attempts, "delay", time.Until(o.Due).Round(time.Millisecond), "error", rec.LastError)...)
	return rec
}

// Remember stores the failure of a message that waits in the stash.
func (m *Unsettled) Remember(o supervise.Outcome, stored func(ok bool)) {
	m.Path.Count.Kept.Add(1)
	m.Path.slow.Go(func() {
		if m.Suspect != nil {
			m.Acquit()
		}
		rec := m.failed(o)
		rec.Kept = true
		m.recordKept(rec, stored)
	})
}

// recordKept tries to store the record of a message that stays until it is stored, or until somebody else may have the message.
func (m *Unsettled) recordKept(rec retry.Record, stored func(ok bool)) {
	failpoint.At("recording")
	err := m.record(rec)
	if err != nil && !errors.Is(err, retry.ErrOtherVersion) && !m.Delivery.Fenced() && !m.Durable.Draining() &&
		m.Path.held.Add(time.Now(), err, func() { m.recordKept(rec, stored) }) {
		return
	}
	if err == nil && m.Suspect != nil {
		m.Suspect.Record = rec // what is written when it runs alone again
	}
	failpoint.At("recorded")
	stored(err == nil)
}

// retry remembers the attempts of a message that failed, and has it come again: as a delayed NAK, or parked when the wait
// is long or delayed messages fill the durable.
func (m *Unsettled) retry(o supervise.Outcome) {
	p, rec := m.Path, m.failed(o)
	if m.isOld(&rec) {
		p.Log.Info("an old delivery is acknowledged: a later copy of its message waits for a retry, or is a dead letter", m.Attrs("attempts", rec.Attempts)...)
		m.Done()
		m.gone(o)
		return
	}
	if m.shouldPark(o) && m.parkFailed(&rec) {
		m.gone(o)
		return
	}
	m.recordThen(rec, func() {
		failpoint.At("recorded")
		m.UnlessBounded(func() bool { return m.parkFailed(&rec) }, func() {
			if m.nak(o.Due) != nil {
				return // fenced: somebody else has it
			}
			failpoint.At("given back")
			p.Count.Naked.Add(1)
		})
	})
}

// isOld tells whether an old delivery has failed that came again because its ack was lost, while a copy of its message that has as many attempts
// waits elsewhere, or its message is dead. Given back, it would go on beside that from its own, lower count.
//
// It is asked after the attempt and not before: what comes again after the death of an instance has mostly not been settled, and then succeeds.
// So thousands of these cost no question, and a lost ack one start. What failed the time before, by its record, is not asked about either.
func (m *Unsettled) isOld(rec *retry.Record) bool {
	if !m.Doubtful || teeth.Copies() {
		return false
	}
	ctx, cancel := context.WithTimeout(m.Path.Work, Timeout)
	defer cancel()
	origin, own := m.From(), m.Path.Stores
	origin.Attempts = rec.Attempts
	old, err := own.Retries.Ahead(ctx, origin, m.own())
	if err == nil && !old {
		old, err = own.Dead.Has(ctx, m.Path.LettersPrefix, origin)
	}
	rec.Copied = err != nil // asked again when it has failed the next time
	return old
}

// own is the number of the delivery among the copies of its message.
func (m *Unsettled) own() uint64 {
	if m.Origin == nil || !m.Durable.Due {
		return 0
	}
	return m.Path.Stores.Retries.Own(m.Delivery.Msg.Subject, m.Delivery.Sequence, *m.Origin)
}

func (m *Unsettled) park(origin retry.Origin, due time.Time, room retry.Room, patience time.Duration) error {
	failpoint.At("parking")
	ctx, cancel := context.WithTimeout(m.Path.Work, patience)
	defer cancel()
	err := m.Path.Stores.Retries.Park(ctx, origin, m.Header, m.Data, due, room, m.own())
	m.Path.Tally.NotParked(err)
	if err == nil {
		failpoint.At("parked")
	}
	return err
}

// parkFailed parks a message that failed, with its attempts, and acknowledges it. It returns false when the retry stream has
// not taken it, and notes in the record when that is not certain.
func (m *Unsettled) parkFailed(rec *retry.Record) bool {
	p := m.Path
	origin := m.From()
	origin.Attempts, origin.Returns, origin.FirstFailure, origin.LastFailure, origin.LastError =
		rec.Attempts, m.Returns, rec.FirstFailure, rec.LastFailure, rec.LastError
	switch err := m.park(origin, rec.Due, p.Room(), Timeout); {
	case err == nil:
		p.Count.Parked.Add(1)
		m.Done()
		return true
	case !errors.Is(err, retry.ErrParkFull) && !errors.Is(err, nats.ErrMaxPayload):
		rec.Copied = true
		p.NotStored()
		p.aside.Fails(time.Now())
		if others, ok := p.said.unparked.Allow(time.Now()); ok {
			p.Log.Warn("cannot park the message; it waits in its durable", m.Attrs("others", others, "error", err)...)
		}
	}
	return false
}

// recordThen stores what is to be remembered of the message, and then does what gives it back. While nothing can be recorded the
// message is parked, or held.
func (m *Unsettled) recordThen(rec retry.Record, giveBack func()) {
	failpoint.At("recording")
	err := m.record(rec)
	switch {
	case err == nil:
		giveBack()
	case errors.Is(err, retry.ErrOtherVersion):
		m.Newer(err)
	case m.Delivery.Fenced():
		m.Delivery.Release()
	case !m.parkUnrecorded(&rec, err):
		m.Hold(time.Now(), err, func() { m.recordThen(rec, giveBack) })
	}
}

// parkUnrecorded parks a message that failed because its attempt cannot be recorded: a parked one carries its attempts in its
// headers. It returns false when the message must stay here.
func (m *Unsettled) parkUnrecorded(rec *retry.Record, why error) bool {
	p := m.Path
	if !m.mayPark() || !p.aside.MayTry(time.Now()) || !m.parkFailed(rec) {
		return false
	}
	p.aside.Works()
	p.held.Parked(why)
	return true
}

// Hold keeps the message until then, to try again. While its route drains, or when another instance may have it, it is let go:
// JetStream delivers it again.
func (m *Unsettled) Hold(at time.Time, why error, try func()) {
	if m.Delivery.Fenced() || m.Durable.Draining() || !m.Path.held.Add(at, why, try) {
		m.Delivery.Release()
	}
}

// record stores what is to be remembered of the message, before it is given back.
func (m *Unsettled) record(rec retry.Record) error {
	if teeth.Record() {
		return nil
	}
	ctx, cancel := context.WithTimeout(m.Path.Work, Timeout)
	defer cancel()
	err := m.Durable.Records.Put(ctx, m.Delivery.Sequence, m.Delivery.Deliveries, rec)
	if err != nil {
		m.Path.NotStored()
		return err
	}
	m.Recorded = true
	return nil
}
