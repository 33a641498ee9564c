package dlq

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func sequences(list []Entry) []uint64 {
	var all []uint64
	for _, e := range list {
		all = append(all, e.Sequence)
	}
	return all
}

func TestList_looksAtWhatDoesNotMatch(t *testing.T) {
	s, _ := setup(t, Config{})
	for i := range uint64(9) {
		e := entry(i + 1)
		if e.Route = "billing"; i%3 == 0 {
			e.Route, e.Reason = "mail", Rejected
		}
		put(t, s, e)
	}
	for what, c := range map[string]struct {
		filter        Filter
		match, looked int
	}{
		"all": {Filter{}, 9, 9}, "reason": {Filter{Reason: Rejected}, 3, 9}, "error": {Filter{Text: "nothing"}, 0, 9}, "route": {Filter{Route: "mail", MinAttempts: 1}, 3, 3},
	} {
		looked := 0
		c.filter.Looked = func() { looked++ }
		if list := collect(t, s, c.filter); len(list) != c.match || looked != c.looked {
			t.Errorf("%s: %d entries, looked at %d", what, len(list), looked)
		}
	}
}

func TestList_filters(t *testing.T) {
	s, js := setup(t, Config{Prefixes: []string{"dead"}})
	change := []func(*Entry){
		1: func(e *Entry) {},
		2: func(e *Entry) { e.Route = "mail"; e.Reason = Rejected },
		3: func(e *Entry) { e.Subject = "orders.us.created"; e.LastError = "500 internal" },
		4: func(e *Entry) { e.Subject = "orders.us.\xff" },
		5: func(e *Entry) { e.Subject = "orders.eu.deleted"; e.Reason = Crash },
	}
	var middle time.Time
	for seq := 1; seq < len(change); seq++ {
		e := entry(uint64(seq))
		change[seq](&e)
		prefix := ""
		if seq%2 == 0 {
			prefix = "dead"
		}
		if err := s.Put(t.Context(), prefix, e); err != nil {
			t.Fatal(err)
		}
		if seq == 3 {
			list := collect(t, s, Filter{})
			middle = list[len(list)-1].StoredTime
		}
	}
	for _, c := range []struct {
		name   string
		filter Filter
		want   []uint64
	}{
		{"all", Filter{}, []uint64{1, 2, 3, 4, 5}},
		{"route", Filter{Route: "mail"}, []uint64{2}},
		{"no such route", Filter{Route: "nobody"}, nil},
		{"subject", Filter{Subject: "orders.us.*"}, []uint64{3, 4}},
		{"subject of all", Filter{Subject: ">"}, []uint64{1, 2, 3, 4, 5}},
		{"subject and route", Filter{Subject: "orders.eu.>", Route: "billing"}, []uint64{1, 5}},
		{"one subject", Filter{Subject: "orders.eu.deleted"}, []uint64{5}},
		{"reason", Filter{Reason: Rejected}, []uint64{2}},
		{"since", Filter{Since: middle}, []uint64{3, 4, 5}},
		{"until", Filter{Until: middle}, []uint64{1, 2}},
		{"text", Filter{Text: "internal"}, []uint64{3}},
		{"match", Filter{Match: regexp.MustCompile(`^\d+ `)}, []uint64{3}},
		{"after", Filter{After: 3}, []uint64{4, 5}},
		{"after and since", Filter{After: 1, Since: middle}, []uint64{3, 4, 5}},
		{"after the end", Filter{After: 99}, nil},
		{"limit", Filter{Limit: 2}, []uint64{1, 2}},
		{"limit counts what matches", Filter{Limit: 2, Route: "billing", After: 1}, []uint64{3, 4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if d := cmp.Diff(c.want, sequences(collect(t, s, c.filter))); d != "" {
				t.Error(d)
			}
			c.filter.WithBody = true
			list := collect(t, s, c.filter)
			if d := cmp.Diff(c.want, sequences(list)); d != "" {
				t.Error(d)
			}
			for _, e := range list {
				want := entry(e.Sequence)
				change[e.Sequence](&want)
				sameEntry(t, want, e)
			}
		})
	}
	for _, e := range collect(t, s, Filter{Limit: 1}) {
		want := entry(1)
		if e.Data != nil || e.Header != nil || e.Size != len(want.Data) || e.StoredSequence != 1 || e.StoredTime.IsZero() ||
			!strings.HasPrefix(e.StoredSubject, "relay.dlq.billing.ORDERS.1-") {
			t.Errorf("listed without body: %+v", e)
		}
	}
	for _, bad := range []Filter{{Route: "*"}, {Subject: "a..b"}, {Subject: strings.Repeat("x", 4000)}} {
		for _, err := range s.List(t.Context(), bad) {
			if err == nil {
				t.Errorf("%+v: no error", bad)
			}
		}
	}
	stream, err := js.Stream(t.Context(), s.Name())
	if err != nil || stream.CachedInfo().State.Consumers != 0 {
		t.Errorf("%d consumers are left, %v", stream.CachedInfo().State.Consumers, err)
	}
}

