package dlq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// maxGap is how many entries that are not wanted a batch may carry before it is cut in two.
const maxGap = 16

// getTogether reads the entries of items with few requests. It is an optimisation only: what is missing in its result, for
// whatever reason, is for [Store.get], which also finds out why.
//
// A request is a batch of direct gets (nats-server 2.11 and later), which any replica may answer, and every mirror that has
// mirror_direct. Such an answer may show what was removed long ago, so batches are for streams with one replica, and an answer that does not
// name the stream itself is not used.
func (s *Store) getTogether(ctx context.Context, items []item) map[uint64]stored {
	cfg := s.stream.CachedInfo().Config
	if len(items) < 4 || cfg.Replicas > 1 || !cfg.AllowDirect {
		return nil
	}
	numbers := make([]uint64, len(items))
	for i, it := range items {
		numbers[i] = it.number
	}
	slices.Sort(numbers)
	read := make(map[uint64]stored, len(numbers))
	for len(numbers) > 0 {
		n := 1
		for n < len(numbers) && numbers[n]-numbers[n-1] <= maxGap {
			n++
		}
		if n == 1 {
			numbers = numbers[1:]
			continue
		}
		last, err := s.batch(ctx, numbers[0], n, read)
		if err != nil {
			s.log.Debug("dead letters: a batch could not be read", "error", err)
			return read
		}
		// Among the n may be some that nobody wants, and the bytes of a batch are bounded.
		done, _ := slices.BinarySearch(numbers, last+1)
		numbers = numbers[max(done, 1):]
	}
	return read
}

// batch puts up to n messages from sequence first on into read. It returns the sequence up to which all that are there are read.
func (s *Store) batch(ctx context.Context, first uint64, n int, read map[uint64]stored) (last uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	nc := s.js.Conn()
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return 0, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	request, err := json.Marshal(map[string]any{"seq": first, "batch": n, "max_bytes": pageBytes})
	if err != nil {
		return 0, err
	}
	if err := nc.PublishRequest(s.apiPrefix()+"DIRECT.GET."+s.Name(), inbox, request); err != nil {
		return 0, err
	}
	last = first - 1
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return 0, err
		}
		if status := m.Header.Get("Status"); status != "" && len(m.Data) == 0 && m.Header.Get(jetstream.SequenceHeader) == "" {
			switch {
			case status == "404": // there is nothing from first on
				return math.MaxUint64 - 1, nil
			case status == "204":
				return last, nil
			}
			return 0, fmt.Errorf("direct get: %s %s", status, m.Header.Get("Description"))
		}
		sm, err := directMsg(m, s.Name())
		if err != nil {
			return 0, err
		}
		if sm.sequence <= last {
			return 0, errors.New("direct get: messages are out of order")
		}
		last = sm.sequence
		read[sm.sequence] = sm
	}
}

// directMsg takes apart what a direct get returned. The server adds its headers after those that are stored, and a dead letter has
// no stored ones of these names: relay keeps original headers named Nats-… under a prefix.
func directMsg(m *nats.Msg, stream string) (stored, error) {
	h := m.Header
	fail := func(name string) (stored, error) {
		return stored{}, fmt.Errorf("direct get: header %s: %q", name, h[name])
	}
	if v := h[jetstream.StreamHeader]; len(v) != 1 || v[0] != stream {
		return fail(jetstream.StreamHeader)
	}
	subject := h[jetstream.SubjectHeader]
	if len(subject) != 1 {
		return fail(jetstream.SubjectHeader)
	}
	if len(h[jetstream.SequenceHeader]) != 1 {
		return fail(jetstream.SequenceHeader)
	}
	seq, err := strconv.ParseUint(h[jetstream.SequenceHeader][0], 10, 64)
	if err != nil {
		return fail(jetstream.SequenceHeader)
	}
	if len(h[jetstream.TimeStampHeaer]) != 1 {
		return fail(jetstream.TimeStampHeaer)
	}
	at, err := time.Parse(time.RFC3339Nano, h[jetstream.TimeStampHeaer][0])
	if err != nil {
		return fail(jetstream.TimeStampHeaer)
	}
	for _, name := range []string{jetstream.StreamHeader, jetstream.SubjectHeader, jetstream.SequenceHeader, jetstream.TimeStampHeaer,
		"Nats-Num-Pending", jetstream.LastSequenceHeader} {
		delete(h, name)
	}
	return stored{subject: subject[0], sequence: seq, time: at, header: h, data: m.Data, size: len(m.Data)}, nil
}
