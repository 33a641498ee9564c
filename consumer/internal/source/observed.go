package source

import (
	"sync/atomic"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/backlog"
	"github.com/relaymq/relay/consumer/internal/durables"
	"github.com/relaymq/relay/consumer/internal/settle"
)

// observed is what the server says of a durable.
type observed struct {
	*binding
	identity ack.Identity // since it is open
	asker    durables.Asker
	looked   atomic.Pointer[backlog.Look] // the last answer
	floors   *durables.Floors             // notes of how far it is
	oldest   backlog.Oldest               // of the messages that wait
}

// begin has the durable of the binding be the one that is asked about.
func (o *observed) begin(b *binding) {
	o.binding, o.floors = b, b.newFloors()
	o.asker = durables.Asker{JS: b.in.JS, Stream: b.stream, Durable: b.durable, Timeout: settle.Timeout, Saw: func(info *jetstream.ConsumerInfo) {
		o.looked.Store(backlog.LookOf(info))
	}}
}
