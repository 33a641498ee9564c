package program

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/orphans"
	"github.com/relaymq/relay/internal/retry"
)

// legacy is the export of n dead letters by a service that has a route billing too, and reads another stream.
func (w *world) legacy(n int) string {
	w.t.Helper()
	other := &world{t: w.t, dir: w.dir, s: natstest.Start(w.t)}
	store, err := dlq.Open(w.t.Context(), other.s.JetStream(w.t), dlq.Config{})
	if err != nil {
		w.t.Fatal(err)
	}
	for i := range n {
		e := dlq.Entry{
			Origin: retry.Origin{Route: "billing", Stream: "LEGACY", Consumer: "billing", Sequence: uint64(i + 1), Time: time.Now(), Subject: "orders.old", Attempts: 1, LastError: "no"},
			Data:   fmt.Appendf(nil, `{"n":%d}`, i), Reason: dlq.Rejected, Instance: "there",
		}
		if err := store.Put(w.t.Context(), "", e); err != nil {
			w.t.Fatal(err)
		}
	}
	file := filepath.Join(w.dir, "legacy.jsonl")
	if err := os.WriteFile(file, []byte(must(w.t, w.t.TempDir(), "dlq", "export", "--server", other.s.URL())), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return file
}

// A replay of imported dead letters whose stream no route of this service reads never ended, and nothing showed its messages.
func TestReplay_regressionImportedFromAnotherStreamStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, billing)
	file := w.legacy(3)
	p := w.run()
	must(t, w.dir, "dlq", "import", file)
	fill(t, w.js, 1, 1)
	code, out, said := relay(t, w.dir, "dlq", "replay", "--yes", "--wait")
	if code != cli.ExitFailed || !strings.Contains(out, "3 stay, because\n  3: route billing of the running instances reads stream ORDERS, and these messages are of stream LEGACY (--to-subject") ||
		!strings.Contains(out, "numbers 1 2 3\n") || !strings.Contains(out, "1 replayed: 1 succeeded") || !strings.Contains(said, "3 of 4 dead letters stay") {
		t.Errorf("exit %d\n%s%s", code, out, said)
	}
	id := jobID(t, out)
	var job dlq.Job
	if err := json.Unmarshal([]byte(must(t, w.dir, "replay", "show", id, "--json")), &job); err != nil || job.State != dlq.JobDone || job.Refused != 3 ||
		len(job.Refusals) != 3 || len(job.Reasons) != 1 || job.Refusals[0].Number != 1 {
		t.Errorf("%v, %+v", err, job)
	}
	if out := must(t, w.dir, "replay", "show", id); !strings.Contains(out, "\nwhat stays\n3: route billing") || !strings.Contains(out, "--to-subject") {
		t.Errorf("show:\n%s", out)
	}
	if code, out, said := relay(t, w.dir, "dlq", "replay", "1", "--yes"); code != cli.ExitFailed || !strings.Contains(said, "all 1 stay") {
		t.Errorf("alone: exit %d, %s%s", code, out, said)
	}
	// Without an instance the configuration says it, and without both the server.
	p.signal(syscall.SIGTERM)
	p.wait()
	if code, out, _ := relay(t, w.dir, "dlq", "replay", "--yes"); code != cli.ExitFailed || !strings.Contains(out, "route billing of the configuration reads stream ORDERS") {
		t.Errorf("without an instance: exit %d, %s", code, out)
	}
	if code, out, _ := relay(t, t.TempDir(), "dlq", "replay", "--yes", "--server", w.s.URL()); code != cli.ExitFailed || !strings.Contains(out, "no instance takes what is replayed to route billing from stream LEGACY") {
		t.Errorf("without a configuration: exit %d, %s", code, out)
	}
	if n := left(t, w.js, "RELAY_RETRY"); n != 0 {
		t.Errorf("%d messages were handed over to nobody", n)
	}
	// What the reason advises brings them through.
	w.run()
	if out := must(t, w.dir, "dlq", "replay", "--to-subject", "original", "--yes"); !strings.Contains(out, "3 replayed") {
		t.Errorf("to their subjects: %s", out)
	}
	natstest.Eventually(t, "they are handled", func() bool { return left(t, w.js, "ORDERS") == 3 && len(w.hook.all()) == 4 })
}

