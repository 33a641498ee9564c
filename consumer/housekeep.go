package consumer

import (
	"context"
	"encoding/json"

	"github.com/relaymq/relay/consumer/internal/takeover"
)

// sweepRecords removes the records of settled messages of the durables that are this instance's to sweep.
func (r *running) sweepRecords(ctx context.Context) {
	for _, s := range r.Sources() {
		if s.sweeps(ctx) {
			s.sweep(ctx)
		}
	}
}

// sweeps tells whether this instance sweeps the records of the durable: the first one does of those that read it, for another one may not have its
// route.
func (o *observed) sweeps(ctx context.Context) bool {
	l := o.relay.stores.Lives.Load()
	if l == nil {
		return true
	}
	question, err := json.Marshal(takeover.Question{Stream: o.stream, Durable: o.durable, Created: o.identity.ConsumerCreated, Reads: true})
	return err != nil || !l.AnyBefore(ctx, question, takeover.ReadsIt)
}
