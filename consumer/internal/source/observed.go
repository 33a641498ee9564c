package source

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/backlog"
	"github.com/relaymq/relay/consumer/internal/durables"
	"github.com/relaymq/relay/consumer/internal/settle"
	"github.com/relaymq/relay/consumer/internal/takeover"
)

// observed is what the server says of a durable.
type observed struct {
	*binding
	identity ack.Identity // since it is open
	asker    durables.Asker
	looked   atomic.Pointer[backlog.Look] // the last answer
	floors   *durables.Floors             // notes of how far it is
	Oldest   backlog.Oldest               // of the messages that wait
}

// begin has the durable of the binding be the one that is asked about.
func (o *observed) begin(b *binding) {
	o.binding, o.floors = b, b.newFloors()
	o.asker = durables.Asker{JS: b.in.JS, Stream: b.stream, Durable: b.durable, Timeout: settle.Timeout, Saw: func(info *jetstream.ConsumerInfo) {
		o.looked.Store(backlog.LookOf(info))
	}}
}

// IsThat tells whether the durable is the one of that place which was made then.
func (o *observed) IsThat(stream, durable string, made time.Time) bool {
	return o.stream == stream && o.durable == durable && o.identity.ConsumerCreated.Equal(made)
}

// Sweeps tells whether this instance sweeps the records of the durable: the first one does of those that read it, for another one may not have its
// route.
func (o *observed) Sweeps(ctx context.Context) bool {
	l := o.in.Stores.Lives.Load()
	if l == nil {
		return true
	}
	question, err := json.Marshal(takeover.Question{Stream: o.stream, Durable: o.durable, Created: o.identity.ConsumerCreated, Reads: true})
	return err != nil || !l.AnyBefore(ctx, question, takeover.ReadsIt)
}
