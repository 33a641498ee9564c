package retry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/ownstream"
	"github.com/relaymq/relay/internal/teeth"
	"github.com/relaymq/relay/internal/transient"
)

// dedupeWindow is how long the retry stream knows a message id: a replay that is repeated within it reaches its route
// once.
const dedupeWindow = 10 * time.Minute

// Stream is where messages wait outside their consumer, and where replayed ones reach their route: a work queue with
// message schedules (nats-server 2.12 or later).
//
//	<service>.park.<route>.<stream>.<seq>-<ns>   a schedule; one a message, and one with more attempts replaces it
//	<service>.due.<route>.<stream>.<seq>-<ns>    the same when its time has come, delivered by the consumer of the route for that stream
//	<service>.due.<route>.<stream>.<unique>      due at once: a replay, or what its durable had passed
//
// A message that is parked has a copy on one of the first two subjects from then until it is done or dead: the next copy is stored before
// the delivery of the one before is acknowledged. See [Stream.Ahead].
//
// The stream that a message comes from is in both: two deployments may have a route of the same name, each for a stream
// of its own, and neither may get what the other one parked.
//
// The server has no bounds for the stream: one with schedules refuses to refuse new messages, and discarding old ones would lose
// them. [Room] bounds it.
type Stream struct {
	js      jetstream.JetStream
	service string
	name    string
	full    atomic.Int64 // messages in the stream as last seen
	bytes   atomic.Int64 // their size then, and that of what was parked here since
	asked   atomic.Int64 // when, in Unix nanoseconds
}

// OpenStream makes the stream, named by the upper-case service, when it is missing.
func OpenStream(ctx context.Context, js jetstream.JetStream, service, name string, replicas int) (*Stream, error) {
	_, err := js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		_, err = js.CreateStream(ctx, StreamConfig(service, name, replicas))
	}
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", name, err)
	}
	return &Stream{js: js, service: service, name: name}, nil
}

// StreamConfig is what the stream has to be.
func StreamConfig(service, name string, replicas int) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              name,
		Description:       "relay: messages that wait for their retry, and replayed ones",
		Subjects:          []string{service + ".park.>", service + ".due.>"},
		Retention:         jetstream.WorkQueuePolicy,
		Storage:           jetstream.FileStorage,
		Replicas:          replicas,
		AllowMsgSchedules: true,
		AllowDirect:       true,
		Duplicates:        dedupeWindow,
	}
}

// AttachStream is the stream as it is. The error is jetstream.ErrStreamNotFound when there is none.
func AttachStream(ctx context.Context, js jetstream.JetStream, service, name string) (*Stream, error) {
	if _, err := js.Stream(ctx, name); err != nil {
		return nil, fmt.Errorf("stream %s: %w", name, err)
	}
	return &Stream{js: js, service: service, name: name}, nil
}

// NamedStream is the stream, whether it is there or not: for whoever only asks for names. Nothing is asked of the server.
func NamedStream(js jetstream.JetStream, service, name string) *Stream {
	return &Stream{js: js, service: service, name: name}
}

// Name of the stream.
func (r *Stream) Name() string { return r.name }

// DueSubjects is the filter of the consumer from which a route gets what comes due of a stream.
func (r *Stream) DueSubjects(route, stream string) string {
	return r.service + ".due." + route + "." + stream + ".>"
}

// DueDurable is the name of that consumer.
func DueDurable(route, stream string) string { return route + "--" + stream }

// NoRoute stands in the place of a route's name for messages that no route wants. No route can have this name.
const NoRoute = "~"

// Room is how much may be in the retry stream. Zero of either means no bound.
type Room struct {
	Messages int
	Bytes    int64 // as the server counts them: with subjects, headers and some 30 bytes of its own for each
}

// ErrParkFull says that as much waits in the retry stream as may.
var ErrParkFull = errors.New("the retry stream is full")

