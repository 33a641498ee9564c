package route

import (
	"errors"
	"time"

	"github.com/relaymq/relay/consumer/internal/suspects"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/supervise"
)

// Enter completes a message of which all is known, for the group of its route. It returns nil when the message is settled instead: it had its verdict
// before, or its time is over.
func (m *Message) Enter(rec retry.Record) *supervise.Message {
	d, rt := m.Delivery, m.route()
	m.Recorded, m.Doubtful = rec.Known(), d.Deliveries > 1 && !rec.Explains(d.Deliveries)
	before := retry.Origin{} // of a message that was parked
	if m.Origin != nil {
		before = *m.Origin
	}
	attempts, first, due := max(rec.Attempts, before.Attempts), rec.FirstFailure, rec.Due
	if t := before.FirstFailure; first.IsZero() || !t.IsZero() && t.Before(first) {
		first = t
	}
	if !m.Recorded {
		due = before.Due
	}
	if rt.HandsOver() {
		m.due, due = due, time.Time{}
	}
	m.first = rt.Home.Config.NewMsg()
	m.Message = supervise.Message{
		First: m.first.Attempt(),
		Work:  m, Key: rt.KeyOf(m.Subject), Sequence: d.Sequence, Replayed: m.Source.Due, Size: len(m.Data) + d.Msg.Size() - len(d.Msg.Data),
		Attempts: attempts, FirstFailure: first, Due: due,
		Returns: before.Returns + max(0, int(min(d.Deliveries, 1<<20))-1-(attempts-before.Attempts)),
	}
	if rec.LastError != "" {
		m.LastErr = errors.New(rec.LastError)
	}
	if rt.Guarded && !rt.HandsOver() && (rec.Suspect || rec.Crashes > 0) {
		m.Suspect, m.Alone = suspects.New(rec, m.Source.Records, d.Sequence, d.Deliveries), true
	}
	if rec.Dead == "" && rec.Crashes >= rt.Now().Retry.MaxCrashes {
		rec.Dead = supervise.ReasonCrash
		attempts += rec.Crashes // each was a start
	}
	if m.Header != nil && !rt.HandsOver() {
		stored := d.Time
		if m.Origin != nil {
			stored = m.Origin.Time
		}
		m.readCall(stored)
		m.Asks = m.call != nil && m.call.AsksFirst()
	}
	if rec.Dead != "" {
		// It had its verdict; only its entry could not be stored.
		rt.Group.Ended(m.Key, m.Sequence)
		rt.Count.Settled[supervise.DeadLetter].Add(1)
		o := supervise.Outcome{Action: supervise.DeadLetter, Reason: rec.Dead, Attempts: attempts, FirstFailure: first}
		m.ToLetters(o)
		return nil
	}
	if m.call != nil && m.call.IsOver(time.Now()) {
		rt.Group.Ended(m.Key, m.Sequence)
		m.call.Expire()
		m.Settle(supervise.Outcome{Action: supervise.LetGo, Attempts: attempts, FirstFailure: first})
		return nil
	}
	return &m.Message
}
