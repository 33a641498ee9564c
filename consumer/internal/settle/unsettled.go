package settle

import (
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/suspects"
	"github.com/relaymq/relay/internal/failpoint"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/supervise"
)

// Unsettled is a message that was delivered and is not settled yet.
type Unsettled struct {
	supervise.Message
	Owner    Owner
	Path     *Path
	Durable  *Durable
	Delivery *ack.Delivery

	// As they were published. For a message from the retry stream they differ from those of the delivery.
	Subject string
	Header  nats.Header
	Data    []byte
	// Origin of a message from the retry stream; nil for one that comes straight from its stream.
	Origin *retry.Origin

	Recorded bool // it has a record of attempts, to be deleted when it is done
	Doubtful bool // it came again, and no record says why; see isOld
	// Suspect is for a message that may have ended a process, and must run alone; nil for all others.
	Suspect *suspects.Suspect

	away *Away // what the group calls back; nil: it is not put aside
}

// Away is what is kept of a message that waits in its durable, because something else waits: there may be many.
type Away struct {
	durable *Durable
	called  atomic.Pointer[time.Time] // the group called it back, to come then
	back    atomic.Pointer[ack.Away]  // nil: it is still on its way back
}

// Owner has more of a message than it takes to settle it.
type Owner interface {
	ack.Confirmed
	// Finish ends a message that is done, dropped, or stored as a dead letter: it acknowledges it with Done, when whoever waits for it was told.
	Finish(supervise.Outcome)
}

// From is where the message was first stored.
func (m *Unsettled) From() retry.Origin {
	if m.Origin != nil {
		return *m.Origin
	}
	return retry.Origin{
		Route: m.Path.Route, Stream: m.Durable.Stream, Consumer: m.Durable.Name, Sequence: m.Delivery.Sequence,
		Time: m.Delivery.Time, Subject: m.Subject, Deliveries: m.Delivery.Deliveries,
	}
}

// Published is when the message was first stored. A replay does not change that.
func (m *Unsettled) Published() time.Time {
	if m.Origin != nil {
		return m.Origin.Time
	}
	return m.Delivery.Time
}

// Attrs describe the message in the log.
func (m *Unsettled) Attrs(more ...any) []any {
	return append([]any{"subject", m.Subject, "seq", m.From().Sequence}, more...)
}

// Settle does what is to become of the message. It does not block.
func (m *Unsettled) Settle(o supervise.Outcome) {
	if m.Suspect != nil {
		m.settleSuspect(o)
		return
	}
	m.settle(o)
}

// settleSuspect settles on the slow path. It is a function of its own so that only here the outcome is on the heap.
func (m *Unsettled) settleSuspect(o supervise.Outcome) {
	m.Path.slow.Go(func() {
		m.Acquit() // its handler has returned, or was given up: that is no crash
		m.settle(o)
	})
}

func (m *Unsettled) settle(o supervise.Outcome) {
	switch o.Action {
	case supervise.AckMessage, supervise.DropMessage:
		m.Owner.Finish(o)
	case supervise.GiveBack:
		failpoint.At("giving back")
		m.comeAgain(o)
	case supervise.LetGo:
		m.Delivery.Release()
	case supervise.RetryLater:
		m.slowly(o)
	case supervise.DeadLetter:
		m.ToLetters(o)
	}
}

// slowly settles on the slow path. It is a function of its own so that only here the outcome is on the heap.
func (m *Unsettled) slowly(o supervise.Outcome) {
	m.Path.slow.Go(func() { m.retry(o) })
}

// Done acknowledges the message. Nothing may be done with it afterwards.
func (m *Unsettled) Done() {
	_ = m.Delivery.Ack(m.Owner) // settled before: a bug that has no effect here
	failpoint.At("acked")
}

// unlessFenced does that, unless another instance may have the message.
func (m *Unsettled) unlessFenced(do func()) {
	if m.Delivery.Fenced() {
		m.Delivery.Release()
		return
	}
	do()
}

// bounce is how long a message stays away that goes back at the end of an instance, and came for more than the second time: the last pulls of that
// one may get it again and again.
const bounce = 100 * time.Millisecond

// giveBack returns a message that spent no attempt; zero means at once.
func (m *Unsettled) giveBack(due time.Time) {
	if m.Path.Guarded && !m.Recorded {
		m.Durable.Records.Returned(m.Delivery.Sequence, m.Delivery.Deliveries, retry.Record{Suspect: m.Suspect != nil})
	}
	if due.IsZero() && m.Delivery.Deliveries <= 2 {
		_ = m.Delivery.GiveBack() // fenced: somebody else has it
		return
	}
	if due.IsZero() {
		due = time.Now().Add(bounce)
	}
	_ = m.nak(due) // fenced: somebody else has it
}

// nak gives the message back, to come at due, or when the group calls it.
func (m *Unsettled) nak(due time.Time) error {
	if m.away == nil {
		return m.Delivery.Nak(due)
	}
	back, err := m.Delivery.NakAway(due)
	if err != nil {
		return err
	}
	m.away.back.Store(back)
	if called := m.away.called.Load(); called != nil { // while it was on its way
		back.Recall(*called)
	}
	return nil
}

// What a group gives back because something else waits it calls back when that is over.

// Away is what the group keeps of a message that it gives back.
func (m *Unsettled) Away() supervise.Away {
	if m.away == nil {
		m.away = &Away{durable: m.Durable}
	}
	return m.away
}

// CallBack asks for the message to come at due already.
func (a *Away) CallBack(due time.Time) {
	a.called.Store(&due)
	switch back := a.back.Load(); {
	case back == nil:
	case a.durable.Leased():
		back.RecallAlone(due)
	default:
		back.Recall(due)
	}
}

// ErrorText is an error as it is stored.
func ErrorText(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	return text[:min(len(text), retry.MaxErrorLen)]
}