// Park stores the message to come back on its route when due is over, which becomes o.Due, and returns when the server has it. Own is the
// number of the delivery that it takes the place of, as [Stream.Own] tells. Another copy of the message with as many attempts or more
// counts as this one, and is left alone; one with fewer is replaced, wherever it waits. It returns [ErrParkFull] when as much waits already as may, and nats.ErrMaxPayload when the
// message with its headers is too large. How much waits is looked up about once a second: instances that park at once may go beyond
// the room by what they park in a second.
func (r *Stream) Park(ctx context.Context, o Origin, header nats.Header, data []byte, due time.Time, room Room, own uint64) error {
	n, err := r.Messages(ctx)
	if err != nil {
		return err
	}
	if room.Messages > 0 && n >= int64(room.Messages) || room.Bytes > 0 && r.bytes.Load() >= room.Bytes {
		return ErrParkFull
	}
	o.Due = due
	return r.park(ctx, o, Wrap(o, header), data, due, own)
}

// Forward parks a message that was wrapped before, under the route and stream of o, with the headers as they are. It is
// due at once.
func (r *Stream) Forward(ctx context.Context, o Origin, wrapped nats.Header, data []byte) error {
	header := make(nats.Header, len(wrapped)+2)
	for name, values := range wrapped {
		if !hasPrefixFold(name, "Nats-") { // what the server added is not the message's
			header[name] = values
		}
	}
	return r.park(ctx, o, header, data, time.Now(), 0)
}

func (r *Stream) park(ctx context.Context, o Origin, wrapped nats.Header, data []byte, due time.Time, own uint64) error {
	m := &nats.Msg{
		Subject: fmt.Sprintf("%s.park.%s.%s.%s", r.service, o.Route, o.Stream, o.token()),
		Header:  wrapped,
		Data:    data,
	}
	// jetstream.WithScheduleAt truncates to seconds and fires early; the server takes nanoseconds.
	m.Header.Set("Nats-Schedule", "@at "+due.UTC().Format(time.RFC3339Nano))
	m.Header.Set("Nats-Schedule-Target", r.dueSubject(o))
	return r.store(ctx, m, o, own)
}

// token tells a message from all others of its route and stream. A durable that has not the name of its route stands before it, as two durables of a route may
// have the same message, one after the other, and so does that of what no route wants.
func (o Origin) token() string {
	token := fmt.Sprintf("%d-%d", o.Sequence, o.Time.UnixNano())
	if o.Consumer != o.Route {
		return o.Consumer + "~" + token
	}
	return token
}

func (r *Stream) dueSubject(o Origin) string {
	return fmt.Sprintf("%s.due.%s.%s.%s", r.service, o.Route, o.Stream, o.token())
}

// copies matches where the copies of a message are, parked or due.
func (r *Stream) copies(o Origin) string {
	return fmt.Sprintf("%s.*.%s.%s.%s", r.service, o.Route, o.Stream, o.token())
}

// Own is the number that what is stored on a subject, at a sequence, has among the copies of a message; zero for what is none: it is from the
// message's stream, or from another subject of this one.
func (r *Stream) Own(subject string, sequence uint64, o Origin) uint64 {
	if subject == r.dueSubject(o) {
		return sequence
	}
	return 0
}

// Ahead tells whether another copy of the message is parked or due with as many attempts as o or more. Then this delivery is an old one that
// came again, because its ack was lost. The leader is asked, with one request: a copy that comes due meanwhile is seen before or after.
func (r *Stream) Ahead(ctx context.Context, o Origin, own uint64) (bool, error) {
	at, ahead, err := r.lastCopy(ctx, o)
	return ahead && at != own, err
}

// lastCopy finds the copy that was stored last, and tells whether it has as many attempts as o or more. Zero: there is none.
func (r *Stream) lastCopy(ctx context.Context, o Origin) (at uint64, ahead bool, err error) {
	m, at, err := ownstream.LastFromLeader(ctx, r.js, r.name, r.copies(o))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	c, err := UnwrapOrigin(m.Header)
	switch {
	case err != nil:
		return 0, false, fmt.Errorf("%s: %w", m.Subject, err)
	case c.Consumer != o.Consumer:
		return 0, false, fmt.Errorf("subject %s is in use: durable %s has parked the same message as durable %s", m.Subject, c.Consumer, o.Consumer)
	}
	return at, c.Replay > o.Replay || c.Replay == o.Replay && c.Attempts >= o.Attempts, nil
}

