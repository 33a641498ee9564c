package retry

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/ownstream"
	"github.com/relaymq/relay/internal/requests"
	"github.com/relaymq/relay/internal/transient"
)

// Bucket is the key-value bucket that holds the records of all durables of a service.
type Bucket struct {
	js       jetstream.JetStream
	name     string
	replicas int // when it is made
	kv       jetstream.KeyValue
	stream   jetstream.Stream
	requests *requests.Requester // nil: keys are not written directly
	markers  atomic.Bool         // it takes markers that expire
	single   atomic.Bool         // it has one replica
	health   health
}

// markerTTL is how long a deleted record leaves a marker behind; a second is the least that the server takes.
const markerTTL = time.Second

// OpenBucket makes the bucket when it is missing.
func OpenBucket(ctx context.Context, js jetstream.JetStream, name string, replicas int) (*Bucket, error) {
	b := &Bucket{js: js, name: name, replicas: replicas}
	var err error
	if b.kv, err = b.make(ctx); err != nil {
		return nil, fmt.Errorf("bucket %s: %w", name, err)
	}
	if b.stream, err = js.Stream(ctx, b.streamName()); err != nil {
		return nil, fmt.Errorf("stream of bucket %s: %w", name, err)
	}
	b.Learn(b.stream.CachedInfo())
	if ownstream.APIPrefix(js) == jetstream.DefaultAPIPrefix { // in another domain keys have other subjects
		b.requests = requests.New(js.Conn())
	}
	return b, nil
}

// Close ends the subscription for the answers to what was written.
func (b *Bucket) Close() {
	if b.requests != nil {
		b.requests.Close()
	}
}

func (b *Bucket) streamName() string { return "KV_" + b.name }

// make opens it, or makes it.
func (b *Bucket) make(ctx context.Context) (jetstream.KeyValue, error) {
	return ownstream.OpenBucket(ctx, b.js, jetstream.KeyValueConfig{
		Bucket: b.name, Replicas: b.replicas,
		Description:    "relay: attempts of messages that failed and are not settled",
		LimitMarkerTTL: markerTTL,
	})
}

// Learn notes how the bucket's stream is kept now.
func (b *Bucket) Learn(info *jetstream.StreamInfo) {
	b.markers.Store(info.Config.AllowMsgTTL)
	b.single.Store(info.Config.Replicas == 1)
}

// get returns what a key holds and its revision, or jetstream.ErrKeyNotFound. The leader is asked: a replica that lags
// behind would answer with a count of attempts that is too low, or that there is none, and the message would be started more
// often than it may. nats.go asks whichever replica is quickest (a direct get), which is the leader when there is one only.
func (b *Bucket) get(ctx context.Context, key string) (value []byte, revision uint64, err error) {
	if err := b.health.usable(time.Now()); err != nil {
		return nil, 0, err
	}
	defer func() {
		if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
			b.health.failed(err)
		}
	}()
	if b.single.Load() {
		entry, err := b.kv.Get(ctx, key)
		if err != nil {
			return nil, 0, err
		}
		return entry.Value(), entry.Revision(), nil
	}
	return b.fromLeader(ctx, key)
}

func (b *Bucket) fromLeader(ctx context.Context, key string) (value []byte, revision uint64, err error) {
	m, revision, err := ownstream.LastFromLeader(ctx, b.js, b.streamName(), b.subject(key))
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return nil, 0, jetstream.ErrKeyNotFound
	case err != nil:
		return nil, 0, err
	case m.Header.Get("KV-Operation") != "" || m.Header.Get(jetstream.MarkerReasonHeader) != "":
		return nil, 0, jetstream.ErrKeyNotFound // what is left of a key that was deleted
	}
	return m.Data, revision, nil
}

// put writes a key whose revision is still this one; zero means that there is none.
func (b *Bucket) put(ctx context.Context, key string, value []byte, after uint64) (revision uint64, err error) {
	if err := b.health.usable(time.Now()); err != nil {
		return 0, err
	}
	revision, err = b.write(ctx, key, value, after, nil)
	switch {
	case after == 0 && (transient.Raced(err) || errors.Is(err, errIndirect)):
		revision, err = b.kv.Create(ctx, key, value) // it knows a key that was deleted from one that is there
	case errors.Is(err, errIndirect):
		revision, err = b.kv.Update(ctx, key, value, after)
	}
	if err == nil || transient.Raced(err) {
		b.health.wrote()
	} else {
		b.health.failed(err)
	}
	return revision, err
}

// errIndirect says that keys are not written directly.
var errIndirect = errors.New("the bucket is in another domain")

// write writes a message to a key whose revision is still this one. It is what nats.go's KeyValue does, but for how it is sent:
// see [requests.Requester].
func (b *Bucket) write(ctx context.Context, key string, value []byte, after uint64, header nats.Header) (revision uint64, err error) {
	if b.requests == nil {
		return 0, errIndirect
	}
	m := nats.NewMsg(b.subject(key))
	if header != nil {
		m.Header = header
	}
	m.Data = value
	m.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(after, 10)}
	answer, err := b.requests.Publish(ctx, m)
	if err == nil && answer.Stream != b.streamName() {
		err = fmt.Errorf("bucket %s: another stream, %s, stored %s", b.name, answer.Stream, m.Subject)
	}
	return answer.Sequence, err
}

// remove ends a key up to the revision that was seen; a later one by another instance stays. A marker that expires is a
// publish like any other; the API, which a bucket without them needs, takes some thousand requests a second from all clients
// together.
func (b *Bucket) remove(ctx context.Context, key string, revision uint64) error {
	if err := b.health.usable(time.Now()); err != nil {
		return err
	}
	if b.markers.Load() {
		// Not by a purge: the server looks through the stream for each. The marker takes the place of what it deletes, since the
		// bucket keeps one message of a key.
		_, err := b.write(ctx, key, nil, revision, nats.Header{"KV-Operation": {"DEL"}, jetstream.MsgTTLHeader: {markerTTL.String()}})
		if errors.Is(err, errIndirect) {
			err = b.kv.Purge(ctx, key, jetstream.LastRevision(revision), jetstream.PurgeTTL(markerTTL))
		}
		if transient.Raced(err) {
			return nil
		}
		if err != nil {
			b.health.failed(err)
		}
		return err
	}
	return b.stream.Purge(ctx, jetstream.WithPurgeSubject(b.subject(key)), jetstream.WithPurgeSequence(revision+1))
}

func (b *Bucket) subject(key string) string { return "$KV." + b.name + "." + key }
