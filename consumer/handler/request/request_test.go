package request

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler/internal/handlertest"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/supervise"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

func message(subject string) *consumer.Msg { return handlertest.Message(subject, []byte("body")) }

// world has a server, and two connections: relay's and the service's.
type world struct {
	relay, service *nats.Conn
	js             jetstream.JetStream
}

func setup(t *testing.T) world {
	t.Helper()
	server := natstest.Start(t)
	w := world{relay: server.Conn(t), service: server.Conn(t)}
	var err error
	if w.js, err = jetstream.New(w.relay); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w world) handler(t *testing.T, cfg Config, own ...string) *Handler {
	t.Helper()
	h, err := New(cfg, w.relay, w.js, own...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Stop(context.Background()) })
	return h
}

// serve answers by hand.
func (w world) serve(t *testing.T, subject string, f func(*nats.Msg)) {
	t.Helper()
	sub, err := w.service.Subscribe(subject, f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	if err := w.service.Flush(); err != nil {
		t.Fatal(err)
	}
}

// A service of the micro framework gets what the message has, and its reply is the result.
func TestHandle_microService(t *testing.T) {
	w := setup(t)
	var mu sync.Mutex
	var got micro.Request
	svc, err := micro.AddService(w.service, micro.Config{Name: "pay", Version: "1.0.0", Endpoint: &micro.EndpointConfig{
		Subject: "svc.pay.*", Handler: micro.HandlerFunc(func(r micro.Request) {
			mu.Lock()
			got = r
			mu.Unlock()
			switch r.Subject() {
			case "svc.pay.eu":
				_ = r.Respond([]byte("paid"), micro.WithHeaders(micro.Headers{"Content-Type": {"text/plain"}}))
			case "svc.pay.us":
				_ = r.Error("422", "no such customer", nil)
			}
		}),
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = svc.Stop() }()
	if err := w.service.Flush(); err != nil {
		t.Fatal(err)
	}
	h := w.handler(t, Config{Subject: "svc.pay.{2}", Headers: map[string]string{"X-Key": "k"}, ForwardHeaders: []string{"traceparent", "*"}})
	if err := h.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	m := message("orders.eu.created")
	m.Header = nats.Header{"Traceparent": {"00-1"}, "Nats-Msg-Id": {"theirs"}, "relay-id": {"forged"}, "x-key": {"theirs"}}
	result := consumer.RecordReply(m, 100)
	handlertest.Want(t, h.Handle(t.Context(), m), handlertest.Ack)
	if data, _ := result.Data(); string(data) != "paid" || result.Header().Get("Content-Type") != "text/plain" {
		t.Errorf("%q, %v", data, result.Header())
	}
	mu.Lock()
	sent := nats.Header(got.Headers())
	mu.Unlock()
	want := nats.Header{"Traceparent": {"00-1"}, "X-Key": {"k"}, "Relay-Id": {m.ID}, "Relay-Attempt": {"3"}, "Relay-Route": {"billing"},
		"Relay-Subject": {"orders.eu.created"}, "Relay-Deadline": {"2026-01-02T03:04:35Z"}}
	if fmt.Sprint(sent) != fmt.Sprint(want) || string(got.Data()) != "body" {
		t.Errorf("%v, want %v", sent, want)
	}
	handlertest.Want(t, h.Handle(t.Context(), message("orders.us.created")), handlertest.Dead, "request: error 422: no such customer")
}

func TestHandle_answers(t *testing.T) {
	w := setup(t)
	var mu sync.Mutex
	var answer nats.Msg
	w.serve(t, "svc", func(m *nats.Msg) {
		mu.Lock()
		defer mu.Unlock()
		_ = m.RespondMsg(&nats.Msg{Header: answer.Header, Data: answer.Data})
	})
	h := w.handler(t, Config{Subject: "svc", Ack: "409"})
	many := nats.Header{}
	for i := range 1000 {
		many.Set(fmt.Sprintf("H-%d", i), "x")
	}
	in := func(d time.Duration, kind supervise.Kind) supervise.Verdict {
		return supervise.Verdict{Kind: kind, Delay: d}
	}
	for name, tc := range map[string]struct {
		header nats.Header
		want   supervise.Verdict
		text   string
	}{
		"nothing":               {nil, handlertest.Ack, ""},
		"many headers":          {many, handlertest.Ack, ""},
		"dead by its code":      {nats.Header{"Nats-Service-Error-Code": {"400"}, "Nats-Service-Error": {"bad"}}, handlertest.Dead, "error 400: bad"},
		"retry by its code":     {nats.Header{"Nats-Service-Error-Code": {"500"}}, handlertest.Retry, "error 500: the \ufffdbody"},
		"ack by its code":       {nats.Header{"Nats-Service-Error-Code": {"409"}, "Nats-Service-Error": {"done before"}}, handlertest.Ack, ""},
		"a code of its own":     {nats.Header{"Nats-Service-Error-Code": {"E\x1b[31m7"}}, handlertest.Retry, "error E [31m7"},
		"an error without code": {nats.Header{"Nats-Service-Error": {"oops"}}, handlertest.Retry, "oops"},
		"a pause": {nats.Header{"Nats-Service-Error-Code": {"429"}, "Retry-After": {"7"}},
			supervise.Verdict{Kind: supervise.Retry, Delay: 7 * time.Second, Pause: true}, "error 429"},
		"own words, ack":       {nats.Header{"Relay-Verdict": {"ack"}, "Nats-Service-Error-Code": {"500"}}, handlertest.Ack, ""},
		"own words, retry":     {nats.Header{"Relay-Verdict": {"retry"}, "Relay-Delay": {"90s"}, "Relay-Error": {"db"}}, in(90*time.Second, supervise.Retry), "db"},
		"own words, seconds":   {nats.Header{"Relay-Verdict": {"Retry"}, "Relay-Delay": {"1.5"}}, in(1500*time.Millisecond, supervise.Retry), "no reason"},
		"own words, bad delay": {nats.Header{"Relay-Verdict": {"retry"}, "Relay-Delay": {"soon"}}, handlertest.Retry, `"soon" is not a delay`},
		"own words, snooze":    {nats.Header{"Relay-Verdict": {"snooze"}, "Relay-Delay": {"1m"}}, in(time.Minute, supervise.Snooze), ""},
		"own words, dead":      {nats.Header{"Relay-Verdict": {"dead"}, "Relay-Error": {"a\x1b[31mb"}}, handlertest.Dead, "a [31mb"},
		"own words, drop":      {nats.Header{"Relay-Verdict": {"drop"}, "Relay-Error": {"old"}}, in(0, supervise.Drop), "old"},
		"no word":              {nats.Header{"Relay-Verdict": {"maybe"}}, handlertest.Retry, `"maybe" is not a verdict`},
	} {
		mu.Lock()
		answer = nats.Msg{Header: tc.header, Data: []byte("the \xffbody")}
		mu.Unlock()
		if !handlertest.Want(t, h.Handle(t.Context(), message("a.b")), tc.want, tc.text) {
			t.Error(name)
		}
	}
}

func TestHandle_noAnswer(t *testing.T) {
	w := setup(t)
	h := w.handler(t, Config{Subject: "svc.{2}"})
	handlertest.Want(t, h.Handle(t.Context(), message("a.nobody")), handlertest.NotStarted, "request svc.nobody: nats: no responders")

	ctx, cancel := context.WithCancelCause(t.Context())
	w.serve(t, "svc.silent", func(*nats.Msg) { cancel(context.DeadlineExceeded) })
	if err := h.Handle(ctx, message("a.silent")); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) || handlertest.Verdict(err).NotStarted {
		t.Error(err)
	}
	w.serve(t, "svc.large", func(m *nats.Msg) { _ = m.Respond(nil) })
	m := message("a.large")
	m.Data = make([]byte, w.relay.MaxPayload()+1)
	handlertest.Want(t, h.Handle(t.Context(), m), handlertest.Dead, "maximum payload")
	w.relay.Close()
	handlertest.Want(t, h.Handle(t.Context(), message("a.large")), handlertest.NotStarted, "connection closed")
}

// Whoever publishes chooses tokens, and must not reach what the config does not mean.
func TestHandle_refusedSubjects(t *testing.T) {
	w := setup(t)
	w.serve(t, ">", func(m *nats.Msg) {
		if m.Reply != "" && !strings.HasPrefix(m.Subject, "_INBOX") && !strings.HasPrefix(m.Subject, "$") {
			t.Errorf("%s was asked", m.Subject)
		}
	})
	h := w.handler(t, Config{Subject: "{1}.{2}", Allow: []string{"svc.*", "relay.>"}}, "relay.dlq.>", "relay.park")
	for _, subject := range []string{"$JS.x", "$SYS.x", "_INBOX.x", "other.x", "relay.park", "svc.*", "svc.>", "svc", "svc.\x00 x"} {
		handlertest.Want(t, h.Handle(t.Context(), message(subject)), handlertest.Dead)
	}
}

// The confirmation of a stream comes before any answer, and would be taken for one.
func TestCheck_aStreamTakesTheSubject(t *testing.T) {
	w := setup(t)
	if _, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ALL", Subjects: []string{"svc.>"}}); err != nil {
		t.Fatal(err)
	}
	h := w.handler(t, Config{Subject: "svc.{2}"})
	if err := h.Check(t.Context()); err == nil || err.Error() != "subject: the stream ALL holds svc.*, so that relay would take its confirmation for the answer of the service" {
		t.Error(err)
	}
	if _, err := w.js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "ALL", Subjects: []string{"svc.>"}, NoAck: true}); err != nil {
		t.Fatal(err)
	}
	if err := h.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if err := w.handler(t, Config{Subject: "other"}).Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// What cannot be read at start must not be taken for no stream; a server that is away is no fault.
