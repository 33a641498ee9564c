package dlq

import (
	"errors"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/retry"
)

func largeEntry(seq uint64) Entry {
	e := entry(seq)
	e.Data = randomBytes(1 << 20)
	return e
}

func sweep(t *testing.T, s *Store, want int) {
	t.Helper()
	got, err := s.Sweep(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("swept %d, want %d", got, want)
	}
}

func TestSweep_followsAnObjectThroughItsReplay(t *testing.T) {
	s, js := setup(t, Config{})
	s.grace = 0
	put(t, s, largeEntry(1), entry(2))
	sweep(t, s, 0)
	if err := s.Replay(t.Context(), collect(t, s, Filter{Limit: 1})[0], Target{}); err != nil {
		t.Fatal(err)
	}
	sweep(t, s, 0) // the due message refers to it
	m := due(t, js)
	if _, _, err := s.Body(t.Context(), m.Headers()); err != nil {
		t.Fatal(err)
	}
	s.grace = sweepGrace
	settle(t, m)
	sweep(t, s, 0) // young
	s.grace = 0
	sweep(t, s, 1)
	sweep(t, s, 0)
	if n := messages(t, js, s.bucketStream()); n != 0 {
		t.Errorf("%d messages are left in the bucket", n)
	}
	if _, _, err := s.Body(t.Context(), m.Headers()); !errors.Is(err, ErrNoBody) {
		t.Errorf("body of a swept object: got %v", err)
	}
	if _, _, err := s.Body(t.Context(), nats.Header{}); err == nil {
		t.Error("headers that name no object: no error")
	}
}

func TestSweep_withoutARetryStream(t *testing.T) {
	s, js := setup(t, Config{})
	s.grace = 0
	put(t, s, largeEntry(1))
	if err := js.DeleteStream(t.Context(), "RELAY_RETRY"); err != nil {
		t.Fatal(err)
	}
	sweep(t, s, 0)
	if err := s.stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	sweep(t, s, 1)
}

func TestSweep_brokenUploadAndStrangers(t *testing.T) {
	s, js := setup(t, Config{})
	s.grace = 0
	put(t, s, largeEntry(1))
	if _, err := js.Publish(t.Context(), s.chunkSubject("stray"), []byte("half")); err != nil {
		t.Fatal(err)
	}
	bucket, err := js.ObjectStore(t.Context(), s.Bucket())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bucket.PutString(t.Context(), "somebody's", "own"); err != nil {
		t.Fatal(err)
	}
	sweep(t, s, 1)
	if _, err := bucket.GetString(t.Context(), "somebody's"); err != nil {
		t.Error(err)
	}
	if _, err := s.Get(t.Context(), 1); err != nil {
		t.Error(err)
	}
}

// Whoever refers to an object and whoever removes it look first and act later. The act is conditional on what was seen.
func TestObject_touchAndDropExcludeEachOther(t *testing.T) {
	s, _ := setup(t, Config{})
	e := largeEntry(1)
	r, err := s.putBody(t.Context(), "relay.dlq.x", e, ofLetter)
	if err != nil {
		t.Fatal(err)
	}
	seen, err := s.object(t.Context(), r.name)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.touch(t.Context(), r.name, ""); err != nil {
		t.Fatal(err)
	}
	if err := s.drop(t.Context(), seen); !errors.Is(err, ErrNotFound) {
		t.Fatalf("drop of what was touched since: got %v", err)
	}
	if _, _, err := s.loadBody(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if seen, err = s.object(t.Context(), r.name); err != nil {
		t.Fatal(err)
	}
	if err := s.drop(t.Context(), seen); err != nil {
		t.Fatal(err)
	}
	if err := s.touch(t.Context(), r.name, ""); !errors.Is(err, ErrNoBody) {
		t.Fatalf("touch of what was dropped since: got %v", err)
	}
	if _, err := s.putBody(t.Context(), "relay.dlq.x", e, ofLetter); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.loadBody(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}

func TestDiscard_leavesTheBodyThatAReplayNeeds(t *testing.T) {
	s, js := setup(t, Config{})
	put(t, s, largeEntry(1))
	e := collect(t, s, Filter{})[0]
	m, err := s.get(t.Context(), e.StoredSequence)
	if err != nil {
		t.Fatal(err)
	}
	h, err := s.prepare(t.Context(), m, e.isAt, Target{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.PublishMsg(t.Context(), h.msg); err != nil { // and crash
		t.Fatal(err)
	}
	if err := s.Discard(t.Context(), e.StoredSequence); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Body(t.Context(), due(t, js).Headers()); err != nil {
		t.Error(err)
	}
}

func TestPut_largeAgainIsNotStoredAgain(t *testing.T) {
	s, js := setup(t, Config{})
	e := largeEntry(1)
	put(t, s, e)
	before := messages(t, js, s.bucketStream())
	put(t, s, e)
	if n := messages(t, js, s.bucketStream()); n != before {
		t.Errorf("%d messages in the bucket, before %d", n, before)
	}
}

func TestBody_damaged(t *testing.T) {
	s, js := setup(t, Config{})
	put(t, s, largeEntry(1))
	e := collect(t, s, Filter{})[0]
	bucket, err := js.ObjectStore(t.Context(), s.Bucket())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bucket.Put(t.Context(), jetstream.ObjectMeta{Name: e.body.name}, nil); err != nil {
		t.Fatal(err)
	}
	var fault *EntryError
	if _, err := s.Get(t.Context(), 1); !errors.Is(err, ErrNoBody) || !errors.As(err, &fault) {
		t.Errorf("got %v", err)
	}
	h := retry.Wrap(e.Origin, nil)
	h.Set(headerBody, "../etc")
	var header *retry.HeaderError
	if _, _, err := s.Body(t.Context(), h); !errors.As(err, &header) || header.Header != headerBody {
		t.Errorf("got %v", err)
	}
}
