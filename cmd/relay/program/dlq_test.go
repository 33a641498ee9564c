package program

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/retry"
)

func TestDLQ_filters(t *testing.T) {
	t.Parallel()
	w := newWorld(t, billing)
	fill(t, w.js, 40, 4)
	for args, want := range map[string]string{
		"":                                    "40",
		"--route billing":                     "40",
		"--subject orders.3.*":                "10",
		"--reason dead":                       "4",
		"--attempts 20":                       "2",
		"--attempts 19-":                      "4",
		"--attempts -2":                       "4",
		"--attempts 2-3":                      "4",
		"--error upstream":                    "40",
		"--error-match upstream.1$":           "1",
		"--body .customer.id=7":               "1",
		"--body .n>=30":                       "10",
		"--body .n>=30 --body .total<35":      "5",
		"--body .customer.id=7 --reason dead": "0",
		"--since 1h":                          "40",
		"--until 1h":                          "0",
		"--after 38":                          "2",
		"--like 7":                            "40",
	} {
		if out := must(t, w.dir, append([]string{"dlq", "ls", "--count"}, strings.Fields(args)...)...); out != want+"\n" {
			t.Errorf("%s: got %s, want %s", args, out, want)
		}
	}
	groups := must(t, w.dir, "dlq", "ls", "--group-by", "error")
	if !strings.Contains(groups, "EXAMPLE") || !regexp.MustCompile(`503 Service Unavailable: upstream \d`).MatchString(groups) {
		t.Errorf("no example of a group:\n%s", groups)
	}
	if !strings.Contains(groups, "POST http://<addr>/hook: 503 Service Unavailable: upstream <*>") || !strings.Contains(groups, "\n40 ") {
		t.Errorf("groups:\n%s", groups)
	}
	for _, args := range []string{"--attempts x", "--attempts 5-3", "--attempts 0", "--body id=1", "--group-by route", "--limit -1", "--like x"} {
		if code, _, stderr := relay(t, w.dir, append([]string{"dlq", "ls"}, strings.Fields(args)...)...); code != 2 {
			t.Errorf("%s: exit %d, %s", args, code, stderr)
		}
	}
}

// A script whose variable was not set discarded and replayed the dead letters of all routes, and published at once what was to wait.
func TestEmptyFlag_regressionChoseEverything(t *testing.T) {
	t.Parallel()
	w := newWorld(t, billing)
	store := fill(t, w.js, 4, 1)
	for flag, args := range map[string][]string{
		"--route":      {"dlq", "discard", "--since", "1h", "--yes", "--route", ""},
		"--subject":    {"dlq", "replay", "--yes", "--subject="},
		"--to-subject": {"dlq", "replay", "--yes", "--to-subject", ""},
		"--like":       {"dlq", "discard", "--yes", "--limit", "2", "--like", "0"},
		"--at":         {"pub", "orders.1.created", "x", "--at", ""},
	} {
		if code, out, stderr := relay(t, w.dir, args...); code != 2 || out != "" || !strings.Contains(stderr, flag+" ") {
			t.Errorf("%q: exit %d, %q, %q", args, code, out, stderr)
		}
	}
	if n, _, err := store.Count(t.Context(), dlq.Filter{}); err != nil || n != 4 {
		t.Errorf("%d dead letters are left, %v", n, err)
	}
}

// A typing mistake succeeded silently, with nothing.
func TestDLQ_unknownRouteIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, billing)
	store := fill(t, w.js, 4, 1)
	for _, args := range [][]string{{"ls"}, {"ls", "--count"}, {"export"}, {"discard", "--yes"}, {"replay", "--yes"}} {
		code, out, stderr := relay(t, w.dir, append(append([]string{"dlq"}, args...), "--route", "biling")...)
		if code != 2 || out != "" || !strings.Contains(stderr, "--route biling: there is no such route and no dead letter of it, did you mean billing?") {
			t.Errorf("%v: exit %d, %q, %q", args, code, out, stderr)
		}
	}
	if code, _, stderr := relay(t, w.dir, "dlq", "ls", "--route", "zzz"); code != 2 || !strings.Contains(stderr, "there are billing") {
		t.Errorf("nothing like it: exit %d, %q", code, stderr)
	}
	if _, _, stderr := relay(t, w.dir, "dlq", "ls", "--route", "billing"); stderr != "" {
		t.Errorf("a known route: %q", stderr)
	}
	// Dead letters outlive their route.
	e := dlq.Entry{Origin: retry.Origin{Route: "retired", Stream: "ORDERS", Consumer: "retired", Sequence: 99, Time: time.Now(), Subject: "orders.x", Attempts: 1}, Reason: dlq.Rejected}
	if err := store.Put(t.Context(), "", e); err != nil {
		t.Fatal(err)
	}
	if code, out, stderr := relay(t, w.dir, "dlq", "ls", "--route", "retired", "--count"); code != 0 || out != "1\n" || !strings.Contains(stderr, "note: there is no route retired any more") {
		t.Errorf("a route that was: exit %d, %q, %q", code, out, stderr)
	}
	if code, _, stderr := relay(t, w.dir, "dlq", "ls", "--subject", "payments.>"); code != 0 || !strings.Contains(stderr, "note: no route of the configuration handles a subject that matches payments.>") {
		t.Errorf("a subject of nobody: exit %d, %q", code, stderr)
	}
	// Without a configuration and an instance nobody can tell.
	if code, out, _ := relay(t, t.TempDir(), "dlq", "ls", "--route", "biling", "--server", w.s.URL()); code != 0 || out != "no dead letters\n" {
		t.Errorf("without a configuration: exit %d, %q", code, out)
	}
}

