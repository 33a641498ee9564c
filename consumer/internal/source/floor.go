package source

import (
	"context"
	"time"

	"github.com/relaymq/relay/consumer/internal/durables"
	"github.com/relaymq/relay/consumer/internal/watchdog"
)

// newFloors is what notes how far the durable is.
func (b *binding) newFloors() *durables.Floors {
	return &durables.Floors{JS: b.in.JS, Log: b.log, Retries: b.in.Stores.RetryStream(), Stream: b.stream, Durable: b.durable, Routes: b.Names}
}

// NoteFloor notes how far the durable is, if what the watchdog last saw of it is not noted.
func (o *observed) NoteFloor(ctx context.Context) {
	if l := o.looked.Load(); l != nil && time.Since(l.At) < watchdog.LookEvery && l.Pending == 0 && l.Outstanding == 0 && o.floors.Has(l.Floor) {
		return
	}
	o.NoteLastFloor(ctx)
}

// NoteLastFloor notes how far the durable is now: at the end messages may have been settled since the watchdog saw it.
func (o *observed) NoteLastFloor(ctx context.Context) {
	if o.routes[0].Part != nil {
		return // what is settled is removed from its stream
	}
	if said, err := o.asker.Ask(ctx); err == nil && said.Identity.Equal(o.identity) {
		o.floors.Note(ctx, said.Identity.StreamCreated, said.Info.AckFloor.Stream)
	}
}
