package chaos

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/partition"
)

// generations are the streams of the partitions of the route work, the oldest first.
func (w *World) generations(ctx context.Context) ([]*partition.Stream, error) {
	return partition.Find(ctx, w.js, "relay", "work")
}

// restOfPartitions is what all generations of the route have not done, and what the server has not copied yet.
func (w *World) restOfPartitions() (r rest) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	list, err := w.generations(ctx)
	if err != nil || len(list) == 0 {
		return rest{err: orElse(err, errors.New("the route has no partitions yet"))}
	}
	from, err := w.js.Stream(ctx, w.stream)
	if err != nil {
		return rest{err: err}
	}
	last := from.CachedInfo().State.LastSeq // before anybody is asked what is copied of it
	if r.parked, r.err = w.inRetryStream(ctx); r.err != nil {
		return r
	}
	r = w.ofParts(ctx, list, r)
	newest := list[len(list)-1]
	copied, err := w.copied(ctx, newest)
	switch {
	case err != nil:
		r.err = err
	case !newest.Sources():
		r.pending++ // messages that come now wait in the user's stream
	case copied < last:
		r.pending += int(last - copied)
	}
	return r
}

// copied is up to where the server has copied the user's stream, whose messages are all of the route.
func (w *World) copied(ctx context.Context, s *partition.Stream) (uint64, error) {
	stream, err := w.js.Stream(ctx, s.Name())
	if err != nil {
		return 0, err
	}
	m, err := stream.GetLastMsgForSubject(ctx, s.Copied())
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return max(s.Start.Sequence, 1) - 1, nil
	}
	if err != nil {
		return 0, err
	}
	origin, _ := partition.Source(m.Header.Get(partition.SourceHeader))
	return origin, nil
}

// ofParts adds what the durables of all partitions have to do.
func (w *World) ofParts(ctx context.Context, list []*partition.Stream, r rest) rest {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, s := range list {
		for n := range s.Count {
			wg.Go(func() {
				info, err := w.durableInfo(ctx, s.Name(), s.DurableOf(n))
				mu.Lock()
				defer mu.Unlock()
				switch {
				case errors.Is(err, jetstream.ErrStreamNotFound): // it was through
				case errors.Is(err, jetstream.ErrConsumerNotFound):
					// Nobody has made it yet. What is in the stream may wait for it, unless a newer generation copies already.
					if newest := list[len(list)-1]; s == newest || !newest.Sources() {
						r.pending++
					}
				case err != nil:
					r.err = fmt.Errorf("partition %d of %s: %w", n, s.Name(), err)
				default:
					r.pending += int(info.NumPending)
					r.ackPending += info.NumAckPending
				}
			})
		}
	}
	wg.Wait()
	return r
}

// inFlightOfPartitions is what the durables of all partitions have delivered and not heard of.
func (w *World) inFlightOfPartitions() (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	list, err := w.generations(ctx)
	if err != nil {
		return 0, err
	}
	r := w.ofParts(ctx, list, rest{})
	return r.ackPending, r.err
}

func orElse(err, other error) error {
	if err != nil {
		return err
	}
	return other
}
