package retry

import (
	"errors"
	"maps"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"github.com/relaymq/relay/internal/natstest"
)

func fullOrigin() Origin {
	return Origin{
		Route: "billing", Stream: "ORDERS", Consumer: "billing-1", Sequence: 42,
		Time:    time.Date(2026, 3, 4, 5, 6, 7, 890123456, time.UTC),
		Subject: "orders.eu.created", Attempts: 3, Deliveries: 5,
		FirstFailure: time.Date(2026, 3, 4, 5, 7, 0, 1, time.UTC),
		LastFailure:  time.Date(2026, 3, 4, 6, 7, 0, 0, time.UTC),
		LastError:    "connection refused", Replay: 2, Job: "job-7",
	}
}

func TestOrigin_ID(t *testing.T) {
	o := Origin{Stream: "ORDERS", Consumer: "bill.ing~%", Sequence: 7, Time: time.Unix(1, 2)}
	if got, want := o.ID(), "ORDERS~bill%2Eing%7E%25~7~gjdgxu"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The ids of two messages were the same: of stream A_B and consumer C as of A and B_C, and of a stream that was made anew.
func TestOrigin_regressionIDsDiffer(t *testing.T) {
	at := time.Unix(1_700_000_000, 5)
	ids := map[string]Origin{}
	for _, o := range []Origin{
		{Stream: "A_B", Consumer: "C", Sequence: 1, Time: at}, {Stream: "A", Consumer: "B_C", Sequence: 1, Time: at},
		{Stream: "A~B", Consumer: "C", Sequence: 1, Time: at}, {Stream: "A", Consumer: "B~C", Sequence: 1, Time: at},
		{Stream: "A%7EB", Consumer: "C", Sequence: 1, Time: at}, {Stream: "A", Consumer: "B%7EC", Sequence: 1, Time: at},
		{Stream: "A", Consumer: "B", Sequence: 1, Time: at}, {Stream: "A", Consumer: "B", Sequence: 1, Time: at.Add(time.Nanosecond)},
		{Stream: "A", Consumer: "B", Sequence: 11, Time: at},
	} {
		if other, taken := ids[o.ID()]; taken {
			t.Errorf("%q is that of %+v and of %+v", o.ID(), o, other)
		}
		if strings.ContainsAny(o.ID(), ".*> /\\") {
			t.Errorf("%q is not one token", o.ID())
		}
		ids[o.ID()] = o
	}
}

func TestWrap_headers(t *testing.T) {
	got := Wrap(fullOrigin(), nats.Header{
		"Trace-Id": {"a", "b"}, "nats-msg-id": {"x"}, "Relay-Deadline": {"soon"}, "Status": {"404"}, "status": {"1"}, "Empty": nil,
		"Spaced": {" v"}, "Schlüssel": {"1", "2"},
	})
	want := nats.Header{
		"Relay-Format": {"1"}, "Relay-Route": {"billing"}, "Relay-Stream": {"ORDERS"}, "Relay-Consumer": {"billing-1"},
		"Relay-Sequence": {"42"}, "Relay-Time": {"2026-03-04T05:06:07.890123456Z"}, "Relay-Subject": {"orders.eu.created"},
		"Relay-Attempts": {"3"}, "Relay-Deliveries": {"5"}, "Relay-First-Failure": {"2026-03-04T05:07:00.000000001Z"},
		"Relay-Last-Failure": {"2026-03-04T06:07:00Z"}, "Relay-Last-Error": {"connection refused"}, "Relay-Replay": {"2"},
		"Relay-Job": {"job-7"},
		"Trace-Id":  {"a", "b"}, "Relay-Orig-nats-msg-id": {"x"}, "Relay-Orig-Relay-Deadline": {"soon"},
		"Relay-Orig-Status": {"404"}, "Relay-Orig-status": {"1"},
	}
	raw := got[headerRaw]
	if len(raw) != 3 {
		t.Errorf("%d raw headers, want 3: %q", len(raw), raw)
	}
	delete(got, headerRaw)
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestUnwrap_leavesOutWhatIsNotOriginal(t *testing.T) {
	h := Wrap(fullOrigin(), nats.Header{"A": {"1"}})
	maps.Copy(h, nats.Header{"Nats-Scheduler": {"x"}, "Nats-Schedule-Next": {"purge"}, "NATS-Other": {"y"}, "Relay-Reason": {"z"}})
	o, original, err := Unwrap(h)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(fullOrigin(), o); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(nats.Header{"A": {"1"}}, original); d != "" {
		t.Error(d)
	}
}

func TestUnwrap_namesTheHeaderAtFault(t *testing.T) {
	for name, change := range map[string]func(nats.Header){
		"Relay-Format":        func(h nats.Header) { h.Set("Relay-Format", "2") },
		"Relay-Route":         func(h nats.Header) { h.Del("Relay-Route") },
		"Relay-Stream":        func(h nats.Header) { h.Add("Relay-Stream", "OTHER") },
		"Relay-Consumer":      func(h nats.Header) { h.Set("Relay-Consumer-64", "eA") },
		"Relay-Sequence":      func(h nats.Header) { h.Set("Relay-Sequence", "-1") },
		"Relay-Time":          func(h nats.Header) { h.Set("Relay-Time", "yesterday") },
		"Relay-Subject-64":    func(h nats.Header) { h.Del("Relay-Subject"); h.Set("Relay-Subject-64", "!") },
		"Relay-Attempts":      func(h nats.Header) { h.Set("Relay-Attempts", "-3") },
		"Relay-Deliveries":    func(h nats.Header) { h.Del("Relay-Deliveries") },
		"Relay-First-Failure": func(h nats.Header) { h.Set("Relay-First-Failure", "") },
		"Relay-Replay":        func(h nats.Header) { h.Set("Relay-Replay", "many") },
		"Relay-Raw":           func(h nats.Header) { h.Set("Relay-Raw", "eA") },
	} {
		h := Wrap(fullOrigin(), nil)
		change(h)
		_, _, err := Unwrap(h)
		var fault *HeaderError
		if !errors.As(err, &fault) || fault.Header != name {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, _, err := Unwrap(nil); err == nil {
		t.Error("no headers at all: no error")
	}
}

func TestCleanText(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{"plain", "plain"},
		{" \r\n a\r\nb\x00\x1b[3m\u0085\t", "a  b  [3m"},
		{"\xff\xfeé", "\uFFFDé"},
		{strings.Repeat("é", 10), "éééé"}, // 8 of 9 bytes
		{strings.Repeat("a ", 10), "a a a a a"},
	} {
		if got := CleanText(c.in, 9); got != c.want {
			t.Errorf("%q: got %q, want %q", c.in, got, c.want)
		}
	}
}

// anyOrigin draws what a server and an operator could have named.
func anyOrigin(t *rapid.T) Origin {
	text := rapid.OneOf(rapid.StringMatching(`[ -~]{0,40}`), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }))
	at := rapid.Custom(func(t *rapid.T) time.Time { return time.Unix(0, rapid.Int64().Draw(t, "ns")).UTC() })
	maybe := rapid.OneOf(rapid.Just(time.Time{}), at)
	return Origin{
		Route: text.Draw(t, "route"), Stream: text.Draw(t, "stream"), Consumer: text.Draw(t, "consumer"), Subject: text.Draw(t, "subject"),
		Job: text.Draw(t, "job"), Sequence: rapid.Uint64().Draw(t, "seq"), Time: at.Draw(t, "time"),
		Attempts: rapid.IntRange(0, math.MaxInt).Draw(t, "attempts"), Deliveries: rapid.Uint64().Draw(t, "deliveries"),
		Returns: rapid.IntRange(0, math.MaxInt).Draw(t, "returns"),
		Due:     maybe.Draw(t, "due"), FirstFailure: maybe.Draw(t, "first"), LastFailure: maybe.Draw(t, "last"),
		LastError: CleanText(text.Draw(t, "error"), MaxErrorLen), Replay: rapid.IntRange(0, math.MaxInt).Draw(t, "replay"),
	}
}

// anyHeader draws what any client could have sent: names of all bytes but : CR and LF, values of all but LF.
func anyHeader(t *rapid.T) nats.Header {
	name := rapid.OneOf(
		rapid.SampledFrom([]string{"A", "a", "Nats-Msg-Id", "NATS-TTL", "Relay-Route", "Relay-Orig-X", "Relay-Raw", "Status", "Description", "a b", "é"}),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 1, 8), func(b []byte) string {
			return strings.NewReplacer(":", "", "\r", "", "\n", "").Replace(string(b)) + "x"
		}))
	value := rapid.OneOf(
		rapid.SampledFrom([]string{"", " ", "\t x", "x ", "\x00", "a\rb", "é", "\xff"}),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return strings.ReplaceAll(string(b), "\n", "") }))
	h := nats.Header(rapid.MapOfN(name, rapid.SliceOfN(value, 1, 3), 0, 8).Draw(t, "header"))
	if len(h) == 0 {
		return nil
	}
	return h
}

