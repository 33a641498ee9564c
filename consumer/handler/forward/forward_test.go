package forward

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler/internal/handlertest"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/subject"
)

func setup(t *testing.T, streams ...jetstream.StreamConfig) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(natstest.Start(t).Conn(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, cfg := range streams {
		if _, err := js.CreateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	return js
}

func newHandler(t *testing.T, js jetstream.JetStream, template string) *Handler {
	t.Helper()
	h, err := New(Config{Subject: template, Allow: []string{">"}, ForwardHeaders: []string{"*"}}, js, "relay.due.>", "relay.park.>")
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func message(subj string) *consumer.Msg {
	return &consumer.Msg{
		ID: "IN_route_7", Route: "route", Subject: subj, Data: []byte("body"), Attempt: 1,
		Stream: "IN", Consumer: "route", Sequence: 7, Time: time.Unix(1, 2), Deadline: time.Now().Add(time.Minute),
	}
}

func count(t *testing.T, js jetstream.JetStream, stream string) uint64 {
	t.Helper()
	s, err := js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo().State.Msgs
}

func wantDead(t *testing.T, err error, text string) {
	t.Helper()
	if !handlertest.Want(t, err, handlertest.Dead, text) {
		t.FailNow()
	}
}

func wantRetry(t *testing.T, err error, text string) {
	t.Helper()
	if !handlertest.Want(t, err, handlertest.Retry, text) {
		t.FailNow()
	}
}

func TestHandle_copies(t *testing.T) {
	js := setup(t, jetstream.StreamConfig{Name: "OUT", Subjects: []string{"out.>"}})
	h := newHandler(t, js, "out.{2}.{1}.{subject}")
	m := message("orders.eu.created")
	m.Data = []byte("\x00\xff any \r\n bytes")
	m.Header = nats.Header{
		"X-Mine": {"a", "b"}, "x-mine": {"c"},
		"Nats-Msg-Id": {"theirs"}, "nats-rollup": {"all"}, "Nats-TTL": {"1s"}, "Nats-Expected-Last-Sequence": {"99"},
		"Relay-Attempt": {"99"}, "relay-deadline": {"never"},
	}
	before := m.Header.Get("Nats-Msg-Id")
	if err := h.Handle(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), "OUT")
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.GetMsg(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if want := "out.eu.orders.orders.eu.created"; got.Subject != want || !bytes.Equal(got.Data, m.Data) {
		t.Errorf("got %q on %s, want it on %s", got.Data, got.Subject, want)
	}
	want := nats.Header{
		"X-Mine": {"a", "b"}, "x-mine": {"c"},
		"Nats-Msg-Id": {"IN_route_7_1000000002_0"}, "Relay-Hops": {"1"},
	}
	if diff := gocmp.Diff(want, got.Header); diff != "" {
		t.Error(diff)
	}
	if m.Header.Get("Nats-Msg-Id") != before || m.Header.Get("Relay-Hops") != "" {
		t.Errorf("the message itself was changed: %v", m.Header)
	}
}

// A publisher with the right to publish to the route's subjects had a copy of a message of its own, with headers of its own,
// published to any subject that relay may publish to.
func TestHandle_regressionConfusedDeputy(t *testing.T) {
	js := setup(t, jetstream.StreamConfig{Name: "ALL", Subjects: []string{"billing.>", "other.>", "relay.due.>", "relay.park.>"}})
	if _, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "RELAY_STATE"}); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Subject: "{2}.{3}.{4}", Allow: []string{"billing.>", "relay.>"}, ForwardHeaders: []string{"ce-*", "Trace"}}
	h, err := New(cfg, js, "relay.due.>", "relay.park.>")
	if err != nil {
		t.Fatal(err)
	}
	header := nats.Header{
		"CE-Id": {"7"}, "trace": {"t"}, "Authorization": {"forged"}, "Nats-Rollup": {"all"}, "nats-msg-id": {"forged"}, "Relay-Due": {"forged"},
	}
	for subj, why := range map[string]string{
		"in.other.x.y":            "not among the subjects in allow",
		"in.relay.due.orders":     "relay's own subjects (relay.due.>)",
		"in.relay.park.orders":    "relay's own subjects (relay.park.>)",
		"in.$KV.RELAY_STATE.x":    "belongs to the server",
		"in.$JS.API.INFO":         "belongs to the server",
		"in.$JS.ACK.x":            "belongs to the server",
		"in.$O.bucket.x":          "belongs to the server",
		"in.$SYS.REQ.x":           "belongs to the server",
		"in._INBOX.someone.x":     "belongs to the server",
		"in.billing.*.x":          "wildcard",
		"in.billing..x":           "empty token",
		"in.billing.x\r\nPUB a.b": "white space or a control byte",
	} {
		m := message(subj)
		m.Header = header
		wantDead(t, h.Handle(t.Context(), m), why)
	}
	if n := count(t, js, "ALL"); n != 0 {
		t.Fatalf("%d messages came through", n)
	}
	m := message("in.billing.eu.1")
	m.Header = header
	if err := h.Handle(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), "ALL")
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.GetMsg(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	want := nats.Header{"CE-Id": {"7"}, "trace": {"t"}, "Nats-Msg-Id": {"IN_route_7_1000000002_0"}, "Relay-Hops": {"1"}}
	if diff := gocmp.Diff(want, got.Header); diff != "" || got.Subject != "billing.eu.1" {
		t.Errorf("on %s: %s", got.Subject, diff)
	}
}