// What was handed over to nobody was shown by no command.
func TestOrphans_regressionWhatNobodyTakesIsShownAndComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, billing)
	w.run()
	for i := range 2 {
		o := retry.Origin{Route: "billing", Stream: "LEGACY", Consumer: "billing", Sequence: uint64(i + 1), Subject: "orders.old", Replay: 1, Job: "job-1"}
		m := &nats.Msg{Subject: fmt.Sprintf("relay.due.billing.LEGACY.%d-0-r1", i+1), Header: retry.Wrap(o, nats.Header{"Trace": {"a"}}), Data: []byte(`{"n":1}`)}
		if _, err := w.js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	var list []orphans.Orphan
	if err := json.Unmarshal([]byte(must(t, w.dir, "orphans", "ls", "--json")), &list); err != nil || len(list) != 1 || list[0].Messages != 2 || list[0].Stream != "LEGACY" {
		t.Fatalf("%v, %+v", err, list)
	}
	_, command, _ := strings.Cut(list[0].Next, "relay orphans return")
	args := append([]string{"orphans", "return"}, strings.Fields(command)...)
	if out := must(t, w.dir, append(args, "--dry-run")...); out != "2 would become dead letters\n" {
		t.Errorf("a dry run says %q", out)
	}
	if out := must(t, w.dir, append(args, "--yes")...); out != "2 returned: they are dead letters now\n" {
		t.Errorf("it says %q", out)
	}
	if out := must(t, w.dir, append(args, "--yes", "--json")...); !strings.Contains(out, `"returned": 0`) {
		t.Errorf("again: %q", out)
	}
	if out := must(t, w.dir, "orphans", "ls"); !strings.Contains(out, "nothing waits") {
		t.Errorf("after it: %s", out)
	}
	if out := must(t, w.dir, "replay", "ls"); !strings.Contains(out, "retries discard  done   2") {
		t.Errorf("the record: %s", out)
	}
	if out := must(t, w.dir, "dlq", "show", "1"); !strings.Contains(out, "no instance takes what waits for route billing of stream LEGACY") || !strings.Contains(out, "replayed     1 time") {
		t.Errorf("the dead letter:\n%s", out)
	}
	must(t, w.dir, "dlq", "replay", "--to-subject", "original", "--yes")
	natstest.Eventually(t, "they are handled", func() bool { return len(w.hook.all()) == 2 })
	if got := w.hook.all()[0]; got.subject != "orders.old" || got.body != `{"n":1}` {
		t.Errorf("handled as %+v", got)
	}
	// What an instance takes is not for this command.
	if code, _, said := relay(t, w.dir, "orphans", "return", "--from", "billing", "--stream", "ORDERS", "--yes"); code != cli.ExitFailed || !strings.Contains(said, "to make dead letters of them, use relay retries discard") {
		t.Errorf("of a route that runs: exit %d, %s", code, said)
	}
}

// What an operator made dead letters of, out of the retries, was unexplained.
func TestAudit_regressionDiscardedRetriesAreExplained(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
routes:
  - name: billing
    subjects: [orders.>]
    start: all
    handler: {http: {url: "$HOOK"}}
    retry: {max_attempts: 5, policy: constant, min: 1h, max: 1h}
    supervisor: {trip_after: 0}
`)
	w.hook.answers(func(request) (int, string) { return 500, "down" })
	p := w.run()
	for range 3 {
		w.publish("orders.eu", []byte("{}"), nil)
	}
	natstest.Eventually(t, "they are parked", func() bool { return left(t, w.js, "RELAY_RETRY") == 3 })
	must(t, w.dir, "retries", "discard", "ORDERS/1", "--yes")
	must(t, w.dir, "retries", "discard", "--route", "billing", "--yes")
	p.signal(syscall.SIGTERM)
	p.wait()
	var list []audit.Balance
	if err := json.Unmarshal([]byte(must(t, w.dir, "audit", "--json")), &list); err != nil || len(list) != 1 || list[0].Verdict != audit.Balanced || list[0].Total.Discarded != 3 {
		t.Fatalf("%v, %+v", err, list)
	}
	if out := must(t, w.dir, "audit"); !strings.Contains(out, "3 discarded by operators") {
		t.Errorf("it says:\n%s", out)
	}
}
