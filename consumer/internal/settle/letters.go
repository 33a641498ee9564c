package settle

import (
	"context"
	"time"

	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/failpoint"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/supervise"
)

// ToLetters has the message dead-lettered. While dead letters are not taken and many wait for that, it comes again later instead.
func (m *Unsettled) ToLetters(o supervise.Outcome) {
	store := func() { m.unlessFenced(func() { m.deadLetter(o) }) }
	later := func() { m.postpone(o, m.entry(o)) }
	if !m.Path.letters.Add(m.Size, store, func() { m.unlessFenced(later) }) {
		m.Path.slow.Go(later)
	}
}

// deadLetter stores the message in the dead letters, and only then acknowledges it. If they do not take it, it stays where
// it is and is tried again.
func (m *Unsettled) deadLetter(o supervise.Outcome) {
	p := m.Path
	e := m.entry(o)
	ctx, cancel := context.WithTimeout(p.Work, 2*Timeout)
	failpoint.At("dead-lettering")
	err := p.Stores.Dead.Put(ctx, p.LettersPrefix, e)
	failpoint.At("dead-lettered")
	cancel()
	p.letters.Note(err, time.Now())
	if err == nil {
		p.Log.Error("dead-lettered", m.Attrs("reason", o.Reason, "attempts", o.Attempts, "error", e.LastError)...)
		p.Count.Dead(o.Reason)
		p.Dead(e)
		m.Owner.Finish(o)
		return
	}
	p.Count.NotDead.Add(1)
	p.NotStored()
	if others, ok := p.said.undead.Allow(time.Now()); ok {
		p.Log.Error("cannot store the dead letter; the message stays in its stream; retrying", m.Attrs("others", others, "error", err)...)
	}
	m.postpone(o, e)
}

// postpone has a message come again that is to be dead-lettered.
func (m *Unsettled) postpone(o supervise.Outcome, e dlq.Entry) {
	due := time.Now().Add(m.Path.letters.Delay())
	rec := retry.Record{
		Attempts: o.Attempts, FirstFailure: o.FirstFailure, LastFailure: e.LastFailure, Due: due,
		LastError: e.LastError, Dead: o.Reason, Crashes: m.crashes(),
	}
	if m.Durable.Health.IsBounded() && !m.Durable.Draining() {
		m.Hold(due, errBounded, func() { m.ToLetters(o) })
		return
	}
	if err := m.record(rec); err != nil {
		m.Hold(due, err, func() { m.ToLetters(o) })
		return
	}
	// Parked, its verdict is forgotten, and it is started once more. That is better than its end.
	m.UnlessBounded(func() bool { return m.parkFailed(&rec) }, func() { _ = m.Delivery.Nak(due) })
}

func (m *Unsettled) entry(o supervise.Outcome) dlq.Entry {
	origin := m.From()
	origin.Attempts, origin.Returns, origin.Due, origin.FirstFailure = o.Attempts, 0, time.Time{}, o.FirstFailure
	switch rec, known := m.Durable.Records.Cached(m.Delivery.Sequence, m.Delivery.Deliveries); {
	case o.Err != nil:
		origin.LastError, origin.LastFailure = ErrorText(o.Err), time.Now()
	case m.crashes() > 0:
		origin.LastError, origin.LastFailure = m.Suspect.LastError, m.Suspect.LastFailure
	case known:
		origin.LastError, origin.LastFailure = rec.LastError, rec.LastFailure
	}
	return dlq.Entry{
		Origin: origin, Header: m.Header, Data: m.Data, Reason: dlq.Reason(o.Reason), Stack: o.Stack,
		Instance: m.Path.Instance,
	}
}