// Who discarded what leaves a record; it cannot be resumed.
func TestDLQ_discardLeavesARecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t, billing)
	fill(t, w.js, 20, 4)
	must(t, w.dir, "dlq", "discard", "--subject", "orders.1.*", "--yes")
	jobs, err := dlq.AttachJobs(t.Context(), w.js, "")
	if err != nil {
		t.Fatal(err)
	}
	list, err := jobs.List(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("%d records, %v", len(list), err)
	}
	if j := list[0]; j.Kind != dlq.Discard || j.State != dlq.JobDone || j.By != cli.Caller() || j.Total != 5 || j.Handed != 5 || j.Filter.Subject != "orders.1.*" || j.Format != 1 {
		t.Errorf("%+v", j)
	}
	if out := must(t, w.dir, "replay", "ls"); !strings.Contains(out, "discard  done") || !strings.Contains(out, cli.Caller()) {
		t.Errorf("ls:\n%s", out)
	}
	if out := must(t, w.dir, "replay", "show", list[0].ID); !strings.Contains(out, "discarded  5, gone 0") || !strings.Contains(out, "--subject orders.1.*") {
		t.Errorf("show:\n%s", out)
	}
	if code, _, stderr := relay(t, w.dir, "replay", "resume", list[0].ID, "--yes"); code != 1 || !strings.Contains(stderr, "is done") {
		t.Errorf("resume: exit %d, %s", code, stderr)
	}
}

// What is exported, discarded and imported again is byte for byte the same.
func TestDLQ_exportAndImport(t *testing.T) {
	t.Parallel()
	w := newWorld(t, billing)
	w.hook.answers(func(request) (int, string) { return 422, "no <such> customer" })
	w.run()
	w.publish("orders.eu.created", []byte{0xff, 0, 'x'}, nats.Header{"Trace": {"a", "b"}})
	w.publish("orders.eu.created", []byte("<b>\u2028"), nil)
	w.publish("orders.eu.created", nil, nil)
	natstest.Eventually(t, "dead letters", func() bool { return len(deadLetters(t, w.js)) == 3 })
	first := must(t, w.dir, "dlq", "export")
	file := filepath.Join(w.dir, "out.jsonl")
	if err := os.WriteFile(file, []byte(first), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := must(t, w.dir, "dlq", "import", file); out != "0 imported, 3 there already\n" {
		t.Errorf("import over what is there: %s", out)
	}
	must(t, w.dir, "dlq", "discard", "--all", "--yes")
	if out := must(t, w.dir, "dlq", "import", file); out != "3 imported, 0 there already\n" {
		t.Errorf("import: %s", out)
	}
	same := func(lines string) (all map[float64]string) {
		all = make(map[float64]string)
		for line := range strings.Lines(lines) {
			var m map[string]any
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatal(err)
			}
			delete(m, "number")
			delete(m, "stored")
			b, _ := json.Marshal(m)
			all[m["sequence"].(float64)] = string(b)
		}
		return all
	}
	a, b := same(first), same(must(t, w.dir, "dlq", "export"))
	for seq, line := range a {
		if b[seq] != line {
			t.Errorf("%v\n was %s\n  is %s", seq, line, b[seq])
		}
	}
	if len(a) != 3 || len(b) != 3 {
		t.Errorf("%d and %d lines", len(a), len(b))
	}
	p := spawn(t, w.dir, strings.NewReader("{\"format\":9}\n"), "dlq", "import")
	if code := p.wait(); code != 1 || !strings.Contains(p.err.String(), "line 1: not a line of relay dlq export: format 9") {
		t.Errorf("another format: exit %d, %s", code, p.err.String())
	}
}

// An import that waited for its standard input did not end with Ctrl-C or SIGTERM, and one that was interrupted did not count what it had stored last.
func TestDLQ_regressionImportIsInterrupted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, billing)
	fill(t, w.js, 200, 10)
	lines := must(t, w.dir, "dlq", "export")
	must(t, w.dir, "dlq", "discard", "--all", "--yes")
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		in, more, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		defer more.Close()
		p := spawn(t, w.dir, in, "dlq", "import")
		if _, err := more.WriteString(lines); err != nil {
			t.Fatal(err)
		}
		natstest.Eventually(t, "it has stored all that came", func() bool { return left(t, w.js, "RELAY_DLQ") == 200 })
		p.signal(sig)
		if code := p.wait(); code != 1 || !strings.Contains(p.out.String(), "imported, ") || !strings.Contains(p.err.String(), "standard input: interrupted before the end: import it again") {
			t.Errorf("%v: exit %d, %s%s", sig, code, p.out.String(), p.err.String())
		}
	}
}

