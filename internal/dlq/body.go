package dlq

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/transient"
)

// bodyTimeout bounds the transfer of one object.
const bodyTimeout = 30 * time.Second

// Metadata of an object: the two subjects that may refer to it, and whether a replay did.
const (
	metaEntry    = "relay-entry"
	metaDue      = "relay-due"
	metaReplayed = "relay-replayed"
	metaTouched  = "relay-touched" // when, so that each touch is a new description
)

// BodyElsewhere tells from the headers of a due message whether its body and original headers are to be fetched with
// [Store.Body]. They count only on messages of the retry stream.
func BodyElsewhere(h nats.Header) bool { return len(h[headerBody]) > 0 }

// BodySize is how many bytes [Store.Body] will fetch, by what the headers say; 0 when they do not.
func BodySize(h nats.Header) int {
	n, _ := strconv.Atoi(h.Get(headerBodySize))
	return max(0, n)
}

// Body fetches the original headers and body of a due message for which [BodyElsewhere] is true. It returns an error
// that is [ErrNoBody] when the object is gone or is not what was stored, and an [*ack.HeaderError] when the headers name
// none. It may take 30 s.
func (s *Store) Body(ctx context.Context, h nats.Header) (nats.Header, []byte, error) {
	r, err := readRef(h)
	if err == nil && r.name == "" {
		err = fmt.Errorf("header %s: missing", headerBody)
	}
	if err != nil {
		return nil, nil, err
	}
	return s.loadBody(ctx, r)
}

func (s *Store) loadBody(ctx context.Context, r ref) (nats.Header, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, bodyTimeout)
	defer cancel()
	// nats.go waits for chunks that are gone until ctx ends, and then says only that.
	bucket, err := s.js.ObjectStore(ctx, s.Bucket())
	if err != nil {
		return nil, nil, fmt.Errorf("bucket %s: %w", s.Bucket(), classify(err))
	}
	blob, err := bucket.GetBytes(ctx, r.name)
	switch {
	case errors.Is(err, jetstream.ErrObjectNotFound), errors.Is(err, jetstream.ErrDigestMismatch):
		return nil, nil, fmt.Errorf("%w: object %s: %w", ErrNoBody, r.name, err)
	case err != nil:
		return nil, nil, fmt.Errorf("object %s: %w", r.name, classify(err))
	}
	if sum := sha256.Sum256(blob); hex.EncodeToString(sum[:]) != r.sum {
		return nil, nil, fmt.Errorf("%w: object %s: the SHA-256 differs", ErrNoBody, r.name)
	}
	h, data, err := decodeBody(blob)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: object %s: %w", ErrNoBody, r.name, err)
	}
	return h, data, nil
}

// bodyOf is what is going to name the object of a body.
type bodyOf uint8

const (
	ofLetter bodyOf = iota
	ofReplay        // a due message
)

// putBody stores the body and headers of an entry under subj, or touches them if all of them are there already.
func (s *Store) putBody(ctx context.Context, subj string, e Entry, of bodyOf) (ref, error) {
	blob := encodeBody(e.Header, e.Data)
	sum := sha256.Sum256(blob)
	name := sha256.Sum256(append([]byte(subj+"\n"), sum[:]...))
	r := ref{name: hex.EncodeToString(name[:]), sum: hex.EncodeToString(sum[:]), size: len(e.Data)}
	next := e.Origin
	next.Replay++
	due, named := s.dueSubject(next), ""
	if of == ofReplay {
		named = due
	}
	err := s.touch(ctx, r.name, named)
	if err == nil {
		err = s.whole(ctx, r.name)
	}
	if !errors.Is(err, ErrNoBody) {
		return r, err
	}
	meta := jetstream.ObjectMeta{
		Name:     r.name,
		Metadata: map[string]string{metaEntry: subj, metaDue: due},
		// A chunk may not exceed max_payload.
		Opts: &jetstream.ObjectMetaOptions{ChunkSize: uint32(min(128<<10, s.js.Conn().MaxPayload()))},
	}
	if of == ofReplay {
		meta.Metadata[metaReplayed] = "true"
	}
	ctx, cancel := context.WithTimeout(ctx, bodyTimeout)
	defer cancel()
	bucket, err := s.js.ObjectStore(ctx, s.Bucket())
	if err != nil {
		return ref{}, fmt.Errorf("bucket %s: %w", s.Bucket(), classify(err))
	}
	if _, err := bucket.Put(ctx, meta, bytes.NewReader(blob)); err != nil {
		return ref{}, fmt.Errorf("bucket %s: %w", s.Bucket(), classify(err))
	}
	return r, nil
}

