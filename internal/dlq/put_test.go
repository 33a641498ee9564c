package dlq

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/transient"
)

func TestPut_keepsExtremes(t *testing.T) {
	s, js := setup(t, Config{})
	limit := int(js.Conn().MaxPayload())
	change := map[string]func(*Entry){
		"nothing at all": func(e *Entry) { e.Header, e.Data, e.Stack = nil, nil, nil },
		"no body, and a header like a server's status line": func(e *Entry) {
			e.Header, e.Data = nats.Header{"Status": {"404"}, "Description": {"No Messages"}}, nil
		},
		"body of exactly max_payload":             func(e *Entry) { e.Header, e.Data = nil, randomBytes(limit) },
		"body and headers of exactly max_payload": func(e *Entry) { e.Header = manyHeaders(4 << 10); e.Data = randomBytes(limit - 4<<10) },
		"64 KiB of headers":                       func(e *Entry) { e.Header = manyHeaders(64<<10 - 1) },
		"header of 60,000 bytes":                  func(e *Entry) { e.Header = nats.Header{"K": {strings.Repeat("k", 60_000)}} },
		"odd headers": func(e *Entry) {
			e.Header = nats.Header{"A": {"", " x", "\x00", "é", "\xff", "a\rb"}, "a": {"1"}, "b c": {"2"}, "é": {"3"}, "Nats-Rollup": {"all"}, "Nats-TTL": {"1s"},
				"Nats-Expected-Last-Sequence": {"99"}, "Nats-Schedule": {"@at x"}, "relay-body": {"x"}, "Relay-Body": {"y"}, "Relay-Reason": {"z"}}
		},
		"odd headers of a large message": func(e *Entry) { e.Header = nats.Header{"A": {" x", "\xff"}, "b c": {"2"}}; e.Data = randomBytes(limit) },
		"subject of 4,080 bytes":         func(e *Entry) { e.Subject = "orders." + strings.Repeat("x", 4073) },
		"large, subject of 3,400 bytes":  func(e *Entry) { e.Subject = "orders." + strings.Repeat("y", 3393); e.Data = randomBytes(limit) },
		"subject of 200 tokens":          func(e *Entry) { e.Subject = strings.Repeat("a.", 199) + "b" },
		"subject with wildcards":         func(e *Entry) { e.Subject = "orders.*.>" },
		"subject with NUL and ESC":       func(e *Entry) { e.Subject = "orders.\x00\x1b" },
		"subject of invalid UTF-8":       func(e *Entry) { e.Subject = "orders.\xff" },
		"subject with an empty token":    func(e *Entry) { e.Subject = "orders..x" },
		"subject of emoji and marks":     func(e *Entry) { e.Subject = "orders.\U0001F4A9.\u2028\u202E.<script>.$(id).';\"" },
		"subject of one underscore":      func(e *Entry) { e.Subject = "_" },
		"stack and error of full length": func(e *Entry) { e.Stack, e.LastError = randomBytes(MaxStack), strings.Repeat("e", 4096) },
		"everything full length and large": func(e *Entry) {
			e.Stack, e.LastError, e.Subject = randomBytes(MaxStack), strings.Repeat("e", 4096), strings.Repeat("\xff", 4080)
			e.Header, e.Data = manyHeaders(60<<10), randomBytes(limit-60<<10)
		},
	}
	seq := uint64(0)
	for name, f := range change {
		seq++
		e := entry(seq)
		f(&e)
		t.Run(name, func(t *testing.T) {
			put(t, s, e)
			list := collect(t, s, Filter{WithBody: true, After: e.Sequence - 1})
			if len(list) != 1 {
				t.Fatalf("listed %d entries, want 1", len(list))
			}
			sameEntry(t, e, list[0])
			got, err := s.Get(t.Context(), list[0].StoredSequence)
			if err != nil {
				t.Fatal(err)
			}
			sameEntry(t, e, got)
			if got.Size != len(e.Data) {
				t.Errorf("size %d, want %d", got.Size, len(e.Data))
			}
			if n := js.Conn().Stats().Reconnects; n != 0 {
				t.Errorf("the connection was lost %d times", n)
			}
		})
	}
}

