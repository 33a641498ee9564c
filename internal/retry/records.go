package retry

import (
	"context"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/kvwatch"
	"github.com/relaymq/relay/internal/transient"
)

// Record is what is remembered of a message that failed.
type Record struct {
	// Format is [RecordFormat] of the version that wrote it; zero means 1.
	Format       int       `json:"format,omitempty"`
	Attempts     int       `json:"attempts"`
	FirstFailure time.Time `json:"first"`
	LastFailure  time.Time `json:"last"`
	Due          time.Time `json:"due"` // not to be started before
	LastError    string    `json:"error,omitempty"`
	// Dead is why the message is to be dead-lettered, when its entry could not be stored yet.
	Dead string `json:"dead,omitempty"`
	// Deliveries is the server's count when the record was written. One that comes with more than the next was away
	// once without a word. Zero in records of earlier versions.
	Deliveries uint64 `json:"deliveries,omitempty"`
	// Kept says that the message stayed where it was: its next attempt is one of the same delivery, and no instance has said
	// anything of the message when it comes again.
	Kept bool `json:"kept,omitempty"`
	// Copied says that a copy of the message may be parked, though the server did not confirm it.
	Copied bool `json:"copied,omitempty"`
	// Crashes is how often the message ended the process that ran it, and nothing else.
	Crashes int `json:"crashes,omitempty"`
	// Solo is the life of the process that runs the message just now, and no other message; see Mark.
	Solo string `json:"solo,omitempty"`
	// Suspect says that the message may have been in a process when it died. It is known here only.
	Suspect bool `json:"-"`
}

// RecordFormat is that of the records that this version writes. A record of a newer one is left alone, with its message: what its fields
// mean is not known here.
const RecordFormat = 1

// damaged is why a message is dead-lettered whose record cannot be read: how often it failed, or ended its process, is not known any more. It is
// ReasonDead of package supervise.
const damaged = "dead"

// Known tells whether anything ever happened to the message: the zero Record says that it never failed.
func (r Record) Known() bool { return !r.LastFailure.IsZero() || r.Crashes > 0 || r.Solo != "" }

// Explains tells whether the record says why the message is here for the nth time, n being deliveries: it failed at the time before, and was
// given back. Otherwise it may be an old delivery that comes again because its ack was lost, while the message waits or ended elsewhere.
func (r Record) Explains(deliveries uint64) bool {
	return r.Deliveries > 0 && deliveries == r.Deliveries+1 && !r.Kept && !r.Copied
}

// merge keeps the greater count; both instances' failures happened.
func (r Record) merge(other Record) Record {
	if other.Attempts > r.Attempts || other.Attempts == r.Attempts && other.LastFailure.After(r.LastFailure) {
		r, other = other, r
	}
	if !other.FirstFailure.IsZero() && (r.FirstFailure.IsZero() || other.FirstFailure.Before(r.FirstFailure)) {
		r.FirstFailure = other.FirstFailure
	}
	r.Format = RecordFormat
	r.Crashes = max(r.Crashes, other.Crashes)
	r.Deliveries = max(r.Deliveries, other.Deliveries)
	return r
}

// stored is a record as the bucket had it while the message was here for the nth time, n being JetStream's count of
// deliveries.
type stored struct {
	Record
	revision   uint64
	deliveries uint64
}

// compact is a stored record in little memory: most are of messages that were given back and to which nothing happened.
type compact struct {
	rec        *Record // nil: the zero Record, but for suspect
	revision   uint64
	deliveries uint64
	suspect    bool
}

// recall returns what is known of a message without asking the server.
func (r *Records) recall(seq uint64) (s stored, known bool) {
	c, known := r.cache.Get(seq)
	if c.rec != nil {
		s.Record = *c.rec
	}
	s.revision, s.deliveries, s.Suspect = c.revision, c.deliveries, c.suspect
	return s, known
}

// remember keeps what the server has of a message, or that it was given back.
func (r *Records) remember(seq uint64, s stored) {
	c := compact{revision: s.revision, deliveries: s.deliveries, suspect: s.Suspect}
	if s.Suspect = false; s.Record != (Record{}) {
		rec := s.Record
		c.rec = &rec
	}
	r.cache.Add(seq, c)
}

// remembered bounds the records that a durable keeps in memory; older ones are read from the bucket.
const remembered = 100_000

