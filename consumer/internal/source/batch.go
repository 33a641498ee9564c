package source

import (
	"slices"

	"github.com/relaymq/relay/internal/supervise"
)

// batch gathers messages by route.
type batch struct {
	routes   []*Route
	messages [][]*supervise.Message
}

func (b *batch) add(rt *Route, m *supervise.Message) {
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
