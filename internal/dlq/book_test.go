package dlq

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
)

// A process that dies between its announcement and the removals leaves a range; a purge counts, also beyond the last number; and so does a
// stream that was removed and made anew.
func TestBook_saysNoMoreThanIsKnown(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	if _, err := OpenJobs(t.Context(), js, "relay", 1); err != nil {
		t.Fatal(err)
	}
	open := func() *Store {
		t.Helper()
		s, err := Open(t.Context(), js, Config{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	number := uint64(0)
	put := func(n int) {
		t.Helper()
		for range n {
			number++
			e := Entry{Origin: Origin{Route: "billing", Stream: "ORDERS", Consumer: "billing", Sequence: number, Time: time.Now(), Subject: "orders.a", Attempts: 1}, Reason: "dead"}
			if err := s.Put(t.Context(), "", e); err != nil {
				t.Fatal(err)
			}
		}
	}
	look := func(what string, least, most uint64) {
		t.Helper()
		l, _, err := s.Look(t.Context(), 0)
		if err != nil || l.AtLeast != least || l.AtMost != most {
			t.Errorf("%s: %+v, %v, want %d to %d", what, l, err, least, most)
		}
		if again, err := s.Lost(t.Context()); err != nil || again.AtLeast != least || again.AtMost != most {
			t.Errorf("%s, without an instance: %+v, %v", what, again, err)
		}
	}
	look("at the begin", 0, 0)
	put(20)
	for n := uint64(1); n <= 3; n++ {
		if err := s.Discard(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	look("after discards", 0, 0)
	// Another process announces four removals, makes two, and is killed.
	{
		if err := s.amend(t.Context(), func(p *pages) { p.Claims = map[string]claim{"dying": {Most: 4, At: time.Now()}} }); err != nil {
			t.Fatal(err)
		}
	}
	for n := uint64(4); n <= 5; n++ {
		if err := s.remove(t.Context(), s.Name(), n); err != nil {
			t.Fatal(err)
		}
	}
	look("after a kill", 0, 2)
	stream, err := js.Stream(t.Context(), s.Name())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context(), jetstream.WithPurgeKeep(5)); err != nil {
		t.Fatal(err)
	}
	look("after a purge", 8, 12)
	if err := stream.Purge(t.Context(), jetstream.WithPurgeSequence(1_000)); err != nil {
		t.Fatal(err)
	}
	l, _, err := s.Look(t.Context(), 0)
	if err != nil || l.AtLeast != 13 {
		t.Errorf("after a purge beyond the last: %+v, %v", l, err)
	}
	put(5)
	if l, _, err = s.Look(t.Context(), 0); err != nil || l.AtLeast != 13 {
		t.Errorf("before it is made anew: %+v, %v", l, err)
	}
	if err := js.DeleteStream(t.Context(), s.Name()); err != nil {
		t.Fatal(err)
	}
	s = open()
	if l, _, err := s.Look(t.Context(), 0); err != nil || l.AtLeast != 18 {
		t.Errorf("made anew: %+v, %v", l, err)
	}
}
