package dlq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
// It pulls from a consumer without acks, which can leave out bodies. Such a consumer forgets what it sent: a message that was
// lost on the way to a client that reconnected would be missing without a sign. So the consumer's own numbering must be
// without gaps, its last number must have arrived, and otherwise a new consumer goes on after the last message that did. The
// same heals a consumer that the server removed while yield took its time.
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

const (
	// pullsAhead is how many pages are asked for before they are needed, so that the server has one ready while the last one is
	// looked at.
	pullsAhead = 2
	// firstPull is the size of the first requests; the later ones are larger, up to a page. Many a caller wants the first entry only.
	firstPull = 32
	// pullExpiry is how long the server keeps a request that it cannot fill.
	pullExpiry = 30 * time.Second
	// pullIdle is the silence after which the consumer is asked whether it is at its end.
	pullIdle = 200 * time.Millisecond
	// maxSilences is how often it may say in a row that it is not; on a stream of millions it may look for the next message for a while.
	maxSilences = 150
	// askAgain is after how many the requests count as lost, with a leader that was killed perhaps.
	askAgain = 15
	// maxStatuses is how many requests may come to nothing in a row.
	maxStatuses = 10
)

// pull reads with one consumer and moves q.after. done means that there is no more to read or that yield had enough. An
// error is [ErrNoStream] only if no consumer could be made: nobody answers for a consumer that is gone, either.
//
// The requests are its own. Fetch of nats.go has one at a time, so that server and client take turns, and two goroutines and
// a timer for each message: a million of them took it half as long again. Direct gets of batches, as orbit.go has them, take twice
// as long as this (BenchmarkList), and bring no headers without the bodies.
func (s *Store) pull(ctx context.Context, stream jetstream.Stream, q *query, yield func(stored) bool) (done bool, err error) {
	consumer, remove, err := s.reader(ctx, stream, *q)
	if err != nil {
		return false, classify(err)
	}
	defer remove()
	info := consumer.CachedInfo()
	if info.NumPending == 0 {
		return true, nil
	}
	nc := s.js.Conn()
	inbox := nc.NewInbox()
	// A message that does not fit is lost, and the loss is noticed. There is room for late answers to requests that were given up.
	messages := make(chan *nats.Msg, 2*pullsAhead*q.page+16)
	sub, err := nc.ChanSubscribe(inbox, messages)
	if err != nil {
		return false, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	call := s.apiPrefix() + "CONSUMER.MSG.NEXT." + info.Stream + "." + info.Name
	request := pullRequest{Batch: min(q.page, firstPull), Expires: pullExpiry}
	if !q.headersOnly {
		request.MaxBytes = max(pageBytes, int(nc.MaxPayload())+64<<10) // one message fits always
	}
	received, wanted := uint64(0), 0 // wanted is how many are under way, at most
	idle := time.NewTimer(pullIdle)
	defer idle.Stop()
	silences, statuses := 0, 0 // since the last message
	for {
		if received >= uint64(pullsAhead*request.Batch) {
			request.Batch = min(q.page, 4*request.Batch)
		}
		for wanted <= (pullsAhead-1)*request.Batch {
			data, err := json.Marshal(request)
			if err == nil {
				err = nc.PublishRequest(call, inbox, data)
			}
			if err != nil {
				return false, err
			}
			wanted += request.Batch
		}
		var m *nats.Msg
		select {
		case m = <-messages:
		default:
			idle.Reset(pullIdle)
			select {
			case m = <-messages:
			case <-ctx.Done():
				return false, context.Cause(ctx)
			case <-idle.C:
				// The last ones were removed meanwhile, or something was lost.
				info, err := answered(ctx, s.timeout, consumer.Info)
				switch {
				case err != nil:
					return false, err
				case len(messages) > 0:
				case nc.IsClosed():
					return false, nats.ErrConnectionClosed
				case info.Delivered.Consumer != received:
					return false, errIncomplete
				case info.NumPending == 0:
					return true, nil
				default:
					switch silences++; {
					case silences > maxSilences:
						return false, nats.ErrTimeout
					case silences == askAgain:
						wanted = 0 // there is room for what comes if they were not
					}
				}
				continue
			}
		}
		header := m.Header
		if m.Reply == "" { // a status: a request came to its end, mostly by its time or its bytes
			status := header.Get("Status")
			if statuses++; status != "408" && status != "409" || statuses > maxStatuses {
				return false, fmt.Errorf("pull: %s %s", status, header.Get("Description"))
			}
			if left, err := strconv.Atoi(header.Get("Nats-Pending-Messages")); err == nil {
				wanted -= left // 0 of a batch that was completed with bytes to spare
			} else {
				wanted = 0
			}
			continue
		}
		md, err := m.Metadata()
		if err != nil {
			return false, err
		}
		if md.Sequence.Consumer != received+1 {
			return false, errIncomplete
		}
		received++
		wanted--
		silences, statuses = 0, 0
		if q.last != 0 && md.Sequence.Stream > q.last {
			return true, nil
		}
		q.after = md.Sequence.Stream
		sm := stored{subject: m.Subject, sequence: md.Sequence.Stream, time: md.Timestamp, header: header, data: m.Data, size: len(m.Data)}
		if q.headersOnly {
			sm.size, _ = strconv.Atoi(header.Get(nats.MsgSize))
		}
		if !yield(sm) || q.after == q.last || md.NumPending == 0 {
			return true, nil
		}
	}
}

// pullRequest is what CONSUMER.MSG.NEXT takes.
type pullRequest struct {
	Batch    int           `json:"batch"`
	Expires  time.Duration `json:"expires"`
	MaxBytes int           `json:"max_bytes,omitempty"`
}

// answered is a call to the server that ends after timeout. A request that a leader took before it was lost is never answered,
// and nats.go waits for the answer as long as ctx allows.
func answered[T any](ctx context.Context, timeout time.Duration, call func(context.Context) (T, error)) (T, error) {
	one, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	v, err := call(one)
	if ctx.Err() == nil && one.Err() != nil && err != nil {
		err = fmt.Errorf("no answer in %v: %w", timeout, nats.ErrTimeout)
	}
	return v, err
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
	consumer, err = answered(ctx, s.timeout, func(ctx context.Context) (jetstream.Consumer, error) { return stream.CreateConsumer(ctx, cfg) })
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