// JSON in an error was masked whole: the answers {"error":"card expired"} and {"error":"unknown customer"} were one group, and a
// replay or discard by group did both.
func TestDLQ_differentAnswersAreDifferentGroups(t *testing.T) {
	t.Parallel()
	w := newWorld(t, billing)
	store, err := dlq.Open(t.Context(), w.js, dlq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		e := dlq.Entry{Origin: retry.Origin{
			Route: "billing", Stream: "ORDERS", Consumer: "billing", Sequence: uint64(i + 1), Time: time.Now(), Subject: fmt.Sprint("orders.", i), Attempts: 1,
			LastError: fmt.Sprintf(`POST http://127.0.0.1:9000: 422 Unprocessable Entity: {"error":%q,"order":"ORD-2024-%d"}`, []string{"card expired", "unknown customer", "card expired"}[i%3], 1000+i),
		}, Data: []byte("x"), Reason: dlq.Rejected}
		if err := store.Put(t.Context(), "", e); err != nil {
			t.Fatal(err)
		}
	}
	if out := must(t, w.dir, "dlq", "ls", "--group-by", "error"); strings.Count(out, "POST") != 4 || !strings.Contains(out, `{"error":"unknown customer","order":"ORD-2024-1028"}`) {
		t.Errorf("groups:\n%s", out)
	}
	if out := must(t, w.dir, "dlq", "discard", "--like", "2", "--yes"); out != "10 discarded\n" {
		t.Errorf("discard --like: %s", out)
	}
	if out := must(t, w.dir, "dlq", "ls", "--error", "card expired", "--count"); out != "20\n" {
		t.Errorf("%s are left with another error", out)
	}
}

// What ls --group-by shows as a group is what --like chooses, for ls, replay and discard alike. Any number from 100 to 599
// counted as a status: one cause made 501 groups, --like took a part of it, and a replay by group did that part without a word.
func TestDLQ_aGroupIsWhatLikeChooses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, billing)
	store, err := dlq.Open(t.Context(), w.js, dlq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 120 {
		e := dlq.Entry{Origin: retry.Origin{
			Route: "billing", Stream: "ORDERS", Consumer: "billing", Sequence: uint64(i + 1), Time: time.Now(), Subject: fmt.Sprint("orders.", i), Attempts: 1,
			LastError: fmt.Sprintf("no stock for order %d", 80+7*i),
		}, Data: []byte("x"), Reason: dlq.Rejected}
		switch {
		case i%10 == 0:
			e.Route = "shipping" // the same error, another route
		case i%10 == 1:
			e.LastError = fmt.Sprintf("HTTP %d", 500+i%3)
		}
		if err := store.Put(t.Context(), "", e); err != nil {
			t.Fatal(err)
		}
	}
	type group struct {
		Count  int    `json:"count"`
		Route  string `json:"route"`
		Sample uint64 `json:"sample"`
	}
	var groups []group
	for line := range strings.Lines(must(t, w.dir, "dlq", "ls", "--group-by", "error", "--json")) {
		var g group
		if err := json.Unmarshal([]byte(line), &g); err != nil {
			t.Fatal(err)
		}
		groups = append(groups, g)
	}
	if len(groups) != 5 || groups[0].Count != 96 {
		t.Fatalf("groups: %+v", groups)
	}
	for _, g := range groups {
		like := fmt.Sprint(g.Sample)
		if out := must(t, w.dir, "dlq", "ls", "--like", like, "--count"); out != fmt.Sprintln(g.Count) {
			t.Errorf("%+v: ls --like counts %s", g, out)
		}
		if g.Route == "billing" {
			if out := must(t, w.dir, "dlq", "replay", "--like", like, "--dry-run"); !strings.HasPrefix(out, fmt.Sprintf("%d dead letter", g.Count)) {
				t.Errorf("%+v: replay --like plans %s", g, out)
			}
		}
	}
	if out := must(t, w.dir, "dlq", "ls", "--group-by", "error", "--limit", "2"); strings.Count(out, "billing")+strings.Count(out, "shipping") != 2 || !strings.Contains(out, "3 smaller groups are not shown") || !strings.Contains(out, "96") {
		t.Errorf("--limit 2:\n%s", out)
	}
	if code, _, stderr := relay(t, w.dir, "dlq", "ls", "--like", fmt.Sprint(groups[0].Sample), "--route", "shipping"); code != 2 || !strings.Contains(stderr, "is of route billing, not shipping") {
		t.Errorf("--like of another route: exit %d, %s", code, stderr)
	}
	for _, g := range groups {
		if out := must(t, w.dir, "dlq", "discard", "--like", fmt.Sprint(g.Sample), "--yes"); out != fmt.Sprintf("%d discarded\n", g.Count) {
			t.Errorf("%+v: %s", g, out)
		}
	}
	if out := must(t, w.dir, "dlq", "ls", "--count"); out != "0\n" {
		t.Errorf("%s are left", out)
	}
}
