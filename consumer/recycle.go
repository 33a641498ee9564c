package consumer

import (
	"time"

	"github.com/nats-io/nats.go"
)

// The memory of a message that succeeded at once is used again: of what relay allocates for one that is most, and the
// garbage collector would take a fifth of the time. What a handler may keep is not among it; see handed.

// maxUnused bounds the memory that waits for messages. It is enough for those on their way at full speed.
const maxUnused = 8192

// newMessage is for the pull loop only.
func (s *source) newMessage(raw *nats.Msg) *message {
	var m *message
	if last := len(s.unused) - 1; last >= 0 {
		m, s.unused = s.unused[last], s.unused[:last]
	} else {
		m = new(message)
	}
	m.source, m.Durable, m.Owner = s, &s.Durable, m
	m.Subject, m.Header, m.Data = raw.Subject, raw.Header, raw.Data
	return m
}

// recycle is called in the pull loop: that is where answers arrive.
func (s *source) recycle(m *message) {
	if len(s.unused) < maxUnused {
		*m = message{}
		s.unused = append(s.unused, m)
	}
}

// release gives the memory back while there is nothing to do.
func (s *source) release(now time.Time) {
	if now.Sub(s.pulls.Got()) > time.Second {
		s.unused = nil
	}
}