func TestWrap_roundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o, h := anyOrigin(t), anyHeader(t)
		gotO, gotH, err := Unwrap(Wrap(o, h))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(o, gotO); d != "" {
			t.Fatal(d)
		}
		if d := cmp.Diff(h, gotH); d != "" {
			t.Fatal(d)
		}
	})
}

// The wire is where headers change: nats.go trims, replaces and refuses.
func TestWrap_roundTripOverTheWire(t *testing.T) {
	nc := natstest.Start(t).Conn(t)
	sub, err := nc.SubscribeSync("x")
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		o, h := anyOrigin(t), anyHeader(t)
		if err := nc.PublishMsg(&nats.Msg{Subject: "x", Header: Wrap(o, h)}); err != nil {
			t.Fatal(err)
		}
		m, err := sub.NextMsg(10 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		gotO, gotH, err := Unwrap(m.Header)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(o, gotO); d != "" {
			t.Fatal(d)
		}
		if d := cmp.Diff(h, gotH); d != "" {
			t.Fatal(d)
		}
	})
}

func FuzzUnwrap(f *testing.F) {
	f.Add("Relay-Route", "billing", "Relay-Raw", "eA.eA", "orders.\xff", "boom\x00")
	f.Add("Relay-Subject-64", "eA", "Nats-Msg-Id", "1", "", "")
	f.Add("Relay-Orig-", "", "Relay-Format", "2", " ", "\xff")
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2, subject, lastError string) {
		o := fullOrigin()
		o.Subject, o.LastError = subject, lastError
		h := Wrap(o, nats.Header{k1: {v1, v2}, k2: {v2}})
		got, original, err := Unwrap(h)
		if err != nil {
			t.Fatalf("of what Wrap made: %v", err)
		}
		want := nats.Header{k1: {v1, v2}}
		want[k2] = []string{v2}
		if d := cmp.Diff(want, original); d != "" {
			t.Fatal(d)
		}
		if got.Subject != subject || len(got.LastError) > MaxErrorLen || !utf8.ValidString(got.LastError) {
			t.Fatalf("subject %q, error %q", got.Subject, got.LastError)
		}
		h[k1], h[k2] = []string{v1, v2}, []string{v2}
		if _, _, err := Unwrap(h); err != nil && !errors.As(err, new(*HeaderError)) {
			t.Fatalf("not a HeaderError: %v", err)
		}
	})
}
