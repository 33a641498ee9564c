// Package intake finds out what is known of a message that has arrived, before it goes to the group of its route:
//
//	OfPartition ── where it was first stored, if it is a copy
//	LookUp ── its attempts before, and its body if that was left out or is kept elsewhere; the server is asked until it answers
//	Strays.Take ── no route of this instance wants it: it goes back for other instances, or the retry stream keeps it
//	Foreign ── relay has not written it, though it should have: a dead letter
//
// What can be told without a question to the server is not here: it is on the path of every message, in the pull loop.
package intake

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/memory"
	"github.com/relaymq/relay/consumer/internal/settle"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/partition"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/supervise"
	"github.com/relaymq/relay/internal/transient"
	"github.com/relaymq/relay/internal/trouble"
)

const (
	// noBodyDelay is how long a message stays away whose body is gone.
	noBodyDelay = 15 * time.Minute
	// bodylessDelay is how long a message stays away that came without its body and is not for a handler here.
	bodylessDelay = time.Second
	// bodyTimeout is as long as the store of bodies may take.
	bodyTimeout = 30 * time.Second
	// askAgain is the pause after a question that was not answered.
	askAgain = time.Second
)

// Route is a route that messages arrive for.
type Route struct {
	*settle.Path
	JS     jetstream.JetStream
	Memory *memory.Account
	// Part is whether its messages are copies of those of another route.
	Part bool
	// Expect has messages of an ordered key wait for one that comes again.
	Expect func(subject string, sequence uint64)

	unread, undivided trouble.Throttle // what is said of one message for many
}

// Arrival is a message that has arrived.
type Arrival struct {
	settle.Unsettled
	Bodyless bool // its body is to be fetched from the stream
	// Elsewhere says that its body did not come with it: it is Bodyless, or its body is kept in the store of bodies.
	Elsewhere bool
	Moved     bool // of a partition: relay put it there

	reserved bool        // the memory has its body, which was kept elsewhere
	ahead    chan answer // what is known of it, of an ordered route: it was asked for before its turn
}

// answer is what is known of a message.
type answer struct {
	rec retry.Record
	err error
}

// IsBodyless tells whether the server left out the body, as it does when somebody has set headers_only: it then says how long the body is.
func IsBodyless(raw *nats.Msg) bool {
	if len(raw.Data) > 0 || raw.Header == nil {
		return false
	}
	size := raw.Header.Get("Nats-Msg-Size")
	return size != "" && size != "0"
}

// WillAsk says that AskAhead follows, and LookUp later, which waits for its answer.
func (m *Arrival) WillAsk() { m.ahead = make(chan answer, 1) }

// AskAhead asks for the attempts of a message before its turn, for as long as LookUp would. Many are asked for at once: after a failure that all of
// them saw, LookUp, which has one turn after the other, would pause for each.
func (m *Arrival) AskAhead(r *Route, began time.Time) {
	rec, err := m.untilAnswered(r, began)
	m.ahead <- answer{rec, err}
}

// LookUp asks the server for what is not known of the message, and calls enter with it, unless the message is settled instead. It blocks for as long as the server does not answer, but not longer than a drain.
func (m *Arrival) LookUp(r *Route, enter func(retry.Record)) {
	var a answer
	if m.ahead != nil {
		a, m.ahead = <-m.ahead, nil
	} else {
		a.rec, a.err = m.untilAnswered(r, time.Now())
	}
	var damaged *retry.HeaderError
	switch err := a.err; {
	case err == nil:
		enter(a.rec)
	case m.Delivery.Fenced() || r.Work.Err() != nil:
		m.LetGo(r)
	case m.Bodyless && errors.Is(err, jetstream.ErrMsgNotFound):
		// The server takes a message that is gone off the durable. If a replica was asked that lags behind, the message comes
		// again.
		r.Count.Settled[supervise.LetGo].Add(1)
		if others, ok := r.unread.Allow(time.Now()); ok {
			r.Log.Warn("the message arrived without its body, and its stream does not have it any more: it cannot be handled", m.Attrs("others", others)...)
		}
		m.LetGo(r)
	case errors.As(err, &damaged):
		// As it is: what its other headers say is no help without a body.
		m.Origin, m.Subject, m.Header = nil, m.Delivery.Msg.Subject, m.Delivery.Msg.Header
		m.Foreign(err)
	case m.Durable.Draining():
		m.UnlessBounded(m.parkUnread, func() {
			_ = m.Delivery.GiveBack() // fenced: somebody else has it
		})
	case errors.Is(err, retry.ErrOtherVersion):
		m.Newer(err)
	default: // the body is gone
		m.sayWaits(r, err)
		m.UnlessBounded(never, func() { _ = m.Delivery.Nak(time.Now().Add(noBodyDelay)) })
	}
}

