package retry

import (
	"context"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/kvwatch"
	"github.com/relaymq/relay/internal/transient"
)

// What waits for its retry, for those who look from outside: messages that wait in their durable have a record, parked ones
// are in the retry stream.

// Waiting is a message that failed and waits in its durable.
type Waiting struct {
	Stream, Durable string
	Made            time.Time // when the durable was made: one of the same name may be there by now
	Sequence        uint64
	Record
	Err error // the record cannot be read: that is all that is known
}

// ListWaiting lists what waits in the durable of that name on the stream; empty names mean all. It holds one record at a time,
// and ends when yield returns false.
func ListWaiting(ctx context.Context, js jetstream.JetStream, bucket, stream, durable string, yield func(Waiting) bool) error {
	kv, err := js.KeyValue(ctx, bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("bucket %s: %w", bucket, err)
	}
	token := func(name string) string {
		if name == "" {
			return "*"
		}
		return keyToken(name)
	}
	for e, err := range kvwatch.All(ctx, kv, token(stream)+"."+token(durable)+".*.*") {
		if err != nil {
			return fmt.Errorf("bucket %s: %w", bucket, err)
		}
		if !yield(waiting(e)) {
			return nil
		}
	}
	return nil
}

func waiting(e jetstream.KeyValueEntry) (w Waiting) {
	parts := strings.Split(e.Key(), ".")
	w.Stream, w.Durable = tokenName(parts[0]), tokenName(parts[1])
	if ns, err := strconv.ParseInt(parts[2], 36, 64); err == nil {
		w.Made = time.Unix(0, ns).UTC()
	}
	if w.Sequence, w.Err = strconv.ParseUint(parts[3], 10, 64); w.Err == nil {
		w.Err = json.Unmarshal(e.Value(), &w.Record)
	}
	return w
}

// tokenName is the reverse of keyToken.
func tokenName(token string) string {
	if coded, ok := strings.CutPrefix(token, "="); ok {
		if name, err := base32.HexEncoding.WithPadding(base32.NoPadding).DecodeString(coded); err == nil {
			return string(name)
		}
	}
	return token
}

// Parked is a message that waits in the retry stream.
type Parked struct {
	Origin
	Header nats.Header // the original ones
	Data   []byte
	Number uint64 // in the retry stream
	Err    error  // what is there cannot be read: only Number is known

	raw *nats.Msg
}

// Handed tells whether it lies where it was handed over, as a replay or by [Stream.Bring]. Ledgers count that it came when it is delivered, which
// may not have been yet.
func (p Parked) Handed() bool {
	subj := p.raw.Header.Get(jetstream.SubjectHeader)
	return IsReplay(subj) || IsBrought(subj)
}

// Wrapped are its headers as they are stored.
func (p Parked) Wrapped() nats.Header { return p.raw.Header }

// ListParked lists what is parked for a route (empty: all), in the order in which it was parked, a page of a few MiB at a time, up to
// what was there at the time of the call. It ends when yield returns false.
func (r *Stream) ListParked(ctx context.Context, route string, yield func(Parked) bool) error {
	stream, err := r.js.Stream(ctx, r.name)
	if err != nil {
		return fmt.Errorf("stream %s: %w", r.name, err)
	}
	subjects := r.service + ".park.>"
	if route != "" {
		subjects = r.service + ".park." + route + ".>"
	}
	last := stream.CachedInfo().State.LastSeq
	for next := uint64(1); next > 0 && next <= last; {
		var page []*nats.Msg
		if page, next, err = r.readFrom(ctx, subjects, next); err != nil {
			return err
		}
		for _, m := range page {
			p := Parked{Number: parkedSequence(m), Data: m.Data, raw: m}
			if p.Number > last {
				return nil
			}
			p.Origin, p.Header, p.Err = Unwrap(m.Header)
			if !yield(p) {
				return nil
			}
		}
	}
	return nil
}

// ErrFired says that a parked message is not parked any more: it came due, or somebody else was faster.
var ErrFired = errors.New("the message does not wait any more: it came due, or somebody else moved it")

// Hasten makes a parked message due at due, instead of when it was. The schedule is replaced in one step, on the condition
// that it is still the one that was read, so it neither gets lost nor fires twice. It returns the number that it has then, and
// [ErrFired] if it was not there any more.
func (r *Stream) Hasten(ctx context.Context, p Parked, due time.Time) (number uint64, err error) {
	c := &nats.Msg{Subject: p.raw.Header.Get(jetstream.SubjectHeader), Header: parkedHeader(p.raw), Data: p.Data}
	c.Header.Set("Nats-Schedule", "@at "+due.UTC().Format(time.RFC3339Nano))
	setTime(c.Header, headerDue, due) // relay would wait for the rest of the old one
	ack, err := r.js.PublishMsg(ctx, c, jetstream.WithExpectStream(r.name), jetstream.WithExpectLastSequencePerSubject(p.Number))
	switch {
	case transient.Raced(err):
		return 0, ErrFired
	case err != nil:
		return 0, err
	}
	return ack.Sequence, nil
}

// Unpark removes a parked message for good, by the number that [Stream.Hasten] returned.
func (r *Stream) Unpark(ctx context.Context, number uint64) error {
	stream, err := r.js.Stream(ctx, r.name)
	if err == nil {
		err = stream.DeleteMsg(ctx, number)
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", r.name, err)
	}
	return nil
}