const (
	// storeTries bounds how often a copy is stored that is refused, and storeWait times the count of tries is the pause after one: a
	// replicated stream refuses a copy as soon as a rival is proposed, which is before that can be read.
	storeTries = 6
	storeWait  = 20 * time.Millisecond
	// readBack bounds how long is asked whether a copy is stored whose confirmation did not come in time.
	readBack = time.Second
)

// store publishes a copy on the condition that own is still the last one of its message. The server checks that in one step with storing
// it, whichever of the subjects the others are on. A refusal or a time-out proves nothing, so what is there is read: it may be this copy, or one with
// as many attempts, which is as good. One with fewer is replaced on the same condition.
func (r *Stream) store(ctx context.Context, m *nats.Msg, o Origin, own uint64) error {
	after := own
	for try := 1; ; try++ {
		opts := []jetstream.PublishOpt{jetstream.WithExpectStream(r.name)}
		if !teeth.Copies() {
			opts = append(opts, jetstream.WithExpectLastSequenceForSubject(after, r.copies(o)))
		}
		ack, err := transient.Ask(ctx, r.js.Conn(), func(ctx context.Context) (*jetstream.PubAck, error) { return r.js.PublishMsg(ctx, m, opts...) })
		switch {
		case err == nil && ack.Stream != r.name:
			return fmt.Errorf("parked in stream %s instead of %s", ack.Stream, r.name)
		case err == nil:
			r.bytes.Add(int64(m.Size()))
			return nil
		case errors.Is(err, nats.ErrMaxPayload):
			return err
		}
		back, cancel := context.WithTimeout(context.WithoutCancel(ctx), readBack)
		at, ahead, unread := r.lastCopy(back, o)
		cancel()
		switch {
		case unread != nil:
			return fmt.Errorf("%w (and the stored message cannot be read: %w)", err, unread)
		case ahead && at != own:
			return nil
		case !transient.Raced(err) || try == storeTries || ctx.Err() != nil:
			return err
		}
		if at == after { // a rival is on its way
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(try) * storeWait):
			}
		}
		after = at
	}
}

// Bring stores a message for its route, due at once, that nobody has delivered to it: its durable had passed it. The same origin brought again within
// the duplicate window of the stream is one message, and one of which a copy is parked or due stays that copy. It returns [ErrParkFull] and nats.ErrMaxPayload as [Stream.Park] does.
func (r *Stream) Bring(ctx context.Context, o Origin, header nats.Header, data []byte, room Room) error {
	n, err := r.Messages(ctx)
	if err != nil {
		return err
	}
	if room.Messages > 0 && n >= int64(room.Messages) || room.Bytes > 0 && r.bytes.Load() >= room.Bytes {
		return ErrParkFull
	}
	m := &nats.Msg{
		Subject: r.dueSubject(o) + "-" + brought,
		Header:  Wrap(o, header), Data: data,
	}
	m.Header.Set(jetstream.MsgIDHeader, "brought-"+o.ID())
	return r.store(ctx, m, o, 0)
}

// brought is at the end of the subjects of what [Stream.Bring] stores.
const brought = "b0"

// IsBrought tells whether a due subject is one of [Stream.Bring].
func IsBrought(subject string) bool { return strings.HasSuffix(subject, "-"+brought) }

// IsReplay tells whether a due subject is one on which the dead letters hand over, <seq>-<ns>-r<count>.
func IsReplay(subject string) bool {
	i := strings.LastIndexByte(subject, '-')
	return i >= 0 && strings.HasPrefix(subject[i+1:], "r")
}

// Messages is the number of messages in the stream, of all routes, asked at most once a second.
func (r *Stream) Messages(ctx context.Context) (int64, error) {
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
	r.bytes.Store(int64(s.CachedInfo().State.Bytes))
	return n, nil
}