// parkUnread is ParkUnread, unless the body is needed for that and has not come.
func (m *Arrival) parkUnread() bool { return (!m.Elsewhere || len(m.Data) > 0) && m.ParkUnread() }

// untilAnswered asks until there is an answer, or until no other one will come, or until the message is not to be handled here.
func (m *Arrival) untilAnswered(r *Route, began time.Time) (retry.Record, error) {
	for {
		rec, err := m.ask(r.Work, r, began)
		if err == nil || m.answers(err) || m.Delivery.Fenced() || r.Work.Err() != nil || m.Durable.Draining() {
			return rec, err
		}
		m.sayWaits(r, err)
		transient.Pause(r.Work, askAgain)
	}
}

// answers tells whether the server would say the same again.
func (m *Arrival) answers(err error) bool {
	var damaged *retry.HeaderError
	return m.Bodyless && errors.Is(err, jetstream.ErrMsgNotFound) || errors.As(err, &damaged) || errors.Is(err, retry.ErrOtherVersion) || errors.Is(err, dlq.ErrNoBody)
}

func (m *Arrival) sayWaits(r *Route, err error) {
	if others, ok := r.unread.Allow(time.Now()); ok {
		r.Log.Warn("cannot read the attempts or the body of a message; the message waits", m.Attrs("others", others, "error", err)...)
	}
}

func (m *Arrival) ask(ctx context.Context, r *Route, began time.Time) (retry.Record, error) {
	if m.Elsewhere {
		// The lease is extended meanwhile.
		if err := m.reserve(ctx, r); err != nil {
			return retry.Record{}, err
		}
		call, cancel := context.WithTimeout(ctx, bodyTimeout)
		defer cancel()
		header, data, err := m.body(call, r)
		if err != nil {
			return retry.Record{}, err
		}
		m.Header, m.Data = header, data
	}
	if m.Delivery.Deliveries <= 1 {
		return retry.Record{}, nil
	}
	read, cancel := context.WithTimeout(ctx, settle.Timeout)
	rec, err := m.Durable.Records.Get(read, m.Delivery.Sequence, m.Delivery.Deliveries)
	cancel()
	if err != nil {
		return rec, err
	}
	return m.Judge(ctx, rec, began)
}

// reserve counts a body that is kept elsewhere before it is fetched, and waits for room for it.
func (m *Arrival) reserve(ctx context.Context, r *Route) error {
	if m.reserved {
		return nil
	}
	err := r.Memory.Reserve(ctx, m.Delivery, dlq.BodySize(m.Delivery.Msg.Header), func() bool {
		return m.Delivery.Fenced() || m.Durable.Draining()
	})
	m.reserved = err == nil
	return err
}

// body is what did not come with the delivery.
func (m *Arrival) body(ctx context.Context, r *Route) (nats.Header, []byte, error) {
	if !m.Bodyless {
		return r.Stores.Dead.Body(ctx, m.Delivery.Msg.Header)
	}
	stream, err := r.JS.Stream(ctx, m.Durable.Stream)
	if err != nil {
		return nil, nil, err
	}
	whole, err := stream.GetMsg(ctx, m.Delivery.Sequence)
	switch {
	case err != nil:
		return nil, nil, err
	case m.Durable.Due || r.Part:
		return m.Header, whole.Data, nil
	}
	return whole.Header, whole.Data, nil
}

// ReturnBodyless gives a message back that came without its body and is not for a handler here. It must not be stored elsewhere, for it would be
// stored empty.
func (m *Arrival) ReturnBodyless() {
	m.UnlessBounded(never, func() {
		_ = m.Delivery.Nak(time.Now().Add(bodylessDelay)) // fenced: somebody else has it
	})
}

func never() bool { return false }

// Foreign settles a message on the retry stream, or in a partition, that relay did not write: it goes to the dead letters as it is.
func (m *Arrival) Foreign(err error) {
	m.Path.Log.Error("a message on the retry stream was not written by relay; it becomes a dead letter", "subject", m.Subject, "error", err)
	if m.Delivery.Deliveries == 1 {
		m.Path.Tally.FromNowhere(m.Delivery.Msg.Subject)
	}
	m.ToLetters(supervise.Outcome{Action: supervise.DeadLetter, Reason: supervise.ReasonDead, Err: err})
}

// LetGo releases a delivery that is of no use. Its message comes again, unless its durable is gone, and ordered keys wait for it.
func (m *Arrival) LetGo(r *Route) {
	m.Delivery.Release()
	lost := m.Durable.Health.IsLost() && !m.Durable.Draining()
	if r == nil || !r.Ordered || m.Durable.Due || lost {
		return
	}
	literal := m.Subject
	if r.Part { // its key is that of its own subject, which may not have been read yet
		literal, _, _ = partition.Own(m.Delivery.Msg.Subject)
	}
	r.Expect(literal, m.Delivery.Sequence)
}