func TestCheck_regressionErrorsAreSeen(t *testing.T) {
	w := setup(t)
	js, err := jetstream.NewWithAPIPrefix(w.relay, "FAKE")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var names, info string
	answer := func(text *string) func(*nats.Msg) {
		return func(m *nats.Msg) {
			mu.Lock()
			defer mu.Unlock()
			_ = m.Respond([]byte(*text))
		}
	}
	w.serve(t, "FAKE.STREAM.NAMES", answer(&names))
	w.serve(t, "FAKE.STREAM.INFO.ALL", answer(&info))
	h, err := New(Config{Subject: "svc"}, w.relay, js)
	if err != nil {
		t.Fatal(err)
	}
	const all = `{"total":1,"offset":0,"limit":1024,"streams":["ALL"]}`
	fails := func(code, errCode int) string {
		return fmt.Sprintf(`{"error":{"code":%d,"err_code":%d,"description":"so it is"}}`, code, errCode)
	}
	for _, tc := range []struct{ names, info, want string }{
		{all, fails(404, 10059), ""}, // deleted meanwhile
		{all, fails(503, 10008), ""},
		{fails(503, 10008), "", ""},
		{all, fails(400, 10003), "subject: the stream ALL holds svc, and relay cannot read whether the stream confirms: "},
		{fails(400, 10003), "", "subject: cannot read whether a stream holds svc: "},
	} {
		mu.Lock()
		names, info = tc.names, tc.info
		mu.Unlock()
		if err := h.Check(t.Context()); tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.HasPrefix(err.Error(), tc.want)) {
			t.Errorf("%v, want %q", err, tc.want)
		}
	}
}

