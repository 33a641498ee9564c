package consumer

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/provision"
	"github.com/relaymq/relay/internal/retry"
)

// A durable that is deleted takes with it how far its messages were handled, and one that is made anew with start: all has the
// whole stream handled once more. So its ack floor is noted at the start, every minute and at the end where the accident does not reach: in
// the metadata of the durable on the retry stream that belongs to it.

// floorEvery is how old a floor may be while relay runs.
const floorEvery = time.Minute

// floorAgain is after what time one that has not moved is looked at again: somebody may have made the durable on the retry stream anew.
const floorAgain = 10 * time.Minute

// floored is how far a durable was when that was last written down.
type floored struct {
	seq atomic.Uint64
	at  atomic.Int64 // since the epoch
}

// noteFloor writes down how far the durable is, if what the watchdog last saw of it is not written down.
func (s *source) noteFloor(ctx context.Context) {
	if l := s.looked.Load(); l != nil && time.Since(l.At) < lookEvery && l.Pending == 0 && l.Outstanding == 0 && l.Floor == s.floored.seq.Load() && time.Since(epoch)-time.Duration(s.floored.at.Load()) < floorAgain {
		return
	}
	s.noteLastFloor(ctx)
}

// noteLastFloor writes down how far the durable is now: at the end messages may have been settled since the watchdog saw it.
func (s *source) noteLastFloor(ctx context.Context) {
	if s.routes[0].cfg.part != nil {
		return // what is settled is removed from its stream
	}
	identity, info, err := s.ask(ctx)
	if err != nil || !identity.Equal(s.identity) || info.AckFloor.Stream == 0 {
		return
	}
	noted := true
	defer func() {
		if noted {
			s.floored.seq.Store(info.AckFloor.Stream)
			s.floored.at.Store(int64(time.Since(epoch)))
		}
	}()
	for _, rt := range s.routes {
		due, err := s.relay.js.Consumer(ctx, s.relay.retries.Name(), retry.DueDurable(rt.cfg.Name, s.stream))
		if err != nil {
			noted = false
			continue
		}
		c := due.CachedInfo().Config
		now := provision.Floor{Durable: s.durable, Stream: identity.StreamCreated.UnixNano(), Seq: info.AckFloor.Stream, At: time.Now().Unix()}
		if was, has := provision.FloorOf(c.Metadata); has && was.Same(now) {
			continue
		}
		c.Metadata = now.Over(c.Metadata)
		if _, err := s.relay.js.UpdateConsumer(ctx, s.relay.retries.Name(), c); err != nil {
			noted = false
			s.log.Debug("cannot store the ack floor of the durable", "error", err)
		}
	}
}

// floorBefore is how far a durable was that is not there any more.
func (b *binding) floorBefore(ctx context.Context, stream jetstream.Stream) (f provision.Floor, ok bool) {
	due, err := b.relay.js.Consumer(ctx, b.relay.retries.Name(), retry.DueDurable(b.routes[0].cfg.Name, b.stream))
	if err != nil {
		return f, false
	}
	f, ok = provision.FloorOf(due.CachedInfo().Config.Metadata)
	return f, ok && f.Durable == b.durable && f.Stream == stream.CachedInfo().Created.UnixNano()
}

// watchFloors notes how far the durables are.
func (r *Relay) watchFloors(ctx context.Context) {
	tick := time.NewTicker(floorEvery)
	defer tick.Stop()
	for {
		r.noteFloors(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (r *Relay) noteFloors(ctx context.Context) {
	for _, s := range r.openSources() {
		if !s.due && s.routes[0].cfg.part == nil {
			s.noteFloor(ctx)
		}
	}
}
