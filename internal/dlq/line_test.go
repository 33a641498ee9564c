package dlq

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/retry"
)

func TestLine_roundTrip(t *testing.T) {
	for name, f := range map[string]func(*Entry){
		"everything": func(e *Entry) {
			e.Job, e.Edited, e.Replay = "job-1", "job-0", 2
			e.Past = []retry.Past{{Time: storedAt, Reason: "dead", Error: "x"}, {Replay: 1, Job: "j", Time: storedAt, Attempts: 3}}
		},
		"nothing": func(e *Entry) { e.Header, e.Data, e.Stack, e.LastError = nil, nil, nil, "" },
		"bytes":   func(e *Entry) { e.Subject, e.Data, e.Stack = "a.\xff.*", randomBytes(1000), []byte("\xff") },
		"headers": func(e *Entry) { e.Header = nats.Header{"a\xff": {"1", "\xfe"}, "B": {"", " x"}} },
		"markup":  func(e *Entry) { e.Data = []byte("<script>\u2028&\x00</script>\n") },
	} {
		e := entry(1)
		f(&e)
		line, err := json.Marshal(e)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if strings.Contains(string(line), "\n") {
			t.Errorf("%s: more than one line", name)
		}
		var got Entry
		if err := json.Unmarshal(line, &got); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, line)
		}
		sameEntry(t, e, got)
	}
}

func TestLine_refuses(t *testing.T) {
	listed := entry(1)
	listed.Data, listed.Size = nil, 7
	without, err := json.Marshal(listed)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{string(without), `{`, `{}`, `{"format":2,"body":""}`, `{"format":1,"body":""}`, `{"format":1,"body":"","route":"a","stream":"S","sequence":1,"published":"x"}`} {
		var e Entry
		if err := json.Unmarshal([]byte(line), &e); err == nil {
			t.Errorf("%s: no error", line)
		}
	}
}

// What is exported, discarded and imported is the same, under a prefix of its own too, and once however often it is done.
func TestImport_once(t *testing.T) {
	s, js := setup(t, Config{Prefixes: []string{"dead.letters"}})
	odd, large := entry(2), entry(3)
	odd.Subject, odd.Header, odd.Data = "orders.\xff.*", nats.Header{"A b": {" 1"}, "X": {"1", "\xff"}}, []byte{0xff, 0}
	large.Data = randomBytes(1 << 20)
	want := []Entry{entry(1), odd, large}
	for _, e := range want {
		if err := s.Put(t.Context(), "dead.letters", e); err != nil {
			t.Fatal(err)
		}
	}
	var lines [][]byte
	for _, e := range collect(t, s, Filter{WithBody: true}) {
		line, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
		if err := s.Discard(t.Context(), e.StoredSequence); err != nil {
			t.Fatal(err)
		}
	}
	for try := range 2 {
		for _, line := range lines {
			var e Entry
			if err := json.Unmarshal(line, &e); err != nil {
				t.Fatal(err)
			}
			stored, err := s.Import(t.Context(), e)
			if err != nil || stored != (try == 0) {
				t.Errorf("try %d: stored %v, %v", try, stored, err)
			}
		}
	}
	list := collect(t, s, Filter{WithBody: true})
	if len(list) != 3 || messages(t, js, s.Name()) != 3 {
		t.Fatalf("%d entries", len(list))
	}
	for i, e := range list {
		sameEntry(t, want[i], e)
		if !strings.HasPrefix(e.StoredSubject, "dead.letters.") {
			t.Errorf("stored on %q", e.StoredSubject)
		}
		line, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		var a, b map[string]any
		_, _ = json.Unmarshal(lines[i], &a), json.Unmarshal(line, &b)
		for _, changes := range []string{"number", "stored"} {
			delete(a, changes)
			delete(b, changes)
		}
		if d := cmp.Diff(a, b); d != "" {
			t.Error(d)
		}
	}
}

// Whoever replays, imports what was exported before, and replays again within ten minutes wants the message twice. The server dropped the second one as a
// duplicate, and the entry was removed.
func TestReplay_regressionAfterAnImportItIsNoDuplicate(t *testing.T) {
	s, js := setup(t, Config{})
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ELSEWHERE", Subjects: []string{"elsewhere"}}); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]Target{"to its route": {Job: "job-1"}, "to a subject": {Subject: "elsewhere"}} {
		put(t, s, entry(1))
		line, err := json.Marshal(collect(t, s, Filter{WithBody: true})[0])
		if err != nil {
			t.Fatal(err)
		}
		for try := range 3 {
			e := collect(t, s, Filter{})[0]
			if err := s.Replay(t.Context(), e, target); err != nil {
				t.Fatal(err)
			}
			if target.Subject == "" {
				settle(t, due(t, js))
			} else if n := messages(t, js, "ELSEWHERE"); n != try+1 {
				t.Errorf("%s: %d messages after replay %d", name, n, try+1)
			}
			if err := json.Unmarshal(line, &e); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Import(t.Context(), e); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Discard(t.Context(), collect(t, s, Filter{})[0].StoredSequence); err != nil {
			t.Fatal(err)
		}
	}
}

// FuzzEntry is the round trip of the headers on the wire and of the lines, for everything that a message may hold.
func FuzzEntry(f *testing.F) {
	f.Add("orders.eu", "K", "v", []byte("body"), "error", []byte("stack"), "job", uint64(7), uint8(3))
	f.Add("a.*.\xff", "Nats-Rollup", " \r\n", []byte{0xff}, "\x1b[31m", []byte{0xff}, "", uint64(1), uint8(0))
	f.Fuzz(func(t *testing.T, subj, name, value string, data []byte, text string, stack []byte, job string, seq uint64, replay uint8) {
		if seq == 0 {
			seq = 1
		}
		e := entry(seq)
		e.Time = storedAt
		e.Subject, e.Data, e.LastError, e.Stack, e.Job, e.Replay = subj, data, retry.CleanText(text, 4096), stack, job, int(replay)
		e.Job = retry.CleanText(job, 64)
		e.Header = nats.Header{}
		if name != "" && len(name)+len(value) < 4096 {
			e.Header[name] = []string{value, "second"}
		}
		e.Remember(retry.Past{Time: storedAt, Reason: "dead", Error: text})
		if len(stack) > MaxStack {
			return
		}
		got, err := decode(encode(e))
		if err != nil {
			t.Fatal(err)
		}
		got.Data = e.Data
		if value == "" || len(e.Header) == 0 || len(e.Header[name]) == 2 {
			sameEntry(t, e, got)
		}
		line, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		var back Entry
		if err := json.Unmarshal(line, &back); err != nil {
			t.Fatal(err)
		}
		back.Size = 0
		sameEntry(t, e, back)
	})
}

// deaf publishes, and hears no answer.
type deaf struct{ jetstream.JetStream }

func (d deaf) PublishMsg(ctx context.Context, m *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	if _, err := d.JetStream.PublishMsg(ctx, m, opts...); err != nil {
		return nil, err
	}
	return nil, nats.ErrTimeout
}

// What an import stored was counted as there already when the answer was lost.
func TestImport_regressionOfWhichTheAnswerIsLost(t *testing.T) {
	s, js := setup(t, Config{})
	s.js = deaf{js}
	for _, want := range []bool{true, false} {
		if stored, err := s.Import(t.Context(), entry(1)); err != nil || stored != want {
			t.Errorf("stored %v, want %v: %v", stored, want, err)
		}
	}
	if n := messages(t, js, s.Name()); n != 1 {
		t.Errorf("%d entries", n)
	}
}