func TestList_goesOnAfterWhatIsNoEntry(t *testing.T) {
	s, js := setup(t, Config{})
	put(t, s, entry(1))
	if _, err := js.Publish(t.Context(), "relay.dlq.stranger", []byte("hello")); err != nil {
		t.Fatal(err)
	}
	large := entry(3)
	large.Data = randomBytes(1 << 20)
	put(t, s, large, entry(4))
	if err := js.DeleteObjectStore(t.Context(), s.Bucket()); err != nil {
		t.Fatal(err)
	}
	var got []uint64
	var faults []uint64
	for e, err := range s.List(t.Context(), Filter{WithBody: true}) {
		var fault *EntryError
		switch {
		case err == nil:
			got = append(got, e.Sequence)
		case errors.As(err, &fault):
			faults = append(faults, fault.Sequence)
		default:
			t.Fatal(err)
		}
	}
	if d := cmp.Diff([]uint64{1, 4}, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]uint64{2, 3}, faults); d != "" {
		t.Error(d)
	}
	var fault *EntryError
	if _, err := s.Get(t.Context(), 2); !errors.As(err, &fault) || fault.Sequence != 2 {
		t.Errorf("get: got %v", err)
	}
	for _, seq := range []uint64{2, 3} {
		if err := s.Discard(t.Context(), seq); err != nil {
			t.Errorf("discard %d: %v", seq, err)
		}
	}
}

func TestList_pagesAndHeals(t *testing.T) {
	s, js := setup(t, Config{})
	const n = 450
	for seq := range uint64(n) {
		put(t, s, entry(seq+1))
	}
	count := uint64(0)
	for e, err := range s.List(t.Context(), Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		if count++; e.Sequence != count {
			t.Fatalf("sequence %d at place %d", e.Sequence, count)
		}
		if count == 10 { // the server forgets the consumer of a listing that takes its time
			stream, err := js.Stream(t.Context(), s.Name())
			if err != nil {
				t.Fatal(err)
			}
			for name := range stream.ConsumerNames(t.Context()).Name() {
				if err := stream.DeleteConsumer(t.Context(), name); err != nil {
					t.Fatal(err)
				}
			}
		}
		if count == 20 { // what comes after the call is not listed
			put(t, s, entry(n+1))
		}
	}
	if count != n {
		t.Errorf("%d entries, want %d", count, n)
	}
}

