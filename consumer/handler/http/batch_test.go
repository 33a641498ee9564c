package http

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	nethttp "net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler"
)

// A batch is one request, a line for each message; the answer says which of them failed, and how.
func TestBatch_isOneRequestOfLines(t *testing.T) {
	var lines []batchLine
	answer, status := "", 200
	s := httptest.NewServer(nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		lines = nil
		if r.Header.Get("Content-Type") != "application/x-ndjson" || r.Header.Get("Relay-Batch") != "3" || r.Header.Get("Relay-Subject") != "" ||
			!strings.HasPrefix(r.Header.Get("Relay-Id"), "batch-") {
			t.Errorf("headers: %v", r.Header)
		}
		for in := bufio.NewScanner(r.Body); in.Scan(); {
			var l batchLine
			if err := json.Unmarshal(in.Bytes(), &l); err != nil {
				t.Errorf("%s: %v", in.Text(), err)
			}
			lines = append(lines, l)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	defer s.Close()
	h, err := New(Config{URL: s.URL, ForwardHeaders: []string{"X-Good"}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Stop(context.Background()) }()
	batch := []*consumer.Msg{
		{ID: "a", Subject: "orders.1", Data: []byte("line\nbreak <&>"), Attempt: 1, Stream: "S", Sequence: 7, Time: time.Unix(1, 0), Header: nats.Header{"X-Good": {"1"}, "X-Bad": {"2"}}},
		{ID: "b", Data: []byte{0xff, 0}, Attempt: 2},
		{ID: "c"},
	}
	kinds := func(errs []error) (list []string) {
		for _, err := range errs {
			list = append(list, consumer.VerdictOf(err).Kind.String())
		}
		return list
	}
	for _, tt := range []struct{ answer, want string }{
		{"", ""}, {"thanks", ""}, {"{}", "ack ack ack"},
		{`{"failed":[{"id":"b","error":"no"}]}`, "ack retry ack"},
		{`{"failed":[{"id":"a","verdict":"dead"},{"id":"b","verdict":"drop"},{"id":"c","verdict":"what"}]}`, "dead drop retry"},
		{`{"failed":[{"id":"stranger"}]}`, "names"}, {`{"failed":`, "cannot read the answer"}, {strings.Repeat(" ", maxBatchAnswer+1), "longer"},
	} {
		answer = tt.answer
		errs, err := h.HandleBatch(t.Context(), batch)
		got := strings.Join(kinds(errs), " ")
		if err != nil {
			got = err.Error()
		}
		if err != nil && (len(errs) > 0 || !strings.Contains(got, tt.want) || tt.want == "") || err == nil && got != tt.want {
			t.Errorf("%.40q: %s, want %s", tt.answer, got, tt.want)
		}
	}
	if len(lines) != 3 || *lines[0].Data != "line\nbreak <&>" || lines[0].Sequence != 7 || len(lines[0].Headers) != 1 || string(lines[1].Base64) != "\xff\x00" || lines[1].Attempt != 2 {
		t.Errorf("%+v", lines)
	}
	status = 400
	if errs, err := h.HandleBatch(t.Context(), batch); errs != nil || consumer.VerdictOf(err).Kind != consumer.VerdictDead {
		t.Errorf("as a whole: %v, %v", errs, err)
	}
}

func FuzzBatchAnswer(f *testing.F) {
	for _, s := range []string{"", "{}", "null", `{"failed":[{"id":"a"}]}`, `{"failed":[{"id":"b","verdict":"dead","error":"\u0000"}]}`, `{"failed":null}`, `{"failed":[{}]}`, "{\xff"} {
		f.Add([]byte(s))
	}
	batch := []*consumer.Msg{{ID: "a"}, {ID: "b"}}
	f.Fuzz(func(t *testing.T, answer []byte) {
		errs, err := failedOf(batch, &reply{result: answer})
		if err != nil && errs != nil || errs != nil && len(errs) != len(batch) {
			t.Errorf("%q: %v, %v", answer, errs, err)
		}
		if err := errors.Join(append(errs, err)...); err != nil && len(err.Error()) > 4<<10 {
			t.Errorf("%q: an error of %d bytes", answer, len(err.Error()))
		}
	})
}

// An answer that was no JSON object acknowledged every message, also when it named some behind a byte order mark, in an array, or
// compressed.
func TestBatch_regressionAnswerThatIsNotUnderstood(t *testing.T) {
	t.Parallel()
	const failed = `{"failed":[{"id":"a"}]}`
	for _, tt := range []struct{ answer, typ, coding, want string }{
		{answer: "\ufeff" + failed, want: "named"}, {answer: "\ufeff"}, {answer: "thanks", typ: "text/plain"},
		{answer: `[{"id":"a"}]`, want: "cannot read the answer"}, {answer: "\x1f\x8b\b", want: "cannot read the answer"}, {answer: "x\x9c", coding: "deflate", want: "cannot read the answer"},
		{answer: `null`, typ: "application/json", want: "cannot read the answer"}, {answer: `"a"`, typ: "Application/Problem+JSON", want: "cannot read the answer"},
		{answer: " ", typ: "application/json"}, {answer: failed, typ: "application/x-ndjson", want: "named"},
	} {
		errs, err := failedOf([]*consumer.Msg{{ID: "a"}}, &reply{result: []byte(tt.answer), resultType: tt.typ, resultCoding: tt.coding})
		got := ""
		switch {
		case err != nil && strings.Contains(err.Error(), "cannot read the answer"):
			got = "cannot read the answer"
		case err != nil:
			got = err.Error()
		case len(errs) == 1 && errs[0] != nil:
			got = "named"
		}
		if got != tt.want {
			t.Errorf("%q (%s, %s): %q, want %q", tt.answer, tt.typ, tt.coding, got, tt.want)
		}
	}
}

// The token came back in the errors of an answer, and from there into the log and the dead letters.
func TestBatch_regressionAnswerGivesTheTokenBack(t *testing.T) {
	t.Parallel()
	answer := ""
	s := httptest.NewServer(nethttp.HandlerFunc(func(w nethttp.ResponseWriter, _ *nethttp.Request) { _, _ = io.WriteString(w, answer) }))
	defer s.Close()
	h, err := New(Config{URL: s.URL, Auth: Auth{Bearer: handler.SecretText("hush-hush")}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Stop(context.Background()) }()
	for _, answer = range []string{
		`{"failed":[{"id":"a","error":"hush-hush is no good","verdict":"hush-hush"}]}`, `{"failed":[{"id":"hush-hush"}]}`,
		`{"failed":[{"id":"a","error":"\u0068ush-hush"}]}`,
	} {
		errs, err := h.HandleBatch(t.Context(), []*consumer.Msg{{ID: "a"}})
		if err = errors.Join(append(errs, err)...); err == nil || strings.Contains(err.Error(), "hush-hush") || !strings.Contains(err.Error(), "***") {
			t.Errorf("%s: %v", answer, err)
		}
	}
}

// batchLine is a message in a batch, for encoding/json.
type batchLine struct {
	ID       string              `json:"id"`
	Attempt  int                 `json:"attempt"`
	Subject  string              `json:"subject"`
	Headers  map[string][]string `json:"headers,omitempty"` // that forward_headers permits
	Data     *string             `json:"data,omitempty"`
	Base64   []byte              `json:"data_base64,omitempty"` // when it is not UTF-8
	Stream   string              `json:"stream"`
	Sequence uint64              `json:"sequence"`
	Time     time.Time           `json:"time"`
}

// A line is what encoding/json makes of it.
func TestAppendLine(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.OneOf(rapid.StringMatching(`[ -~]{0,20}`), rapid.String())
		m := &consumer.Msg{
			ID: text.Draw(rt, "id"), Attempt: rapid.Int().Draw(rt, "attempt"), Subject: text.Draw(rt, "subject"), Stream: text.Draw(rt, "stream"),
			Sequence: rapid.Uint64().Draw(rt, "sequence"), Time: time.Unix(rapid.Int64Range(0, 1<<34).Draw(rt, "s"), rapid.Int64Range(0, 999_999_999).Draw(rt, "ns")),
		}
		m.Data = rapid.OneOf(rapid.SliceOf(rapid.Byte()), rapid.Map(text, func(s string) []byte { return []byte(s) })).Draw(rt, "data")
		headers := nethttp.Header(rapid.MapOfN(text, rapid.SliceOfN(text, 1, 2), 0, 2).Draw(rt, "headers"))
		l := batchLine{ID: m.ID, Attempt: m.Attempt, Subject: m.Subject, Headers: headers, Stream: m.Stream, Sequence: m.Sequence, Time: m.Time.UTC()}
		if utf8.Valid(m.Data) {
			l.Data = new(string(m.Data))
		} else {
			l.Base64 = m.Data
		}
		var want bytes.Buffer
		to := json.NewEncoder(&want)
		to.SetEscapeHTML(false)
		if err := to.Encode(l); err != nil {
			rt.Fatal(err)
		}
		if got, err := appendLine(nil, m, headers); err != nil || string(got) != want.String() {
			rt.Fatalf("%s, %v; want %s", got, err, want.String())
		}
	})
}
