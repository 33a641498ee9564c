package audit

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/kvwatch"
	"github.com/relaymq/relay/internal/ownstream"
	"github.com/relaymq/relay/internal/transient"
)

// Book is the bucket <SERVICE>_LEDGER.
type Book struct {
	nc *nats.Conn
	kv jetstream.KeyValue
}

// Bucket is its name.
func Bucket(service string) string { return strings.ToUpper(service) + "_LEDGER" }

// Open opens the bucket, and makes it when it is missing.
func Open(ctx context.Context, js jetstream.JetStream, service string, replicas int) (*Book, error) {
	kv, err := ownstream.OpenBucket(ctx, js, jetstream.KeyValueConfig{
		Bucket: Bucket(service), Replicas: max(replicas, 1), Description: "relay: what came in and what became of it, for each durable",
	})
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", Bucket(service), err)
	}
	return &Book{js.Conn(), kv}, nil
}

// Attach opens the bucket. The error is [jetstream.ErrBucketNotFound] when no instance ever ran.
func Attach(ctx context.Context, js jetstream.JetStream, service string) (*Book, error) {
	kv, err := js.KeyValue(ctx, Bucket(service))
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", Bucket(service), err)
	}
	return &Book{js.Conn(), kv}, nil
}

var plain = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// key is that of a durable's record. Streams may have names that keys may not.
func key(stream, durable string) string {
	if !plain.MatchString(stream) {
		stream = "=" + base64.RawURLEncoding.EncodeToString([]byte(stream))
	}
	return stream + "." + durable
}

const catchUp = "catchup."

// CatchUpKey is that of what a durable has passed and is handed over, which is kept beside its record.
func CatchUpKey(stream, durable string) string { return catchUp + key(stream, durable) }

// CatchUpKeys are all of them.
const CatchUpKeys = catchUp + ">"

// KV is the bucket itself.
func (b *Book) KV() jetstream.KeyValue { return b.kv }

// Get is the record of a durable. The error is [jetstream.ErrKeyNotFound] when there is none, and [ErrNewer].
func (b *Book) Get(ctx context.Context, stream, durable string) (*Record, error) {
	e, err := b.kv.Get(ctx, key(stream, durable))
	if err != nil {
		return nil, err
	}
	r, err := parse(e.Value())
	if err != nil {
		return nil, err
	}
	r.revision = e.Revision()
	return r, nil
}

// List is all records but those that cannot be read, which bad names, with why.
func (b *Book) List(ctx context.Context) (all []*Record, bad map[string]error, err error) {
	bad = map[string]error{}
	for e, err := range kvwatch.All(ctx, b.kv, ">") {
		if err != nil {
			return nil, nil, err
		}
		if strings.HasPrefix(e.Key(), catchUp) && strings.Count(e.Key(), ".") == 2 {
			continue
		}
		r, err := parse(e.Value())
		if err != nil {
			bad[e.Key()] = err
			continue
		}
		all = append(all, r)
	}
	return all, bad, nil
}

// Writer makes the additions of one process to one record. It is used by one goroutine at a time.
type Writer struct {
	stream, durable, process, name string

	number  uint64    // of the last addition that is certainly in the record
	pending *Addition // of which that is not known
}

// NewWriter is that of a process, which must have a name of its own, for people called name.
func NewWriter(stream, durable, process, name string) *Writer {
	return &Writer{stream: stream, durable: durable, process: process, name: name}
}

func (w *Writer) key() string { return key(w.stream, w.durable) }

// Pending is the addition that has to be written again, because it is not known whether it was; nil: there is none.
func (w *Writer) Pending() *Addition { return w.pending }

// Finish makes the last addition, as Add does, and takes the process out of the record. After an error, FinishAgain does what is left of that.
func (w *Writer) Finish(ctx context.Context, b *Book, a *Addition) error {
	w.pending = a
	return w.FinishAgain(ctx, b)
}

// FinishAgain makes the addition that is pending, if there is one, and takes the process out of the record.
func (w *Writer) FinishAgain(ctx context.Context, b *Book) error {
	if w.pending != nil {
		if err := w.Add(ctx, b, w.pending); err != nil {
			return err
		}
	}
	return w.leave(ctx, b)
}

// Add makes an addition. After an error it may be pending, and the next call must be with it then.
func (w *Writer) Add(ctx context.Context, b *Book, a *Addition) error {
	w.pending = a
	number := w.number + 1
	for {
		r, err := b.Get(ctx, w.stream, w.durable)
		switch {
		case errors.Is(err, jetstream.ErrKeyNotFound):
			r = begin(w.stream, w.durable, *a)
		case err != nil:
			return err
		case r.age(*a) < 0:
			w.number, w.pending = number, nil
			return nil // the instance has not noticed yet that the durable was made anew
		case r.age(*a) > 0:
			revision := r.revision
			r = begin(w.stream, w.durable, *a)
			r.revision = revision
		}
		if r.add(w.process, w.name, number, *a, time.Now()) {
			if again, err := b.putRecord(ctx, w.key(), r); again {
				continue
			} else if err != nil {
				return err
			}
		}
		w.number, w.pending = number, nil
		return nil
	}
}

// leave takes the process out of the record, and with it the number of its last addition. So it is a write of its own, once the addition is
// certainly there: one that is repeated because its answer was lost would be made twice.
func (w *Writer) leave(ctx context.Context, b *Book) error {
	for {
		r, err := b.Get(ctx, w.stream, w.durable)
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, listed := r.Instances[w.process]; !listed {
			return nil
		}
		delete(r.Instances, w.process)
		if again, err := b.putRecord(ctx, w.key(), r); !again {
			return err
		}
	}
}

// putRecord writes what was made of a record that was read. again says that somebody else wrote first.
func (b *Book) putRecord(ctx context.Context, key string, r *Record) (again bool, err error) {
	value, err := json.Marshal(r)
	if err != nil {
		return false, err
	}
	err = b.put(ctx, key, value, r.revision)
	if !transient.Raced(err) {
		return false, err
	}
	return ctx.Err() == nil, ctx.Err()
}

// put writes a record that follows a revision. With 0 it must not be there, but somebody may have deleted it. What is written twice because the connection
// was lost is refused the second time, as if somebody else had written first.
func (b *Book) put(ctx context.Context, key string, value []byte, after uint64) error {
	return transient.Do(ctx, b.nc, func(ctx context.Context) (err error) {
		if after == 0 {
			_, err = b.kv.Create(ctx, key, value)
		} else {
			_, err = b.kv.Update(ctx, key, value, after)
		}
		return err
	})
}