// object is the description of an object as it was read: sequence tells it from later ones of the same object.
type object struct {
	info     jetstream.ObjectInfo
	subject  string
	sequence uint64
	stored   time.Time
}

func (s *Store) bucketStream() string            { return "OBJ_" + s.Bucket() }
func (s *Store) chunkSubject(nuid string) string { return "$O." + s.Bucket() + ".C." + nuid }

func (s *Store) metaSubject(name string) string {
	return "$O." + s.Bucket() + ".M." + base64.URLEncoding.EncodeToString([]byte(name))
}

// object reads the description of an object. The error is [ErrNoBody] when there is none.
func (s *Store) object(ctx context.Context, name string) (object, error) {
	m, err := s.last(ctx, s.bucketStream(), s.metaSubject(name))
	if errors.Is(err, ErrNotFound) || streamMissing(err) {
		return object{}, fmt.Errorf("%w: no object %s", ErrNoBody, name)
	}
	if err != nil {
		return object{}, fmt.Errorf("bucket %s: %w", s.Bucket(), err)
	}
	o := object{subject: m.Subject, sequence: m.Sequence, stored: m.Time}
	if err := json.Unmarshal(m.Data, &o.info); err != nil || o.info.Deleted {
		return object{}, fmt.Errorf("%w: no object %s", ErrNoBody, name)
	}
	return o, nil
}

// whole returns [ErrNoBody] for an object of which chunks are missing. nats.go publishes the description without waiting for the answers to the
// chunks: when the bucket has no room for a chunk but for what comes after it, the upload fails and the description stays.
func (s *Store) whole(ctx context.Context, name string) error {
	o, err := s.object(ctx, name)
	if err != nil {
		return err
	}
	bucket, err := s.js.Stream(ctx, s.bucketStream())
	if err != nil {
		return fmt.Errorf("bucket %s: %w", s.Bucket(), classify(err))
	}
	chunks := s.chunkSubject(o.info.NUID)
	info, err := bucket.Info(ctx, jetstream.WithSubjectFilter(chunks))
	if err != nil {
		return fmt.Errorf("bucket %s: %w", s.Bucket(), classify(err))
	}
	if n := info.State.Subjects[chunks]; n != uint64(o.info.Chunks) {
		return fmt.Errorf("%w: %d of the %d chunks of object %s are there", ErrNoBody, n, o.info.Chunks, name)
	}
	return nil
}

// touch makes an object young again for [Store.Sweep], which then lets a reference to it be stored: on the due subject of a replay if it is given.
// A version that had no mark of the durable noted another one.
func (s *Store) touch(ctx context.Context, name, due string) error {
	for {
		o, err := s.object(ctx, name)
		if err != nil {
			return err
		}
		if o.info.Metadata == nil {
			o.info.Metadata = make(map[string]string)
		}
		o.info.Metadata[metaTouched] = time.Now().UTC().Format(time.RFC3339Nano)
		if due != "" {
			o.info.Metadata[metaReplayed], o.info.Metadata[metaDue] = "true", due
		}
		data, err := json.Marshal(o.info)
		if err != nil {
			return err
		}
		pub, cancel := context.WithTimeout(ctx, s.timeout)
		m := &nats.Msg{Subject: o.subject, Data: data, Header: nats.Header{jetstream.MsgRollup: {jetstream.MsgRollupSubject}}}
		_, err = s.js.PublishMsg(pub, m, jetstream.WithExpectStream(s.bucketStream()),
			jetstream.WithExpectLastSequencePerSubject(o.sequence))
		cancel()
		// When the write lost a race, another writer made progress, so the loop ends.
		if err == nil || !transient.Raced(err) {
			return classify(err)
		}
	}
}

