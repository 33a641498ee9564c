package worker

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"github.com/relaymq/relay/consumer"
)

// What is written by hand is read by encoding/json as what it was.
func FuzzAppendRequest(f *testing.F) {
	for _, s := range []string{"", "plain", "\"\\\x00\x1f\x7f\n\r\t", "\xff", "é\u2028\u2029\u0085🙂", "\xed\xa0\x80", "a\xf0\x9f"} {
		f.Add(s, s, []byte(s))
	}
	f.Fuzz(func(t *testing.T, subject, header string, data []byte) {
		m := &consumer.Msg{
			ID: "id", Subject: subject, Data: data, Header: nats.Header{"A": {header, "2"}, header: nil}, Attempt: 3, Stream: "S", Sequence: 9,
			Time: time.Unix(1, 2), Route: "r",
		}
		b := appendRequest(nil, m)
		if i := bytes.IndexByte(b, '\n'); i != len(b)-1 {
			t.Fatalf("the line ends at %d of %d", i, len(b))
		}
		if text := string(b); strings.ContainsAny(text, "\u0085\u2028\u2029") {
			t.Fatalf("a reader may see several lines: %q", text)
		}
		var got struct {
			ID, Subject, Stream, Route, Data string
			Base64                           []byte `json:"data_base64"`
			Headers                          map[string][]string
			Attempt                          int
			Sequence                         uint64
			Time                             time.Time
		}
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		text := func(s string) string { return string([]rune(s)) } // invalid bytes are U+FFFD
		body := got.Base64
		if utf8.Valid(data) {
			body = []byte(got.Data)
		}
		if got.Subject != text(subject) || !bytes.Equal(body, data) || got.Attempt != 3 || got.Sequence != 9 || !got.Time.Equal(m.Time) ||
			header != "A" && got.Headers["A"][0] != text(header) {
			t.Fatalf("%+v of %s", got, b)
		}
	})
}

// Whatever a worker writes, it is refused or one of the five verdicts.
func FuzzParse(f *testing.F) {
	for _, s := range []string{`{"id":"x","verdict":"ack"}`, `{"id":"x","verdict":"retry","delay":"1h","error":"\u001b"}`, `{"delay":1e308}`, `[`, `null`, `{"progress":""}`,
		`{"id":"x","verdict":"ack","result":{"a":1},"result_base64":"AA=="}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		var a answer
		if a.parse(line) != nil {
			return
		}
		if a.Verdict == "" && a.Progress == nil && !a.Ready || a.delay < 0 {
			t.Fatalf("%s: %+v", line, a)
		}
	})
}

// Lines come as they were written, however the bytes arrive, and one that is too long ends it without its memory.
func TestLines_next(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var sent []string
		for _, n := range rapid.SliceOf(rapid.OneOf(rapid.IntRange(0, 3), rapid.IntRange(4000, 9000))).Draw(t, "lengths") {
			sent = append(sent, strings.Repeat("x", n))
		}
		all := strings.Join(append(slices.Clone(sent), ""), "\n")
		var from io.Reader = strings.NewReader(all)
		switch rapid.IntRange(0, 2).Draw(t, "reader") {
		case 1:
			from = iotest.OneByteReader(from)
		case 2:
			from = iotest.HalfReader(iotest.DataErrReader(from))
		}
		l := lines{from: from, max: 5000}
		for _, want := range sent {
			got, err := l.next()
			if len(want) > 5000 && err != nil {
				if !errors.Is(err, errTooLong) || !strings.HasPrefix(want, string(got)) || len(l.buf) > 5000+2*firstBuffer {
					t.Fatalf("%v after %d bytes, in %d", err, len(got), len(l.buf))
				}
				return
			}
			if string(got) != want || err != nil {
				t.Fatalf("%d bytes, %v, want %d", len(got), err, len(want))
			}
		}
		if _, err := l.next(); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	})
}
