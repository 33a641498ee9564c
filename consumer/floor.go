package consumer

import (
	"context"
	"time"

	"github.com/relaymq/relay/consumer/internal/durables"
	"github.com/relaymq/relay/consumer/internal/watchdog"
)

// floorEvery is how old the noted ack floor of a durable may be while relay runs; see [durables.Floors].
const floorEvery = time.Minute

// newFloors is what notes how far the durable is.
func (b *binding) newFloors() *durables.Floors {
	return &durables.Floors{JS: b.relay.js, Log: b.log, Retries: b.relay.stores.RetryStream(), Stream: b.stream, Durable: b.durable, Routes: b.names}
}

// noteFloor notes how far the durable is, if what the watchdog last saw of it is not noted.
func (o *observed) noteFloor(ctx context.Context) {
	if l := o.looked.Load(); l != nil && time.Since(l.At) < watchdog.LookEvery && l.Pending == 0 && l.Outstanding == 0 && o.floors.Has(l.Floor) {
		return
	}
	o.noteLastFloor(ctx)
}

// noteLastFloor notes how far the durable is now: at the end messages may have been settled since the watchdog saw it.
func (o *observed) noteLastFloor(ctx context.Context) {
	if o.routes[0].cfg.part != nil {
		return // what is settled is removed from its stream
	}
	if said, err := o.asker.Ask(ctx); err == nil && said.Identity.Equal(o.identity) {
		o.floors.Note(ctx, said.Identity.StreamCreated, said.Info.AckFloor.Stream)
	}
}

// watchFloors notes how far the durables are.
func (r *running) watchFloors(ctx context.Context) {
	tick := time.NewTicker(floorEvery)
	defer tick.Stop()
	for {
		for _, s := range r.Sources() {
			if !s.due && s.routes[0].cfg.part == nil {
				s.noteFloor(ctx)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
