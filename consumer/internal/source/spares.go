package source

import "github.com/nats-io/nats.go"

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