// Records keeps the attempts of one durable's messages. Safe for concurrent use; every method blocks on the server.
type Records struct {
	bucket *Bucket
	family string // of all durables of the name
	prefix string // of this one

	stream, durable string // as tokens of a key
	created         time.Time
	cache           *lru.Cache[uint64, compact]
}

// Records are those of the durable that was made at created.
func (b *Bucket) Records(stream, durable string, created time.Time) *Records {
	family := keyToken(stream) + "." + keyToken(durable) + "."
	cache, _ := lru.New[uint64, compact](remembered) // fails for a size below 1 only
	return &Records{
		bucket: b, family: family, cache: cache, created: created, stream: keyToken(stream), durable: keyToken(durable),
		prefix: family + strconv.FormatInt(created.UnixNano(), 36) + ".",
	}
}

var plainToken = regexp.MustCompile(`^[-_a-zA-Z0-9]+$`)

// keyToken makes a key's token of a name, which may hold bytes that a key may not.
func keyToken(name string) string {
	if plainToken.MatchString(name) {
		return name
	}
	return "=" + base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString([]byte(name))
}

func (r *Records) key(seq uint64) string { return r.prefix + strconv.FormatUint(seq, 10) }

// Cached returns the record of a message that is here for the nth time, n being deliveries, without asking the server. It
// knows it only if the message was here the time before too: otherwise another instance may have written since. Nor does
// it know that of a message that ran alone when it was read: whoever ran it will have written since.
func (r *Records) Cached(seq, deliveries uint64) (Record, bool) {
	s, ok := r.recall(seq)
	if !ok || s.Solo != "" || deliveries != s.deliveries && deliveries != s.deliveries+1 {
		return Record{}, false
	}
	return s.Record, true
}

// Get returns the record of a message that is here for the nth time; the zero Record if it never failed. That of a
// message whose record is damaged has it dead-lettered.
func (r *Records) Get(ctx context.Context, seq, deliveries uint64) (Record, error) {
	if rec, ok := r.Cached(seq, deliveries); ok {
		return rec, nil
	}
	s, err := r.read(ctx, seq, deliveries)
	return s.Record, err
}

func (r *Records) read(ctx context.Context, seq, deliveries uint64) (stored, error) {
	value, revision, err := r.bucket.get(ctx, r.key(seq))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		r.cache.Remove(seq)
		return stored{}, nil
	}
	if err != nil {
		return stored{}, err
	}
	s := stored{revision: revision, deliveries: deliveries}
	var written struct{ Format int }
	if json.Unmarshal(value, &written) == nil && written.Format > RecordFormat { // its other fields may be of any kind
		return stored{}, fmt.Errorf("record %s: format %d %w, this one reads %d", r.key(seq), written.Format, ErrOtherVersion, RecordFormat)
	}
	if err := json.Unmarshal(value, &s.Record); err != nil {
		s.Record = Record{Dead: damaged, LastFailure: time.Now(), LastError: fmt.Sprintf("the record of its attempts, %s, is damaged: %v", r.key(seq), err)}
	}
	s.Format = RecordFormat
	r.remember(seq, s)
	return s, nil
}

// Put writes the record of a message that is here for the nth time, and returns when the server has stored it. If another
// instance has written one meanwhile, the greater count wins.
func (r *Records) Put(ctx context.Context, seq, deliveries uint64, rec Record) error {
	s, _ := r.recall(seq)
	rec.Format, rec.Deliveries, rec.Suspect = RecordFormat, deliveries, false
	for {
		value, err := json.Marshal(rec)
		if err != nil {
			return err
		}
		revision, err := r.bucket.put(ctx, r.key(seq), value, s.revision)
		if err == nil {
			r.remember(seq, stored{rec, revision, deliveries})
			return nil
		}
		if !transient.Raced(err) {
			return err
		}
		if s, err = r.read(ctx, seq, deliveries); err != nil {
			return err
		}
		if s.revision != 0 && s.merge(rec) == s.Record {
			return nil
		}
		rec = s.merge(rec)
	}
}

// Mark writes the record of a message that is here for the nth time as it is, for a handler that is about to run alone, and
// returns its revision. It returns [ErrElsewhere] if another instance has written one meanwhile.
func (r *Records) Mark(ctx context.Context, seq, deliveries uint64, rec Record) (revision uint64, err error) {
	s, _ := r.recall(seq)
	return r.mark(ctx, seq, deliveries, rec, s.revision)
}

// Marked returns the revision of the mark that a life has made, and zero if the record is another one.
func (r *Records) Marked(ctx context.Context, seq, deliveries uint64, life string) (revision uint64, err error) {
	s, err := r.read(ctx, seq, deliveries)
	if err != nil || s.Solo != life {
		return 0, err
	}
	return s.revision, nil
}

