package source

import (
	"slices"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/intake"
	"github.com/relaymq/relay/supervisor"
)

// Incoming is a message that a source received, and of which it finds out whose it is and what is known of it.
type Incoming struct {
	intake.Arrival
	Route  *Route // nil: no route of this instance wants it
	Source *Source

	work     Work
	delivery ack.Delivery // what Delivery points to, without an allocation of its own
}

// Received is the message itself, as the source has it.
func (m *Incoming) Received() *Incoming { return m }

// on has the message be one of that route.
func (m *Incoming) on(rt *Route) {
	if m.Route = rt; rt != nil {
		m.Path = rt.Path
	}
}

// letGo releases a delivery that is of no use.
func (m *Incoming) letGo() {
	var r *intake.Route
	if m.Route != nil {
		r = m.Route.Intake
	}
	m.LetGo(r)
}

// ID is the Relay-Id of the message.
func (m *Incoming) ID() string {
	if m.Origin != nil {
		return m.Origin.ID()
	}
	return m.Source.id(m.Delivery)
}

// batch gathers messages by route.
type batch struct {
	routes   []*Route
	messages [][]*supervisor.Message
}

func (b *batch) add(rt *Route, m *supervisor.Message) {
	i := slices.Index(b.routes, rt)
	if i < 0 {
		i = len(b.routes)
		b.routes, b.messages = append(b.routes, rt), append(b.messages, nil)
	}
	b.messages[i] = append(b.messages[i], m)
}

// deliver hands the messages to their routes, and empties the batch, whose memory is used again.
func (b *batch) deliver() {
	for i, rt := range b.routes {
		if len(b.messages[i]) > 0 {
			rt.Group.Deliver(b.messages[i]...)
		}
		clear(b.messages[i])
		b.messages[i] = b.messages[i][:0]
	}
}

// spares are messages whose memory is used again, of those that succeeded at once: of what relay allocates for one that is most, and the
// garbage collector would take a fifth of the time. What a handler may keep is not among it. It is for the pull loop only: that is where
// messages and answers arrive.
type spares []Work

// maxSpares bounds them. It is enough for those on their way at full speed.
const maxSpares = 8192

// take is a message of the source for what has arrived.
func (p *spares) take(s *Source, raw *nats.Msg) *Incoming {
	var w Work
	if last := len(*p) - 1; last >= 0 {
		w, *p = (*p)[last], (*p)[:last]
	} else {
		w = s.in.New()
	}
	m := w.Received()
	m.Source, m.Durable, m.Owner, m.work = s, &s.Durable, w, w
	m.Subject, m.Header, m.Data = raw.Subject, raw.Header, raw.Data
	return m
}

// Reuse has the memory of a message used again with which nobody has anything to do any more. It is called while a confirmation is read.
func (s *Source) Reuse(w Work) {
	if p := &s.loop.spares; len(*p) < maxSpares {
		w.Clear()
		*p = append(*p, w)
	}
}

// Forget deletes the record of a settled message, soon.
func (s *Source) Forget(seq uint64) {
	s.tidying.Go(func() { s.forget(s.routes[0].Path.Work, seq) })
}
