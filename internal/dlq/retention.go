package dlq

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relaymq/relay/internal/retry"
)

// Usage is how much room the dead letters take.
type Usage struct {
	Entries uint64
	Last    uint64    // the number of the newest there ever was
	Oldest  time.Time // when the oldest was stored
	Bytes   uint64    // of the entries
	Bodies  uint64    // bytes of the bucket with the bodies that are stored apart
	Max     uint64    // bound of either, or 0
	MaxMsgs uint64    // bound of the entries, or 0
	Dropped uint64    // entries that this Store dropped to make room
}

// Full is the share of the bound that is used, of the one that is nearest; 0 without a bound.
func (u Usage) Full() float64 { return max(u.fullOfBytes(), u.fullOfMsgs()) }

func (u Usage) fullOfBytes() float64 {
	if u.Max == 0 {
		return 0
	}
	return float64(max(u.Bytes, u.Bodies)) / float64(u.Max)
}

func (u Usage) fullOfMsgs() float64 {
	if u.MaxMsgs == 0 {
		return 0
	}
	return float64(u.Entries) / float64(u.MaxMsgs)
}

// Nearest is the key of the bound that is nearest.
func (u Usage) Nearest() string {
	if u.fullOfMsgs() > u.fullOfBytes() {
		return "dlq.max_msgs"
	}
	return "dlq.max_bytes"
}

// Usage asks the server.
func (s *Store) Usage(ctx context.Context) (Usage, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	stream, err := s.js.Stream(ctx, s.Name())
	if err != nil {
		return Usage{}, fmt.Errorf("stream %s: %w", s.Name(), classify(err))
	}
	info := stream.CachedInfo()
	u := Usage{Entries: info.State.Msgs, Last: info.State.LastSeq, Oldest: info.State.FirstTime, Bytes: info.State.Bytes, Max: uint64(max(info.Config.MaxBytes, 0)), MaxMsgs: uint64(max(info.Config.MaxMsgs, 0)), Dropped: s.dropped.Load()}
	if bucket, err := s.js.Stream(ctx, s.bucketStream()); err == nil {
		u.Bodies = bucket.CachedInfo().State.Bytes
	}
	return u, nil
}

// maxDrops is how many entries may go for one.
const maxDrops = 100

// putInsteadOfOldest stores e after it dropped the oldest entries that are in its way. full is why it could not be stored.
//
// relay drops and not the server, because the server's discard policy is silent: here each one is counted and logged, and
// its body goes with it.
func (s *Store) putInsteadOfOldest(ctx context.Context, prefix string, e Entry, full error) error {
	for range maxDrops {
		u, err := s.Usage(ctx)
		if err != nil {
			return or(ctx, err)
		}
		if u.Full() < 0.5 {
			return full // the server's storage is what is full
		}
		var oldest Entry
		for old, err := range s.List(ctx, Filter{}) {
			var bad *EntryError
			if errors.Is(err, retry.ErrOtherVersion) {
				continue // it is a good one for whoever wrote it
			}
			if errors.As(err, &bad) {
				old, err = Entry{StoredSequence: bad.Sequence}, nil
			}
			if err != nil {
				return or(ctx, err)
			}
			if u.Nearest() == "dlq.max_bytes" && u.Bodies > u.Bytes && old.body.name == "" {
				continue // the bucket is what is full
			}
			oldest = old
			break
		}
		if oldest.StoredSequence == 0 {
			return full
		}
		err = s.Discard(ctx, oldest.StoredSequence)
		if err != nil && !errors.Is(err, ErrNotFound) { // another instance was faster, and has counted it
			return or(ctx, err)
		}
		if err == nil {
			s.dropped.Add(1)
			s.log.Warn("dead letters are full: the oldest was dropped (dlq.on_full: drop_oldest)", "number", oldest.StoredSequence,
				"route", oldest.Route, "subject", oldest.Subject, "stored", oldest.StoredTime)
		}
		if _, err = s.put(ctx, prefix, e); !errors.Is(err, ErrFull) {
			return err
		}
	}
	return full
}
