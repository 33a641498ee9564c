package ack

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// dedupeWindow is how long the retry stream knows a message id: a replay that is repeated within it reaches its route
// once.
const dedupeWindow = 10 * time.Minute

// RetryStream is where messages wait outside their consumer, and where replayed ones reach their route: a work queue with
// message schedules (nats-server 2.12 or later).
//
//	<service>.park.<route>.<stream>.<seq>-<ns>   a schedule; one a message, a second one replaces the first
//	<service>.due.<route>.<unique>               due now, delivered by the route's own consumer
//
// The stream has no limits of its own: schedules refuse to discard new messages, and discarding old ones would lose
// them.
type RetryStream struct {
	js      jetstream.JetStream
	service string
	name    string
	full    atomic.Int64 // messages in the stream as last seen
	asked   atomic.Int64 // when, in Unix nanoseconds
}

// OpenRetryStream makes the stream, named by the upper-case service, when it is missing.
func OpenRetryStream(ctx context.Context, js jetstream.JetStream, service, name string, replicas int) (*RetryStream, error) {
	_, err := js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		_, err = js.CreateStream(ctx, jetstream.StreamConfig{
			Name:              name,
			Description:       "relay: messages that wait for their retry, and replayed ones",
			Subjects:          []string{service + ".park.>", service + ".due.>"},
			Retention:         jetstream.WorkQueuePolicy,
			Storage:           jetstream.FileStorage,
			Replicas:          replicas,
			AllowMsgSchedules: true,
			AllowDirect:       true,
			Duplicates:        dedupeWindow,
		})
	}
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", name, err)
	}
	return &RetryStream{js: js, service: service, name: name}, nil
}

// Name of the stream.
func (r *RetryStream) Name() string { return r.name }

// DueSubjects is the filter of a route's own consumer on the stream.
func (r *RetryStream) DueSubjects(route string) string { return r.service + ".due." + route + ".>" }

// ErrParkFull says that as many messages wait in the retry stream as the route allows.
var ErrParkFull = errors.New("the retry stream is full")

// Park stores the message to come back on its route when due is over, which becomes o.Due, and returns when the server has it. The same
// origin parked twice replaces the first. It returns [ErrParkFull] when limit messages wait already (looked up about
// once a second), and nats.ErrMaxPayload when the message with its headers is too large.
func (r *RetryStream) Park(ctx context.Context, o Origin, header nats.Header, data []byte, due time.Time, limit int) error {
	n, err := r.Messages(ctx)
	if err != nil {
		return err
	}
	if n >= int64(limit) {
		return ErrParkFull
	}
	o.Due = due
	id := fmt.Sprintf("%d-%d", o.Sequence, o.Time.UnixNano())
	m := &nats.Msg{
		Subject: fmt.Sprintf("%s.park.%s.%s.%s", r.service, o.Route, o.Stream, id),
		Header:  Wrap(o, header),
		Data:    data,
	}
	// jetstream.WithScheduleAt truncates to seconds and fires early; the server takes nanoseconds.
	m.Header.Set("Nats-Schedule", "@at "+due.UTC().Format(time.RFC3339Nano))
	m.Header.Set("Nats-Schedule-Target", fmt.Sprintf("%s.due.%s.%s-%s-%d", r.service, o.Route, o.Stream, id, o.Attempts))
	ack, err := r.js.PublishMsg(ctx, m, jetstream.WithExpectStream(r.name))
	if err != nil {
		return err
	}
	if ack.Stream != r.name {
		return fmt.Errorf("parked in stream %s instead of %s", ack.Stream, r.name)
	}
	return nil
}

// Messages is the number of messages in the stream, of all routes, asked at most once a second.
func (r *RetryStream) Messages(ctx context.Context) (int64, error) {
	now := time.Now().UnixNano()
	last := r.asked.Load()
	if now-last < int64(time.Second) || !r.asked.CompareAndSwap(last, now) {
		return r.full.Load(), nil
	}
	s, err := r.js.Stream(ctx, r.name)
	if err != nil {
		return 0, err
	}
	n := int64(s.CachedInfo().State.Msgs)
	r.full.Store(n)
	return n, nil
}
