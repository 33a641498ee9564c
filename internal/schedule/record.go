package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/kvwatch"
	"github.com/relaymq/relay/internal/ownstream"
	"github.com/relaymq/relay/internal/transient"
)

// format of records. An instance that meets a greater one leaves the schedule alone, and says so.
const format = 1

// Record is what the instances agree on about a schedule.
type Record struct {
	Format int `json:"format"`
	// Timing is what Next was computed from: the definition that counts. Generation counts the changes of it, and Former has those that counted
	// before, the latest last. An earlier version of relay knows neither, and drops them.
	Timing     string    `json:"timing,omitempty"`
	Generation uint64    `json:"generation,omitempty"`
	Former     []string  `json:"former,omitempty"`
	Doubt      *Doubt    `json:"doubt,omitempty"`
	Next       time.Time `json:"next,omitzero"`
	// Claim is the run that an instance publishes just now.
	Claim *Claim `json:"claim,omitempty"`
	Last  *Run   `json:"last,omitempty"`
	// Asked is a run that an operator asked for, beside the others.
	Asked  *Order `json:"asked,omitempty"`
	Paused *Order `json:"paused,omitempty"`
}

// Claim says who publishes a run.
type Claim struct {
	Run      time.Time `json:"run"`
	Instance string    `json:"instance"`
	Secret   string    `json:"secret,omitempty"` // is in the id of the message
}

// Doubt asks whether an instance whose definition counts still lives. One that had that definition before asks: it was rolled back, or
// is not yet updated.
type Doubt struct {
	By       string    `json:"by"` // the instance that asks
	At       time.Time `json:"at"`
	Answered bool      `json:"answered,omitempty"`
}

// Run is what became of a run.
type Run struct {
	Run      time.Time `json:"run"`
	At       time.Time `json:"at"` // when it was published
	Result   string    `json:"result"`
	Instance string    `json:"instance"`
	Stream   string    `json:"stream,omitempty"`
	Sequence uint64    `json:"sequence,omitempty"`
}

// Order is what an operator wanted.
type Order struct {
	By  string    `json:"by"`
	Why string    `json:"why,omitempty"`
	At  time.Time `json:"at"`
	// Secret of a run that was asked for, by the instance that publishes it.
	Secret string `json:"secret,omitempty"`
}

// Records is the bucket of all schedules of a service.
type Records struct {
	js jetstream.JetStream
	kv jetstream.KeyValue
}

// Bucket is its name.
func Bucket(service string) string { return strings.ToUpper(service) + "_SCHEDULES" }

// OpenRecords makes the bucket when it is missing.
func OpenRecords(ctx context.Context, js jetstream.JetStream, service string, replicas int) (*Records, error) {
	kv, err := ownstream.OpenBucket(ctx, js, jetstream.KeyValueConfig{Bucket: Bucket(service), Replicas: replicas, Description: "relay: runs of schedules"})
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", Bucket(service), err)
	}
	return &Records{js, kv}, nil
}

// ErrUnreadable says that a record is none that any version of relay wrote.
var ErrUnreadable = errors.New("the record cannot be read")

// Get returns the record of a schedule with its revision, 0 when there is none yet.
func (r *Records) Get(ctx context.Context, name string) (rec Record, revision uint64, err error) {
	e, err := r.kv.Get(ctx, name)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return Record{Format: format}, 0, nil
	}
	if err != nil {
		return rec, 0, err
	}
	if err := json.Unmarshal(e.Value(), &rec); err != nil {
		return rec, 0, fmt.Errorf("%w: schedule %s: %w (the schedule stands still; to begin it anew, without the runs that were due so far: relay schedule rm %s)", ErrUnreadable, name, err, name)
	}
	if rec.Format > format {
		return rec, 0, fmt.Errorf("the record of schedule %s has format %d, and this version knows %d: use a newer version of relay", name, rec.Format, format)
	}
	return rec, e.Revision(), nil
}

// errRaced says that somebody else wrote the record first.
var errRaced = errors.New("another instance was first")

// put stores the record if nobody wrote since revision.
func (r *Records) put(ctx context.Context, name string, rec Record, revision uint64) (uint64, error) {
	rec.Format = format
	value, err := json.Marshal(rec)
	if err != nil {
		return 0, err
	}
	if revision == 0 {
		revision, err = r.kv.Create(ctx, name, value)
	} else {
		revision, err = r.kv.Update(ctx, name, value, revision)
	}
	if transient.Raced(err) {
		return 0, errRaced
	}
	return revision, err
}

// Change changes a record by compare-and-set, again when somebody else was first.
func (r *Records) Change(ctx context.Context, name string, change func(*Record)) (Record, error) {
	for {
		rec, revision, err := r.Get(ctx, name)
		if err != nil {
			return rec, err
		}
		change(&rec)
		if _, err = r.put(ctx, name, rec, revision); !errors.Is(err, errRaced) {
			return rec, err
		}
		if err := ctx.Err(); err != nil {
			return rec, err
		}
	}
}

// Names are the schedules that have a record.
func (r *Records) Names(ctx context.Context) ([]string, error) {
	return kvwatch.Keys(ctx, r.js.Conn(), r.kv, ">")
}

// Remove takes a record away: a schedule that still runs begins anew.
func (r *Records) Remove(ctx context.Context, name string) error { return r.kv.Purge(ctx, name) }

// AttachRecords is the bucket as it is. The error is jetstream.ErrBucketNotFound when there is none.
func AttachRecords(ctx context.Context, js jetstream.JetStream, service string) (*Records, error) {
	kv, err := js.KeyValue(ctx, Bucket(service))
	return &Records{js, kv}, err
}