// A stream that is made after Check confirms, or refuses, what no service has seen.
func TestHandle_regressionConfirmationOfAStreamIsNoAnswer(t *testing.T) {
	w := setup(t)
	h := w.handler(t, Config{Subject: "svc.{2}"})
	if err := h.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.serve(t, "svc.own", func(m *nats.Msg) { _ = m.Respond([]byte(`{"stream":"mine","seq":"first"}`)) })
	w.serve(t, "svc.words", func(m *nats.Msg) {
		_ = m.RespondMsg(&nats.Msg{Header: nats.Header{"Relay-Verdict": {"ack"}}, Data: []byte(`{"stream":"mine","seq":1}`)})
	})
	for _, subject := range []string{"a.own", "a.words"} {
		handlertest.Want(t, h.Handle(t.Context(), message(subject)), handlertest.Ack)
	}
	cfg := jetstream.StreamConfig{Name: "LATE", Subjects: []string{"svc.paid"}, MaxMsgs: 1, Discard: jetstream.DiscardNew}
	if _, err := w.js.CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second is refused: the stream is full
		handlertest.Want(t, h.Handle(t.Context(), message("a.paid")), handlertest.Retry, "request svc.paid: no service answered: the stream LATE holds")
	}
}

func TestConfig_faults(t *testing.T) {
	for want, cfg := range map[string]Config{
		"subject: is required":                {},
		"subject: {subject} alone":            {Subject: "{subject}"},
		"subject: the first token of":         {Subject: "{1}.x"},
		"subject: ":                           {Subject: "$JS.x"},
		"allow[0]: ":                          {Subject: "x", Allow: []string{"$SYS.>"}},
		"allow: no pattern matches":           {Subject: "x", Allow: []string{"y"}},
		"headers: Relay-Id is relay's":        {Subject: "x", Headers: map[string]string{"Relay-Id": "secret"}},
		`headers: "a b" is not`:               {Subject: "x", Headers: map[string]string{"a b": "secret"}},
		"headers: the value of A":             {Subject: "x", Headers: map[string]string{"A": "secret\n"}},
		"forward_headers[0]: Nats-Expected-*": {Subject: "x", ForwardHeaders: []string{"Nats-Expected-*"}},
		`forward_headers[0]: "a:b"`:           {Subject: "x", ForwardHeaders: []string{"a:b"}},
		`ack: "1" is not a status`:            {Subject: "x", Ack: "1"},
		`dead: "x" is not a status`:           {Subject: "x", Dead: "x"},
		"dead: 409 is also in ack":            {Subject: "x", Ack: "409", Dead: "409"},
	} {
		if err := cfg.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := (Config{Subject: "svc.{2}", Ack: "400"}).Validate(); err != nil {
		t.Error(err)
	}
}