func TestList_ends(t *testing.T) {
	s, js := setup(t, Config{})
	put(t, s, entry(1), entry(2))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last error
	for _, err := range s.List(ctx, Filter{}) {
		cancel()
		last = err
	}
	if last != nil && !errors.Is(last, context.Canceled) {
		t.Errorf("got %v", last)
	}
	for _, err := range s.List(ctx, Filter{}) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled before: got %v", err)
		}
	}
	if err := js.DeleteStream(t.Context(), s.Name()); err != nil {
		t.Fatal(err)
	}
	for _, err := range s.List(t.Context(), Filter{}) {
		if !errors.Is(err, ErrNoStream) {
			t.Errorf("without a stream: got %v", err)
		}
	}
	if _, err := s.Get(t.Context(), 1); !errors.Is(err, ErrNoStream) {
		t.Errorf("get without a stream: got %v", err)
	}
}

func TestGetAndDiscard_notFound(t *testing.T) {
	s, js := setup(t, Config{})
	large := entry(1)
	large.Data = randomBytes(1 << 20)
	put(t, s, large)
	if err := s.Discard(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if n := messages(t, js, s.bucketStream()); n != 0 {
		t.Errorf("the body of a discarded entry left %d messages", n)
	}
	for _, seq := range []uint64{0, 1, 99} {
		if _, err := s.Get(t.Context(), seq); !errors.Is(err, ErrNotFound) {
			t.Errorf("get %d: got %v", seq, err)
		}
		if err := s.Discard(t.Context(), seq); !errors.Is(err, ErrNotFound) {
			t.Errorf("discard %d: got %v", seq, err)
		}
		if err := s.remove(t.Context(), s.Name(), seq); seq != 0 && !errors.Is(err, ErrNotFound) {
			t.Errorf("remove %d: got %v", seq, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	whole := encode(entry(1))
	f.Add("Relay-Body", strings.Repeat("ab", 32), "Relay-Body-SHA256", "x")
	f.Add("Relay-Stack-64", "!", "Relay-Reason", "")
	f.Add("Relay-Body-Size", "-1", "Relay-Body", "x")
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2 string) {
		h := nats.Header{k1: {v1, v2}, k2: {v2}}
		_, _ = decode(h)
		for k, v := range whole {
			if _, ok := h[k]; !ok {
				h[k] = v
			}
		}
		if e, err := decode(h); err == nil {
			if _, err := decode(encode(e)); err != nil {
				t.Fatalf("not again: %v", err)
			}
		}
		_, _, _ = decodeBody([]byte(k1 + "\n" + v1))
	})
}

// Requests that a leader took before it was killed are never answered: the first two of each kind are lost here, and asked again.
func TestList_regressionARequestThatIsNeverAnsweredIsAskedAgain(t *testing.T) {
	s, js := setup(t, Config{})
	put(t, s, entry(1), entry(2), entry(3))
	nc := js.Conn()
	var mu sync.Mutex
	lossy, lost := false, make(map[string]int)
	if _, err := nc.Subscribe("lossy.>", func(m *nats.Msg) {
		call := strings.TrimPrefix(m.Subject, "lossy.")
		kind := strings.Join(strings.Split(call, ".")[:2], ".")
		mu.Lock()
		defer mu.Unlock()
		if lossy && lost[kind] < 2 {
			lost[kind]++
			return
		}
		if err := nc.PublishRequest(jetstream.DefaultAPIPrefix+call, m.Reply, m.Data); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	behind, err := jetstream.NewWithAPIPrefix(nc, "lossy")
	if err != nil {
		t.Fatal(err)
	}
	if s, err = Attach(t.Context(), behind, ""); err != nil {
		t.Fatal(err)
	}
	s.timeout = 50 * time.Millisecond
	mu.Lock()
	lossy = true
	mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	seen := 0
	for _, err := range s.List(ctx, Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		seen++
	}
	if seen != 3 {
		t.Errorf("%d entries, want 3", seen)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, kind := range []string{"STREAM.INFO", "CONSUMER.CREATE", "CONSUMER.MSG", "CONSUMER.INFO"} {
		if lost[kind] == 0 {
			t.Errorf("no %s was lost", kind)
		}
	}
}