// Unmark ends a mark, when that handler has returned: the record becomes rec, or is deleted if there was none before. A
// record that was written after the mark stays.
func (r *Records) Unmark(ctx context.Context, seq, deliveries uint64, rec Record, marked uint64) error {
	if rec.Known() {
		_, err := r.mark(ctx, seq, deliveries, rec, marked)
		if errors.Is(err, ErrElsewhere) {
			return nil
		}
		return err
	}
	if s, ok := r.recall(seq); ok && s.revision == marked {
		r.cache.Remove(seq)
	}
	return r.bucket.remove(ctx, r.key(seq), marked)
}

// mark writes a record that follows a revision; zero means that there is none.
func (r *Records) mark(ctx context.Context, seq, deliveries uint64, rec Record, after uint64) (revision uint64, err error) {
	rec.Format, rec.Deliveries, rec.Suspect = RecordFormat, deliveries, false
	value, err := json.Marshal(rec)
	if err != nil {
		return 0, err
	}
	revision, err = r.bucket.put(ctx, r.key(seq), value, after)
	switch {
	case err == nil:
		r.remember(seq, stored{rec, revision, deliveries})
		return revision, nil
	case transient.Raced(err):
		// Perhaps it is our own, whose answer was lost. Whoever asks next reads it.
		if s, ok := r.recall(seq); ok && s.revision == after {
			r.cache.Remove(seq)
		}
		return 0, ErrElsewhere
	}
	return 0, err
}

// ErrElsewhere says that the record of a message is not the one that was read: somebody else has the message too.
var ErrElsewhere = errors.New("the record was changed by another instance")

// Returned remembers rec, here only, of a message without a record that was given back by this instance: nothing happened to it
// since, if it comes again next.
func (r *Records) Returned(seq, deliveries uint64, rec Record) {
	if s, known := r.recall(seq); !known || s.revision == 0 {
		r.remember(seq, stored{Record: rec, deliveries: deliveries})
	}
}

// Delete removes the record of a message that is settled. What marks the deletion is gone after a second.
func (r *Records) Delete(ctx context.Context, seq uint64) error {
	s, ok := r.recall(seq)
	r.cache.Remove(seq)
	if !ok || s.revision == 0 {
		_, revision, err := r.bucket.get(ctx, r.key(seq))
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		s.revision = revision
	}
	return r.bucket.remove(ctx, r.key(seq), s.revision)
}

// Sweep removes the records of messages at or below the durable's ack floor, and those of earlier durables of the name.
// Records of a later one are left alone: another instance is already at it.
func (r *Records) Sweep(ctx context.Context, ackFloor uint64) (removed int, err error) {
	for e, err := range kvwatch.All(ctx, r.bucket.kv, r.family+">", jetstream.MetaOnly()) {
		if err != nil {
			return removed, err
		}
		key := e.Key()
		if !r.outlived(key, ackFloor) {
			continue
		}
		_, revision, err := r.bucket.get(ctx, key)
		if err == nil {
			err = r.bucket.remove(ctx, key, revision)
		}
		if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
			return removed, err
		}
		removed++
	}
	return removed, nil
}

// Later are the messages that are not to start before a time to come, as their records say. It reads all records of the durable.
func (r *Records) Later(ctx context.Context) (map[uint64]struct{}, error) {
	later, now := make(map[uint64]struct{}), time.Now()
	for e, err := range kvwatch.All(ctx, r.bucket.kv, r.prefix+">") {
		if err != nil {
			return nil, err
		}
		seq, err := strconv.ParseUint(strings.TrimPrefix(e.Key(), r.prefix), 10, 64)
		var rec Record
		if err == nil && json.Unmarshal(e.Value(), &rec) == nil && rec.Due.After(now) {
			later[seq] = struct{}{}
		}
	}
	return later, nil
}

// outlived tells whether the message of a key is certainly settled.
func (r *Records) outlived(key string, ackFloor uint64) bool {
	made, sequence, _ := strings.Cut(strings.TrimPrefix(key, r.family), ".")
	created, err := strconv.ParseInt(made, 36, 64)
	if err != nil {
		return false // no key of ours
	}
	seq, err := strconv.ParseUint(sequence, 10, 64)
	return err == nil && (created < r.created.UnixNano() || created == r.created.UnixNano() && seq <= ackFloor)
}
