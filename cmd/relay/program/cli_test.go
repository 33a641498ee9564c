package program

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/natstest"
)

var update = flag.Bool("update", false, "write what relay says into testdata/cli")

const cliData = "../../../testdata/cli"

// Each file of testdata/cli is a session at a shell, in a directory of its own with the files of testdata/cli/files. Lines
// that begin with "$ relay" are commands; what follows is what they said: stdout as it is, stderr with "! " before each
// line, and the exit code when it is not 0. "< text" after a command is its standard input, $SERVER the URL of a server.
// A first line "# with dead letters" runs relay, and has some messages fail, before the session.
// -update writes what is said now.
func TestCLI_golden(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(cliData, "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no sessions in %s: %v", cliData, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			session, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			w := newWorld(t, billing)
			if err := os.CopyFS(w.dir, os.DirFS(filepath.Join(cliData, "files"))); err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(string(session), "# with dead letters\n") {
				w.someDeadLetters()
			}
			var got strings.Builder
			for line := range strings.Lines(string(session)) {
				if strings.HasPrefix(line, "#") {
					got.WriteString(line)
				}
				command, ok := strings.CutPrefix(line, "$ relay")
				if !ok {
					continue
				}
				got.WriteString(line)
				got.WriteString(w.say(command))
			}
			if *update {
				if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(session), got.String()); diff != "" {
				t.Errorf("session (-want +got):\n%s", diff)
			}
		})
	}
}

// What prints tables and texts ended with code 0 when its output could not be written: a list on a full disk was cut, and nobody said so.
func TestCLI_regressionFullDiskIsAnError(t *testing.T) {
	t.Parallel()
	full, err := os.Open(os.DevNull) // to read only: it fails like a full disk, on every system
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	w := newWorld(t, billing)
	fill(t, w.js, 3, 3)
	for _, args := range [][]string{{"dlq", "ls"}, {"dlq", "show", "1"}, {"lint"}, {"explain", "orders.x"}, {"nats", "permissions"}, {"replay", "ls"}, {"--help"}} {
		if code, stderr := relayInto(t, w.dir, full, args...); code != 1 || !strings.Contains(stderr, "bad file descriptor") {
			t.Errorf("relay %s: exit %d, %s", strings.Join(args, " "), code, stderr)
		}
	}
}

// Not a golden file: it changes with every command.
func TestCLI_everyCommandIsInTheHelp(t *testing.T) {
	t.Parallel()
	help := must(t, t.TempDir())
	for _, c := range newRoot().Commands() {
		if c.Short == "" || !strings.Contains(help, c.Short) {
			t.Errorf("%q (%q) is not in the help", c.Name(), c.Short)
		}
	}
}

// billing is a route that gives up quickly.
const billing = `
routes:
  - name: billing
    subjects: [orders.>]
    handler: {http: {url: "$HOOK"}}
    retry: {max_attempts: 2, policy: constant, min: 50ms}
`

// someDeadLetters runs relay, and makes four dead letters of two reasons.
func (w *world) someDeadLetters() {
	w.t.Helper()
	w.hook.answers(func(r request) (int, string) {
		switch {
		case r.subject == "orders.us.created":
			return 503, "gateway down"
		case r.subject == "orders.eu.created":
			return 422, "no such customer"
		}
		return 200, ""
	})
	w.run()
	// One after the other: their numbers are in the sessions.
	for i, m := range []nats.Msg{
		{Subject: "orders.eu.created", Data: []byte(`{"id":1,"customer":"Ada"}`), Header: nats.Header{"Trace": {"abc"}}},
		{Subject: "orders.us.created", Data: []byte("plain text")},
		{Subject: "orders.eu.created", Data: []byte{0xff, 0x00, 0x1b, '['}},
		{Subject: "orders.us.created"},
	} {
		w.publish(m.Subject, m.Data, m.Header)
		natstest.Eventually(w.t, "dead letter", func() bool {
			st, err := w.js.Stream(w.t.Context(), "RELAY_DLQ")
			return err == nil && st.CachedInfo().State.Msgs == uint64(i+1)
		})
	}
	settled(w.t, w.js, "ORDERS", "billing")
	w.hook.answers(nil) // mended
}

// say runs a command line and returns what it said.
func (w *world) say(line string) string {
	w.t.Helper()
	command, stdin, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " < ")
	var args []string
	for _, m := range words.FindAllString(command, -1) {
		args = append(args, strings.ReplaceAll(strings.Trim(m, "'"), "$SERVER", w.s.URL()))
	}
	p := spawn(w.t, w.dir, strings.NewReader(stdin), args...)
	code := p.wait()
	out := w.timeless(p.out.String())
	if out != "" && !strings.HasSuffix(out, "\n") {
		out += "\\no end of line\n"
	}
	for l := range strings.Lines(w.timeless(p.err.String())) {
		out += "! " + l
	}
	if code != 0 {
		out += fmt.Sprintf("exit %d\n", code)
	}
	return out
}

var words = regexp.MustCompile(`'[^']*'|\S+`)

// changing is what differs from run to run.
var changing = []struct {
	pattern *regexp.Regexp
	text    string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`), "2026-01-31 12:00:00"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "2026-01-31T12:00:00Z"},
	{regexp.MustCompile(`127\.0\.0\.1:\d{5}\b`), "127.0.0.1:PORT"},
	{regexp.MustCompile(`"instance": ?"[^"]*"`), `"instance": "INSTANCE"`},
	{regexp.MustCompile(`stored (\S+ \S+) by \S+`), "stored $1 by INSTANCE"},
	{regexp.MustCompile(`\d{8}-\d{6}-\w{4}\b`), "JOB"},
	{regexp.MustCompile(`relay \S+ \(embedded nats-server \S+, nats.go \S+, go\S+\)`), "relay VERSION (embedded nats-server VERSION, nats.go VERSION, goVERSION)"},
	{regexp.MustCompile(`("(?:relay|nats_server|nats_go|go)"): "[^"]*"`), `$1: "VERSION"`},
}

func (w *world) timeless(s string) string {
	s = strings.ReplaceAll(s, w.s.URL(), "$SERVER")
	for _, c := range changing {
		s = c.pattern.ReplaceAllString(s, c.text)
	}
	return s
}