// drop removes an object if its description is still the one in o; the error is [ErrNotFound] if it is not. A crash
// between the two steps leaves chunks that [Store.Sweep] finds.
func (s *Store) drop(ctx context.Context, o object) error {
	if err := s.remove(ctx, s.bucketStream(), o.sequence); err != nil {
		return err
	}
	return s.purgeChunks(ctx, o.info.NUID)
}

func (s *Store) purgeChunks(ctx context.Context, nuid string) error {
	return classify(s.api(ctx, "STREAM.PURGE", s.bucketStream(), map[string]string{"filter": s.chunkSubject(nuid)}, nil))
}

// sweepGrace is how old what Sweep removes must be: far longer than anyone is between touching an object and storing
// what refers to it.
const sweepGrace = time.Hour

// Sweep removes the objects that no entry and no due message refers to, and the chunks of uploads that broke off, if they
// are more than an hour old. It returns how many it removed. It may run at any time and on several instances at once; it
// reads the description of every object, so it takes time in proportion to them, and it blocks until it is done or ctx
// ends.
func (s *Store) Sweep(ctx context.Context) (int, error) {
	bucket, err := s.js.Stream(ctx, s.bucketStream())
	if err != nil {
		return 0, fmt.Errorf("bucket %s: %w", s.Bucket(), classify(err))
	}
	// Chunks before descriptions: the description of a complete upload that is in this list is found below, however it is
	// replaced meanwhile, because the pages go on to the end.
	chunks, err := bucket.Info(ctx, jetstream.WithSubjectFilter(s.chunkSubject(">")))
	if err != nil {
		return 0, fmt.Errorf("bucket %s: %w", s.Bucket(), classify(err))
	}
	old := chunks.TimeStamp.Add(-s.grace) // by the server's clock, as the times of messages are
	live := make(map[string]bool)
	removed := 0
	var failed error
	q := query{subject: "$O." + s.Bucket() + ".M.>", page: 200}
	err = s.pages(ctx, bucket, q, func(m stored) bool {
		o := object{subject: m.subject, sequence: m.sequence, stored: m.time}
		if err := json.Unmarshal(m.data, &o.info); err != nil {
			return true // not an object of ours
		}
		live[o.info.NUID] = true
		if o.info.Deleted || !o.stored.Before(old) {
			return true
		}
		orphan, err := s.orphan(ctx, o)
		if err == nil && orphan {
			err = s.drop(ctx, o)
			if errors.Is(err, ErrNotFound) {
				return true // touched or removed by another
			}
			removed++
		}
		failed = err
		return err == nil
	})
	if err = errors.Join(err, failed); err != nil {
		return removed, err
	}
	for subj := range chunks.State.Subjects {
		nuid := strings.TrimPrefix(subj, s.chunkSubject(""))
		if live[nuid] {
			continue
		}
		m, err := s.last(ctx, s.bucketStream(), subj)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err == nil && m.Time.Before(old) {
			err = s.purgeChunks(ctx, nuid)
			removed++
		}
		if err != nil {
			return removed, err
		}
	}
	return removed, nil
}

// orphan tells whether neither an entry nor a due message can refer to o. The order matters: a replay stores the due
// message before it removes the entry.
func (s *Store) orphan(ctx context.Context, o object) (bool, error) {
	if o.info.Metadata[metaOriginal] != "" {
		return time.Since(o.stored) > originalAge, nil
	}
	entry, due := o.info.Metadata[metaEntry], o.info.Metadata[metaDue]
	if entry == "" || due == "" {
		return false, nil // not an object of ours
	}
	there, err := s.holds(ctx, s.Name(), entry)
	if there || err != nil {
		return false, err
	}
	there, err = s.holds(ctx, retryName(s.service), due)
	return !there && err == nil, err
}

// holds tells whether a stream has a message on a subject. A stream that does not exist has none; one that does not answer
// is an error.
func (s *Store) holds(ctx context.Context, stream, subj string) (bool, error) {
	_, err := s.last(ctx, stream, subj)
	if errors.Is(err, ErrNotFound) || streamMissing(err) {
		return false, nil
	}
	return err == nil, err
}
