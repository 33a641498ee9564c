package archive

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Found is a record, and who wrote it.
type Found struct {
	Record
	Instance string
}

// clocks is by how much those of two servers may differ.
const clocks = time.Minute

// Find returns the records of a message, oldest first: one for each durable, each replay, and each time that it was handled again. It reads
// the headers of all batches since then, of zero all that there are, and opens those that may have the sequence. The error is
// [jetstream.ErrStreamNotFound] when there is no archive. A batch that does not decode is left out.
func Find(ctx context.Context, js jetstream.JetStream, service, stream string, sequence uint64, since time.Time) ([]Found, error) {
	s, err := js.Stream(ctx, StreamName(service))
	if err != nil {
		return nil, err
	}
	cfg := jetstream.OrderedConsumerConfig{FilterSubjects: []string{Prefix(service) + stream}, HeadersOnly: true}
	if !since.IsZero() {
		from := since.Add(-clocks)
		cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &from
	}
	c, err := s.OrderedConsumer(ctx, cfg)
	if err != nil {
		return nil, err
	}
	info, err := c.Info(ctx)
	if err != nil || info.NumPending == 0 {
		return nil, err
	}
	batches, err := c.Messages()
	if err != nil {
		return nil, err
	}
	defer batches.Stop()
	var list []Found
	for {
		m, err := batches.Next(jetstream.NextContext(ctx))
		if err != nil {
			return nil, err
		}
		meta, err := m.Metadata()
		if err != nil {
			return nil, err
		}
		if mayHold(m.Headers(), sequence) {
			stored, err := s.GetMsg(ctx, meta.Sequence.Stream)
			switch {
			case errors.Is(err, jetstream.ErrMsgNotFound): // its time was over just now
			case err != nil:
				return nil, err
			default:
				_ = decode(stored.Data, func(r Record) bool {
					if r.Sequence == sequence {
						r.Result = slices.Clone(r.Result) // the batch is large
						list = append(list, Found{r, stored.Header.Get(headerInstance)})
					}
					return true
				})
			}
		}
		if meta.NumPending == 0 {
			slices.SortStableFunc(list, func(a, b Found) int { return a.Ended.Compare(b.Ended) })
			return list, nil
		}
	}
}

// mayHold tells by the headers of a batch whether the record of a message may be in it.
func mayHold(h nats.Header, sequence uint64) bool {
	first, err1 := strconv.ParseUint(h.Get(headerFirst), 10, 64)
	last, err2 := strconv.ParseUint(h.Get(headerLast), 10, 64)
	return err1 == nil && err2 == nil && first <= sequence && sequence <= last
}

// What Latest reads at most: batches, and bytes of them.
const (
	latestBatches = 64
	latestBytes   = 4 << 20
)

// Latest returns the records of a route that were written last, at most so many, newest first. It reads the archive backwards, batch by batch, and stops
// when it has enough, at the oldest batch, or at a bound. Then back is when the last batch was stored that it read: what is older was not looked at.
// The error is [jetstream.ErrStreamNotFound] when there is no archive. A batch that does not decode is left out.
func Latest(ctx context.Context, js jetstream.JetStream, service, stream, route string, most int) (list []Found, back time.Time, err error) {
	s, err := js.Stream(ctx, StreamName(service))
	if err != nil {
		return nil, time.Time{}, err
	}
	state, size := s.CachedInfo().State, 0
	if state.Msgs == 0 {
		return nil, time.Time{}, nil
	}
	seq, read := state.LastSeq, 0
	for ; seq >= state.FirstSeq && read < latestBatches && size < latestBytes && len(list) < most; seq-- {
		read++
		m, err := s.GetMsg(ctx, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			return nil, time.Time{}, err
		}
		back, size = m.Time, size+len(m.Data)
		if m.Subject != Prefix(service)+stream {
			continue
		}
		var found []Found
		_ = decode(m.Data, func(r Record) bool {
			if r.Route == route {
				if len(found) >= 2*most { // a batch has many thousands
					found = slices.Delete(found, 0, most)
				}
				found = append(found, Found{r, m.Header.Get(headerInstance)})
			}
			return true
		})
		list = append(list, found[max(0, len(found)-most):]...)
	}
	if seq < state.FirstSeq {
		back = time.Time{}
	}
	slices.SortStableFunc(list, func(a, b Found) int { return b.Ended.Compare(a.Ended) })
	if len(list) >= most {
		list, back = list[:most], time.Time{}
	}
	for i := range list {
		list[i].Result = slices.Clone(list[i].Result) // the batch is large
	}
	return list, back, nil
}