func TestPut_cutsStackAndError(t *testing.T) {
	s, _ := setup(t, Config{Instance: "me"})
	e := entry(1)
	e.Stack, e.LastError, e.Instance = randomBytes(MaxStack+1), strings.Repeat("x", 5000)+"\n", ""
	put(t, s, e)
	got, err := s.Get(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	e.Stack, e.LastError, e.Instance = e.Stack[:MaxStack], e.LastError[:4096], "me"
	sameEntry(t, e, got)
}

func TestPut_maxPayloadSmallerThanTheStack(t *testing.T) {
	s, _ := setup(t, Config{}, natstest.WithConfig("max_payload: 16KB"))
	e := entry(1)
	e.Stack, e.Data = randomBytes(MaxStack), randomBytes(16<<10)
	put(t, s, e)
	got, err := s.Get(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	e.Stack = nil
	sameEntry(t, e, got)
}

func TestPut_once(t *testing.T) {
	s, js := setup(t, Config{})
	large := entry(2)
	large.Data = randomBytes(1 << 20)
	for _, e := range []Entry{entry(1), large} {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := s.Put(t.Context(), "", e); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		put(t, s, e)
	}
	list := collect(t, s, Filter{WithBody: true})
	if len(list) != 2 {
		t.Fatalf("%d entries, want 2", len(list))
	}
	sameEntry(t, large, list[1])

	// A replay that failed is another dead letter; one that was removed is accepted again.
	again := entry(1)
	again.Replay = 1
	put(t, s, again)
	if err := s.Discard(t.Context(), list[0].StoredSequence); err != nil {
		t.Fatal(err)
	}
	put(t, s, entry(1))
	if n := messages(t, js, s.Name()); n != 3 {
		t.Errorf("%d entries, want 3", n)
	}
}

// The answer is lost: a stream that gives none stores the entry all the same, and something else may answer instead.
func TestPut_lostAnswer(t *testing.T) {
	s, js := setup(t, Config{})
	stream, err := js.Stream(t.Context(), s.Name())
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	cfg.NoAck = true
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	answer := func(t *testing.T, f func(*nats.Msg)) {
		t.Helper()
		sub, err := js.Conn().Subscribe("relay.dlq.>", f)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = sub.Unsubscribe() })
		if err := js.Conn().Flush(); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("time-out", func(t *testing.T) {
		s.timeout = 100 * time.Millisecond
		defer func() { s.timeout = callTimeout }()
		put(t, s, entry(1), entry(1))
	})
	t.Run("cancelled while it is under way, then again", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("shutting down")
		answer(t, func(m *nats.Msg) { cancel(why); _ = m.Respond([]byte("what?")) })
		if err := s.Put(ctx, "", entry(2)); !errors.Is(err, why) {
			t.Fatalf("got %v, want the cause", err)
		}
		put(t, s, entry(2))
	})
	t.Run("cancelled before", func(t *testing.T) {
		if err := s.Put(cancelled(t), "", entry(3)); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("another stream's answer", func(t *testing.T) {
		answer(t, func(m *nats.Msg) { _ = m.Respond([]byte(`{"stream":"OTHER","seq":1}`)) })
		if err := s.Put(t.Context(), "", entry(4)); !errors.Is(err, ErrWrongStream) {
			t.Errorf("got %v, want ErrWrongStream", err)
		}
	})
	t.Run("an error's answer, and nothing stored", func(t *testing.T) {
		cfg.Subjects = []string{"elsewhere.>"}
		if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		answer(t, func(m *nats.Msg) { _ = m.Respond([]byte(`{"error":{"code":503,"err_code":10164}}`)) })
		if err := s.Put(t.Context(), "", entry(5)); !transient.Raced(err) {
			t.Errorf("got %v, want the refusal", err)
		}
	})
	if n := messages(t, js, s.Name()); n != 3 { // 1, 2, 4
		t.Errorf("%d entries, want 3", n)
	}
}

func TestPut_anotherEntryIsNoProof(t *testing.T) {
	s, _ := setup(t, Config{})
	put(t, s, entry(1))
	// What is stored on the subject by somebody else is no entry of this message.
	strange := entry(2)
	subj, err := entrySubject("relay.dlq", strange.Origin)
	if err != nil {
		t.Fatal(err)
	}
	other := entry(2)
	other.Consumer = "somebody-else"
	m, err := s.entryMsg(t.Context(), subj, other)
	if err == nil {
		_, err = s.js.PublishMsg(t.Context(), m)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "", strange); !errors.Is(err, ErrConflict) {
		t.Errorf("got %v, want ErrConflict", err)
	}
	e := entry(1)
	e.Time = e.Time.Add(1) // the stream was made anew, and the sequence is another message
	put(t, s, e)
}

// The messages of a durable that was renamed failed a second time, and could not be dead-lettered: the entry of the first durable was on their
// subject. They are two entries, and each is replayed by itself.
func TestPut_regressionADurableThatWasRenamed(t *testing.T) {
	s, js := setup(t, Config{})
	var want []string
	for _, durable := range []string{"billing", "invoices", "invoices2"} {
		e := entry(1)
		e.Consumer = durable
		put(t, s, e)
		put(t, s, e) // which is the same one
		want = append(want, durable)
	}
	var got []string
	tokens := map[string]bool{}
	for e, err := range s.List(t.Context(), Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e.Consumer)
		tokens[MessageToken(replayed(e))] = true
		takes(t, js, e.Route)
		if err := s.Replay(t.Context(), e, Target{}); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(got, want) || len(tokens) != 3 {
		t.Errorf("entries of %q with tokens %v, want %q", got, tokens, want)
	}
	if n := messages(t, js, "RELAY_RETRY"); n != 3 {
		t.Errorf("%d replays reached the route, want 3", n)
	}
}

func TestPut_wrongStream(t *testing.T) {
	s, js := setup(t, Config{})
	if err := js.DeleteStream(t.Context(), s.Name()); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "", entry(1)); !errors.Is(err, ErrNoStream) {
		t.Errorf("without the stream: got %v, want ErrNoStream", err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "GREEDY", Subjects: []string{"relay.dlq.>"}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "", entry(1)); !errors.Is(err, ErrWrongStream) {
		t.Errorf("with another stream on the prefix: got %v, want ErrWrongStream", err)
	}
	if n := messages(t, js, "GREEDY"); n != 0 {
		t.Errorf("the other stream took %d messages", n)
	}
}

func TestPut_full(t *testing.T) {
	s, _ := setup(t, Config{MaxBytes: 8 << 10})
	var err error
	seq := uint64(0)
	for err == nil && seq < 100 {
		seq++
		err = s.Put(t.Context(), "", entry(seq))
	}
	if !errors.Is(err, ErrFull) {
		t.Fatalf("after %d entries: got %v, want ErrFull", seq, err)
	}
	put(t, s, entry(1)) // stored already, full or not
	large := entry(seq)
	large.Data = randomBytes(1 << 20)
	if err := s.Put(t.Context(), "", large); !errors.Is(err, ErrFull) {
		t.Errorf("large: got %v, want ErrFull", err)
	}
	if n := chunks(t, s); n != 0 {
		t.Errorf("the refused body left %d chunks", n)
	}
	if err := s.Discard(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	put(t, s, entry(seq))
}

// chunks are those of all objects in the bucket.
func chunks(t *testing.T, s *Store) (n uint64) {
	t.Helper()
	bucket, err := s.js.Stream(t.Context(), s.bucketStream())
	if err != nil {
		t.Fatal(err)
	}
	info, err := bucket.Info(t.Context(), jetstream.WithSubjectFilter(s.chunkSubject(">")))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range info.State.Subjects {
		n += c
	}
	return n
}

// A bucket had no room for a chunk of a body, but for its description, which stayed. The next try took the body for stored: the entry that it
// stored had none, and the message was acknowledged.
func TestPut_regressionABodyThatWasRefusedIsStoredByTheNextTry(t *testing.T) {
	s, js := setup(t, Config{MaxBytes: 40 << 10}, natstest.WithConfig("max_payload: 64KB"))
	e := entry(1)
	e.Data = randomBytes(70 << 10)
	if err := s.Put(t.Context(), "", e); !errors.Is(err, ErrFull) {
		t.Fatalf("got %v, want ErrFull", err)
	}
	bucket, err := js.Stream(t.Context(), s.bucketStream())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the refused body left %d messages", bucket.CachedInfo().State.Msgs)
	cfg := bucket.CachedInfo().Config
	cfg.MaxBytes = 1 << 20
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	put(t, s, e)
	got, err := s.Get(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	sameEntry(t, e, got)
	if n := chunks(t, s); n != 2 {
		t.Errorf("%d chunks, want 2", n)
	}
}

func TestPut_dropOldest(t *testing.T) {
	s, _ := setup(t, Config{MaxBytes: 8 << 10, OnFull: OnFullDropOldest})
	for seq := range uint64(50) {
		put(t, s, entry(seq+1))
	}
	list := collect(t, s, Filter{})
	if len(list) == 0 || len(list) == 50 || list[len(list)-1].Sequence != 50 {
		t.Errorf("%d entries left", len(list))
	}
}

func TestPut_refusesWhatIsNoSubject(t *testing.T) {
	s, _ := setup(t, Config{})
	for name, f := range map[string]func(*Entry){
		"no route":         func(e *Entry) { e.Route = "" },
		"route with dots":  func(e *Entry) { e.Route = "a.b" },
		"route of a space": func(e *Entry) { e.Route = " " },
		"no stream":        func(e *Entry) { e.Stream = "" },
		"wildcard stream":  func(e *Entry) { e.Stream = "*" },
	} {
		e := entry(1)
		f(&e)
		if err := s.Put(t.Context(), "", e); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := s.Put(t.Context(), "$SYS", entry(1)); err == nil {
		t.Error("prefix $SYS: no error")
	}
}

func TestPut_withoutServer(t *testing.T) {
	srv := natstest.Start(t)
	js := srv.JetStream(t)
	s, err := Open(t.Context(), js, Config{})
	if err != nil {
		t.Fatal(err)
	}
	srv.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := s.Put(ctx, "", entry(1)); err == nil {
		t.Fatal("no error without a server")
	}
	srv.Restart()
	put(t, s, entry(1))
	if n := len(collect(t, s, Filter{})); n != 1 {
		t.Errorf("%d entries, want 1", n)
	}
}

// A dead letter that another version of relay wrote is a good one for that version: it is named, and neither replayed nor
// dropped to make room.
func TestPut_dropOldestLeavesOtherVersionsAlone(t *testing.T) {
	s, js := setup(t, Config{MaxBytes: 8 << 10, OnFull: OnFullDropOldest})
	newer := encode(entry(1))
	newer.Set("Relay-Format", "9")
	if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "relay.dlq.billing.ORDERS.1-1-0.orders.x", Header: newer, Data: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(20) {
		e := entry(i + 2)
		e.Data = make([]byte, 1000)
		put(t, s, e)
	}
	if m, err := s.stream.GetMsg(t.Context(), 1); err != nil || m.Header.Get("Relay-Format") != "9" {
		t.Errorf("it is gone: %v", err)
	}
	plan, err := s.Plan(t.Context(), Choice{})
	if err != nil || plan.Refused != 1 || !strings.Contains(plan.Refusals[0].Why, "another version of relay") {
		t.Errorf("%+v, %v", plan, err)
	}
}
