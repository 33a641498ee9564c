package consumer

import "github.com/nats-io/nats.go"

// spares are messages whose memory is used again, of those that succeeded at once: of what relay allocates for one that is most, and the
// garbage collector would take a fifth of the time. What a handler may keep is not among it; see handed. It is for the pull loop only: that is where
// messages and answers arrive.
type spares []*message

// maxSpares bounds them. It is enough for those on their way at full speed.
const maxSpares = 8192

// take is a message of the source for what has arrived.
func (p *spares) take(s *source, raw *nats.Msg) *message {
	var m *message
	if last := len(*p) - 1; last >= 0 {
		m, *p = (*p)[last], (*p)[:last]
	} else {
		m = new(message)
	}
	m.source, m.Durable, m.Owner = s, &s.Durable, m
	m.Subject, m.Header, m.Data = raw.Subject, raw.Header, raw.Data
	return m
}

// put takes a message with which nobody has anything to do any more.
func (p *spares) put(m *message) {
	if len(*p) < maxSpares {
		*m = message{}
		*p = append(*p, m)
	}
}