func TestHandle_attemptsMakeOneCopy(t *testing.T) {
	js := setup(t, jetstream.StreamConfig{Name: "OUT", Subjects: []string{"out"}})
	h := newHandler(t, js, "out")
	handle := func(m *consumer.Msg, want uint64) {
		t.Helper()
		if err := h.Handle(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		if n := count(t, js, "OUT"); n != want {
			t.Fatalf("%d copies, want %d", n, want)
		}
	}
	m := message("in")
	handle(m, 1)
	m.Attempt = 2
	handle(m, 1)
	m.Replay = 1 // an operator wants it again
	handle(m, 2)
	recreated := message("in") // the same sequence of a stream that was made anew
	recreated.Time = recreated.Time.Add(time.Minute)
	handle(recreated, 3)
}

func TestHandle_loopEnds(t *testing.T) {
	js := setup(t, jetstream.StreamConfig{Name: "RING", Subjects: []string{"ring.>"}})
	h := newHandler(t, js, "ring.a")
	m := message("ring.b")
	s, err := js.Stream(t.Context(), "RING")
	if err != nil {
		t.Fatal(err)
	}
	for hop := uint64(1); hop <= maxHops; hop++ {
		m.ID = fmt.Sprintf("RING_r_%d", hop)
		if err := h.Handle(t.Context(), m); err != nil {
			t.Fatalf("hop %d: %v", hop, err)
		}
		copied, err := s.GetMsg(t.Context(), hop)
		if err != nil {
			t.Fatal(err)
		}
		m.Header = copied.Header
	}
	wantDead(t, h.Handle(t.Context(), m), "forwarding loop")
	if n := count(t, js, "RING"); n != maxHops {
		t.Fatalf("%d copies, want %d", n, maxHops)
	}
}

func TestHopsOf_strangersCounts(t *testing.T) {
	for value, want := range map[string]int{
		"": 0, "0": 0, "3": 3, "16": 16, "60000": 60000, "-1": 0, "+3": 0, "3x": 0, "99999999999999999999": 0,
	} {
		if got := hopsOf(nats.Header{"Relay-Hops": {value}}); got != want {
			t.Errorf("%q: %d hops, want %d", value, got, want)
		}
	}
	if got := hopsOf(nil); got != 0 {
		t.Errorf("no header: %d hops", got)
	}
}

func TestHandle_subjectsThatCannotBe(t *testing.T) {
	js := setup(t, jetstream.StreamConfig{Name: "OUT", Subjects: []string{"out.>"}})
	for _, tc := range []struct{ template, subject string }{
		{"out.{3}", "only.two"},
		{"out.{1}", "*"},
		{"out.{1}", ">"},
		{"out.{1}", ".empty"},
		{"out.{subject}", "a..b"},
		{"out.{1}", "nul\x00"},
		{"out.{1}", "tab\there"},
		{"{1}.x", "$JS"},
		{"{1}.x", "_INBOX"},
		{"out.{subject}", strings.Repeat("x", subject.MaxLen)},
	} {
		t.Run(fmt.Sprintf("%s of %.20q", tc.template, tc.subject), func(t *testing.T) {
			wantDead(t, newHandler(t, js, tc.template).Handle(t.Context(), message(tc.subject)), "forward")
		})
	}
	if n := count(t, js, "OUT"); n != 0 {
		t.Fatalf("%d messages were published", n)
	}
}

func TestHandle_noStream(t *testing.T) {
	h := newHandler(t, setup(t), "nobody.here")
	handlertest.Want(t, h.Handle(t.Context(), message("in")), handlertest.NoAnswer, "no response from stream")
	if err := h.Check(t.Context()); err == nil || !strings.Contains(err.Error(), `subject: no stream holds nobody.here`) {
		t.Fatalf("Check: %v", err)
	}
}

func TestHandle_fullStream(t *testing.T) {
	js := setup(t, jetstream.StreamConfig{Name: "OUT", Subjects: []string{"out"}, MaxMsgs: 1, Discard: jetstream.DiscardNew})
	h := newHandler(t, js, "out")
	if err := h.Handle(t.Context(), message("in")); err != nil {
		t.Fatal(err)
	}
	second := message("in")
	second.ID = "IN_route_8"
	err := h.Handle(t.Context(), second)
	wantRetry(t, err, "forward to out: ")
	var api *jetstream.APIError
	if !errors.As(err, &api) || api.ErrorCode != 10077 {
		t.Fatalf("%v, want code 10077", err)
	}
}

func TestHandle_tooLarge(t *testing.T) {
	srv := natstest.Start(t, natstest.WithConfig("max_payload: 64KB, max_pending: 1MB"))
	js, err := jetstream.New(srv.Conn(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, cfg := range []jetstream.StreamConfig{
		{Name: "WIDE", Subjects: []string{"wide"}},
		{Name: "NARROW", Subjects: []string{"narrow"}, MaxMsgSize: 1 << 10},
	} {
		if _, err := js.CreateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("for the server, with the headers", func(t *testing.T) {
		m := message("in")
		m.Data = make([]byte, 64<<10)
		wantDead(t, newHandler(t, js, "wide").Handle(t.Context(), m), "maximum payload exceeded")
	})
	t.Run("for the stream", func(t *testing.T) {
		m := message("in")
		m.Data = make([]byte, 2<<10)
		wantDead(t, newHandler(t, js, "narrow").Handle(t.Context(), m), "maximum")
	})
}

// Another client wrote a header name with a space in it. nats.go hands such a message out, but refuses to publish it.
func TestHandle_headerNameThatCannotBeWritten(t *testing.T) {
	js := setup(t, jetstream.StreamConfig{Name: "OUT", Subjects: []string{"out"}})
	m := message("in")
	m.Header = nats.Header{"Trace Parent": {"x"}}
	wantDead(t, newHandler(t, js, "out").Handle(t.Context(), m), "headers")
}

func TestHandle_noAnswerInTime(t *testing.T) {
	srv := natstest.Start(t)
	nc := srv.Conn(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan *nats.Msg, 1)
	if _, err := nc.ChanSubscribe("silent", asked); err != nil { // there is a responder, but it never answers
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("the drain time is over")
	go func() { <-asked; cancel(stop) }()
	wantRetry(t, newHandler(t, js, "silent").Handle(ctx, message("in")), "forward to silent")
}

func TestHandle_missingPermission(t *testing.T) {
	srv := natstest.Start(t, natstest.WithConfig("authorization {users: [{user: u, password: p, permissions: {publish: {deny: secret}}}]}"))
	nc := srv.Conn(t, nats.UserInfo("u", "p"))
	denied := make(chan error, 1)
	nc.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		select {
		case denied <- err:
		default:
		}
	})
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OUT", Subjects: []string{"secret"}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-denied; cancel() }() // the server says so to the connection; the publish hears nothing
	wantRetry(t, newHandler(t, js, "secret").Handle(ctx, message("in")), "context canceled")
}

func TestCheck(t *testing.T) {
	srv := natstest.Start(t)
	js, err := jetstream.New(srv.Conn(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OUT", Subjects: []string{"out.*"}}); err != nil {
		t.Fatal(err)
	}
	if err := newHandler(t, js, "out.x").Check(t.Context()); err != nil {
		t.Errorf("with a stream: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for want, cfg := range map[string]Config{
		"":                                     {Subject: "out.{1}"},
		"subject: no stream holds elsewhere.x": {Subject: "elsewhere.x"},
		"subject: no stream holds elsewhere.*": {Subject: "elsewhere.{1}"},
		"subject: no stream holds a.> or b.>":  {Subject: "{1}.x", Allow: []string{"a.>", "b.>"}},
	} {
		h, err := New(cfg, js)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(h.Check(ctx)); got != cmp.Or(want, "<nil>") {
			t.Errorf("%+v: %s", cfg, got)
		}
	}
	if h, err := New(Config{Subject: "{1}.x", Allow: []string{"a.>", "out.>"}}, js); err != nil || h.Check(ctx) != nil {
		t.Errorf("a stream for one of two: %v", err)
	}
	srv.Stop()
	down, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := newHandler(t, js, "nobody.here").Check(down); err != nil {
		t.Errorf("a server that is down: %v", err)
	}
}

func TestConfig_faults(t *testing.T) {
	for template, want := range map[string]string{
		"":                                    "subject: is required",
		"out.{0}":                             "subject: unknown placeholder {0}",
		"out.{tenant}":                        "subject: unknown placeholder {tenant}",
		"out.{1":                              "subject: ",
		"{subject}":                           "subject: {subject} alone",
		"out.*":                               "subject: ",
		"out.>":                               "subject: ",
		"out..{1}":                            "subject: ",
		"a b":                                 "subject: ",
		"$JS.API.STREAM.DELETE.{1}":           "subject: ",
		"_INBOX.{1}":                          "subject: ",
		strings.Repeat("x", subject.MaxLen+1): "subject: ",
	} {
		err := Config{Subject: template}.Validate()
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", template, err, want)
		}
		if _, newErr := New(Config{Subject: template}, nil); newErr == nil {
			t.Errorf("%.40q: New took it", template)
		}
	}
	for template, free := range map[string]bool{"out": true, "copy.{subject}": true, "out.{1}{2}": true, "{1}.copy.{2}": false, "pre{1}post.x": false, "{subject}.copy": false} {
		if err := (Config{Subject: template, Allow: []string{">"}}).Validate(); err != nil {
			t.Errorf("%s: %v", template, err)
		}
		if err := (Config{Subject: template}).Validate(); (err == nil) != free || err != nil && !strings.Contains(err.Error(), "its publisher chooses where the message goes") {
			t.Errorf("%s without allow: %v", template, err)
		}
	}
	for want, cfg := range map[string]Config{
		`allow[1]: "a.>.b": > may only be`:                       {Subject: "out", Allow: []string{"out", "a.>.b"}},
		`allow[0]: "$KV.>" belongs to the server`:                {Subject: "out", Allow: []string{"$KV.>"}},
		`allow: no pattern matches a subject that "out.{1}" can`: {Subject: "out.{1}", Allow: []string{"in.*", "out"}},
		`forward_headers[0]: "" is not a header name`:            {Subject: "out", ForwardHeaders: []string{""}},
		`forward_headers[1]: "a b" is not a header name`:         {Subject: "out", ForwardHeaders: []string{"a", "a b"}},
		`forward_headers[0]: "c*e*" is not a header name`:        {Subject: "out", ForwardHeaders: []string{"c*e*"}},
		`forward_headers[0]: nats-* may not be copied`:           {Subject: "out", ForwardHeaders: []string{"nats-*"}},
		`forward_headers[0]: Relay-Deadline may not be copied`:   {Subject: "out", ForwardHeaders: []string{"Relay-Deadline"}},
	} {
		if err := cfg.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestConfig_Pattern(t *testing.T) {
	for template, want := range map[string]string{
		"out.x": "out.x", "out.{1}.x": "out.*.x", "a.{subject}": "a.>", "a.{subject}.b": "a.>", "{bad": ">",
	} {
		if got := (Config{Subject: template}).Pattern(); got != want {
			t.Errorf("%s: %s, want %s", template, got, want)
		}
	}
}

func ExampleConfig_Pattern() {
	fmt.Println(Config{Subject: "archive.{1}.{subject}"}.Pattern())
	// Output: archive.*.>
}
