package dlq

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// stored is a message as a stream has it.
type stored struct {
	subject  string
	sequence uint64
	time     time.Time
	header   nats.Header
	data     []byte // nil when headersOnly
	size     int    // of data
}

// query says what pages reads.
type query struct {
	subject     string // filter; empty: all
	after       uint64
	since       time.Time // instead of after
	last        uint64    // the last sequence to read; 0: to the end
	headersOnly bool
	page        int
}

// pageBytes is about how much a page with bodies may hold.
const pageBytes = 8 << 20

// listTries is how often in a row a consumer may break off without a message, and listWait times the count of tries is the
// pause between two.
const (
	listTries = 5
	listWait  = 100 * time.Millisecond
)

// merge calls yield with what pages reads for each of the subjects (none: all), in the order of the stream. One consumer with
// several filters would do the same, but nats-server 2.15.2 has its fast search for a single filter only: with two it looks
// at every message of the stream.
func (s *Store) merge(ctx context.Context, stream jetstream.Stream, q query, subjects []string, yield func(stored) bool) error {
	if len(subjects) <= 1 {
		q.subject = strings.Join(subjects, "")
		return s.pages(ctx, stream, q, yield)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	q.page = max(q.page/len(subjects), 1)
	type source struct {
		next  func() (stored, error, bool)
		first stored
	}
	var sources []source
	for _, subj := range subjects {
		q.subject = subj
		next, stop := iter.Pull2(s.sequence(ctx, stream, q))
		defer stop()
		m, err, ok := next()
		if err != nil {
			return err
		}
		if ok {
			sources = append(sources, source{next, m})
		}
	}
	for len(sources) > 0 {
		oldest := 0
		for i := range sources {
			if sources[i].first.sequence < sources[oldest].first.sequence {
				oldest = i
			}
		}
		if !yield(sources[oldest].first) {
			return nil
		}
		m, err, ok := sources[oldest].next()
		if err != nil {
			return err
		}
		if sources[oldest].first = m; !ok {
			sources = slices.Delete(sources, oldest, oldest+1)
		}
	}
	return nil
}

// sequence is pages as an iterator. An error is its last pair.
func (s *Store) sequence(ctx context.Context, stream jetstream.Stream, q query) iter.Seq2[stored, error] {
	return func(yield func(stored, error) bool) {
		stopped := false
		err := s.pages(ctx, stream, q, func(m stored) bool {
			stopped = !yield(m, nil)
			return !stopped
		})
		if err != nil && !stopped {
			yield(stored{}, err)
		}
	}
}

// pages reads a stream in order and calls yield until it returns false.
//
// nats.go has no batches of direct gets, and those cannot leave out bodies, so this pulls from a consumer without acks. Such
// a consumer forgets what it sent: a message that was lost on the way to a client that reconnected would be missing without
// a sign. So the consumer's own numbering must be without gaps, its last number must have arrived, and otherwise a new
// consumer goes on after the last message that did. The same heals a consumer that the server removed while yield took
// its time.
func (s *Store) pages(ctx context.Context, stream jetstream.Stream, q query, yield func(stored) bool) error {
	for tries := 0; ; {
		before := q.after
		done, err := s.pull(ctx, stream, &q, yield)
		if done || ctx.Err() != nil {
			return or(ctx, err)
		}
		if q.after > before {
			tries = 0
		}
		if tries++; tries >= listTries || errors.Is(err, ErrNoStream) {
			return classify(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(tries) * listWait):
		}
	}
}

var errIncomplete = errors.New("messages were lost between server and client")

// pull reads with one consumer and moves q.after. done means that there is no more to read or that yield had enough. An
// error is [ErrNoStream] only if no consumer could be made: nobody answers for a consumer that is gone, either.
func (s *Store) pull(ctx context.Context, stream jetstream.Stream, q *query, yield func(stored) bool) (done bool, err error) {
	consumer, remove, err := s.reader(ctx, stream, *q)
	if err != nil {
		return false, classify(err)
	}
	defer remove()
	received := uint64(0)
	take := func(m jetstream.Msg) (done bool, err error) {
		md, err := m.Metadata()
		if err != nil {
			return false, err
		}
		if md.Sequence.Consumer != received+1 {
			return false, errIncomplete
		}
		received++
		if q.last != 0 && md.Sequence.Stream > q.last {
			return true, nil
		}
		q.after = md.Sequence.Stream
		sm := stored{subject: m.Subject(), sequence: md.Sequence.Stream, time: md.Timestamp, header: m.Headers(), data: m.Data(), size: len(m.Data())}
		if q.headersOnly {
			sm.size, _ = strconv.Atoi(sm.header.Get(nats.MsgSize))
		}
		return !yield(sm) || q.after == q.last, nil
	}
	// ended tells whether the consumer has sent everything and all of it arrived.
	ended := func() (bool, error) {
		info, err := consumer.Info(ctx)
		if err == nil && info.Delivered.Consumer != received {
			err = errIncomplete
		}
		return err == nil && info.NumPending == 0, err
	}
	for ctx.Err() == nil {
		batch, err := consumer.FetchNoWait(q.page)
		if err != nil {
			return false, err
		}
		got := received
		for m := range batch.Messages() {
			if done, err := take(m); done || err != nil {
				return done, err
			}
		}
		if err := batch.Error(); err != nil {
			return false, err
		}
		if got != received {
			continue
		}
		if done, err := ended(); done || err != nil {
			return done, err
		}
	}
	return false, context.Cause(ctx)
}

// reader makes a consumer for a query, and returns how to remove it.
func (s *Store) reader(ctx context.Context, stream jetstream.Stream, q query) (consumer jetstream.Consumer, remove func(), err error) {
	cfg := jetstream.ConsumerConfig{
		AckPolicy:         jetstream.AckNonePolicy,
		DeliverPolicy:     jetstream.DeliverAllPolicy,
		HeadersOnly:       q.headersOnly,
		MemoryStorage:     true,
		Replicas:          1,
		InactiveThreshold: 5 * time.Minute,
	}
	if q.subject != "" {
		// Not FilterSubject: nats.go puts that one into the subject of a request, and it may be too long for one.
		cfg.FilterSubjects = []string{q.subject}
	}
	switch {
	case q.after > 0:
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, q.after+1
	case !q.since.IsZero():
		cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &q.since
	}
	consumer, err = stream.CreateConsumer(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	name := consumer.CachedInfo().Name
	return consumer, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
		defer cancel()
		if err := stream.DeleteConsumer(ctx, name); err != nil {
			s.log.Debug("dead letters: a listing's consumer is left to expire", "consumer", name, "error", err)
		}
	}, nil
}
