package program

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/plain"
	"github.com/relaymq/relay/internal/retry"
)

// hostile would act on a terminal: an escape sequence, its C1 form, DEL, a bidi mark, a line separator, half a character.
const hostile = "\x1b[2J\u009b31m\x7f\u202egnp\u2066.exe\u2028\r\xff"

// Every command that shows dead letters or replay jobs, with whatever a publisher, a handler or another user of the account
// may have written into them. None of it reaches the terminal as it is.
func TestDLQ_nothingActsOnTheTerminal(t *testing.T) {
	t.Parallel()
	w := newWorld(t, billing)
	store, err := dlq.Open(t.Context(), w.js, dlq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(-time.Hour)
	for i, body := range []string{hostile, `{"a": "` + strings.ToValidUTF8(strings.ReplaceAll(hostile, "\r", ""), "?") + `", "\u001b[2J": 1}`, "text\u202e\n\u009b2J\u2028"} {
		e := dlq.Entry{
			Origin: retry.Origin{
				Route: "billing", Stream: "ORDERS", Consumer: "billing" + hostile, Sequence: uint64(i + 1), Time: at, Subject: "orders." + hostile,
				Attempts: 3, FirstFailure: at, LastFailure: at, LastError: "no such customer " + hostile, Job: "job" + hostile, Replay: i, Edited: "x" + hostile,
				Past: []retry.Past{{Time: at, Attempts: 1, Reason: "dead" + hostile, Error: hostile, Job: hostile}},
			},
			Header: nats.Header{"Name" + hostile: {hostile}, "Trace": {"\u202e"}}, Data: []byte(body), Reason: dlq.Rejected, Instance: hostile, Stack: []byte("goroutine 1" + hostile + "\n\tx" + hostile),
		}
		if i == 2 {
			e.Reason = dlq.Reason("\u202e\u009b")
			e.Route = "bill\u202eing"
		}
		if err := store.Put(t.Context(), "", e); err != nil {
			t.Fatal(err)
		}
	}
	// One that cannot be read, and says so with what it has.
	bad := &nats.Msg{Subject: "relay.dlq.billing.ORDERS.9-1-0.x", Header: nats.Header{"Relay-Origin-Stream": {hostile}, "Relay-Attempts": {hostile}}}
	if _, err := w.js.PublishMsg(t.Context(), bad); err != nil {
		t.Fatal(err)
	}
	jobs, err := dlq.OpenJobs(t.Context(), w.js, "", 1)
	if err != nil {
		t.Fatal(err)
	}
	job := &dlq.Job{
		ID: "evil", State: dlq.JobState("\u202estopped"), Why: hostile, By: hostile, Runner: hostile, Created: at, Filter: dlq.Filter{Route: hostile, Text: hostile},
		Routes: map[string]int{hostile: 1}, Subject: "x" + hostile, Refused: 1, Refusals: []dlq.Refusal{{Number: 1, Why: hostile}},
	}
	if err := jobs.Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	if err := jobs.Tell(t.Context(), "evil", "1", []dlq.Verdict{{Message: hostile, Route: hostile, Error: hostile}}); err != nil {
		t.Fatal(err)
	}
	evil := filepath.Join(w.dir, "evil.jsonl")
	if err := os.WriteFile(evil, []byte(`{"format": 1, "route": "`+"\u202e\u009b"+`", "reason": 7}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	said := 0
	for _, args := range [][]string{
		{"dlq", "ls"}, {"dlq", "ls", "--json"}, {"dlq", "ls", "--count"}, {"dlq", "ls", "--group-by", "error"}, {"dlq", "ls", "--group-by", "error", "--json"},
		{"dlq", "ls", "--route", "x" + "\u202e\u009b"}, {"dlq", "ls", "--subject", "\u202e\u009b.>.x"}, {"dlq", "ls", "--reason", "\u202e\u009b"},
		{"dlq", "ls", "--error-match", "(\u202e\u009b"}, {"dlq", "ls", "--body", "\u202e\u009b"}, {"dlq", "ls", "--like", "4"},
		{"dlq", "show", "1"}, {"dlq", "show", "2"}, {"dlq", "show", "3"}, {"dlq", "show", "4"}, {"dlq", "show", "2", "--json"}, {"dlq", "show", "1", "--original"},
		{"dlq", "show", "\u202e\u009b"}, {"dlq", "export"}, {"dlq", "import", evil}, {"dlq", "import", "/no/such/\u202e\u009b"},
		{"dlq", "replay", "--dry-run"}, {"dlq", "replay", "3", "--dry-run"}, {"dlq", "replay", "4", "--yes"},
		{"replay", "ls"}, {"replay", "ls", "--json"}, {"replay", "show", "evil"}, {"replay", "show", "evil", "--json"},
		{"replay", "show", "\u202e\u009b"}, {"replay", "resume", "evil"}, {"replay", "resume", "evil", "--yes"}, {"replay", "cancel", "evil"},
		{"dlq", "discard", "--all", "--yes"}, {"dlq", "discard", "4", "--yes"},
	} {
		_, out, errOut := relay(t, w.dir, args...)
		for _, text := range []string{out, errOut} {
			said += len(text)
			for line := range strings.Lines(text) {
				line = strings.TrimSuffix(line, "\n")
				if safe := plain.Text(line); safe != line {
					t.Errorf("relay %s: %s", plain.Text(strings.Join(args, " ")), safe)
				}
			}
		}
	}
	if said < 10_000 {
		t.Errorf("the commands said %d bytes only", said)
	}
	if info, err := w.js.Stream(t.Context(), "RELAY_DLQ"); err != nil || info.CachedInfo().State.Msgs != 0 {
		t.Errorf("not everything was discarded: %v", err)
	}
}
