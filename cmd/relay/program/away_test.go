package program

import (
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/natstest"
)

// Of a publish whose answer did not come relay pub said "context canceled", or waited for the answer over a connection that was lost. Whether the message is
// stored is not known then, and pub says how it can be published again.
func TestPub_regressionSaysThatTheOutcomeIsNotKnown(t *testing.T) {
	t.Parallel()
	const unknown = "it is not known whether the message is stored"
	for name, c := range map[string]struct {
		args   []string
		happen func(w *world, p *process)
		want   []string
	}{
		"Ctrl-C": {
			happen: func(_ *world, p *process) { p.signal(syscall.SIGINT) }, want: []string{"interrupted: " + unknown, "it has no Nats-Msg-Id"},
		},
		"SIGTERM, with an id": {
			args:   []string{"-H", "Nats-Msg-Id: n17"},
			happen: func(_ *world, p *process) { p.signal(syscall.SIGTERM) }, want: []string{"interrupted: " + unknown, "the same Nats-Msg-Id (n17)"},
		},
		"a time-out": {
			args:   []string{"--timeout", "2s"},
			happen: func(*world, *process) {}, want: []string{"no answer within 2s: " + unknown},
		},
		"a server that was away": {
			args:   []string{"--timeout", "10m"},
			happen: func(w *world, _ *process) { w.s.Restart() }, want: []string{"the connection to NATS was lost before the answer came: " + unknown},
		},
		"Ctrl-C, delayed": {
			args:   []string{"--in", "1h", "--id", "n17"},
			happen: func(_ *world, p *process) { p.signal(syscall.SIGINT) }, want: []string{"interrupted: " + unknown, "--id n17"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, billing)
			got := make(chan *nats.Msg, 1)
			for _, subject := range []string{"silent.a", "relay.later.in.>"} { // who listens there never answers
				if _, err := w.nc.ChanSubscribe(subject, got); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.nc.Flush(); err != nil {
				t.Fatal(err)
			}
			p := spawn(t, w.dir, nil, append([]string{"pub", "silent.a", "x"}, c.args...)...)
			select {
			case <-got:
			case <-time.After(patience):
				t.Fatal("nothing is published")
			}
			c.happen(w, p)
			code, said := p.wait(), p.err.String()
			for _, want := range c.want {
				if code != 1 || !strings.Contains(said, want) || strings.Contains(said, "context ") {
					t.Errorf("exit %d, without %q: %s", code, want, said)
				}
			}
		})
	}
}

// Commands whose server went away said that an outbound buffer limit was exceeded, or that a context deadline was.
func TestCommands_regressionSayThatTheServerIsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, billing)
	store := fill(t, w.js, 1, 1)
	line := must(t, w.dir, "dlq", "export")
	in, feed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer feed.Close()
	p := spawn(t, w.dir, in, "dlq", "import")
	in.Close()
	_, _ = io.WriteString(feed, strings.Replace(line, `"sequence":`, `"sequence":7`, 1))
	natstest.Eventually(t, "the first line is imported", func() bool {
		n, _, err := store.Count(t.Context(), dlq.Filter{})
		return err == nil && n == 2
	})
	w.s.Stop()
	_, _ = io.WriteString(feed, strings.Replace(line, `"sequence":`, `"sequence":8`, 1))
	code, said := p.wait(), p.err.String()
	if code != 1 || p.out.String() != "1 imported, 0 there already\n" || !strings.Contains(said, "line 2: ") || !strings.Contains(said, "(NATS at "+w.s.URL()+": ") ||
		strings.Contains(said, "buffer limit") || strings.Contains(said, "context ") {
		t.Errorf("exit %d, %s%s", code, p.out, said)
	}
}

// relay call waited for a result of what the server did not let it publish, and asked then whether the route permits results.
func TestCall_regressionNamesTheSubjectThatIsNotPermitted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, billing, natstest.WithConfig(`no_auth_user: all
authorization {users: [{user: all, password: p}, {user: u, password: p, permissions: {publish: {deny: "orders.>"}}}]}`))
	for _, more := range [][]string{nil, {"--json"}} {
		args := append([]string{"call", "orders.1.created", "x", "--timeout", "10m", "--set", "nats.user=u", "--set", "nats.password=p"}, more...)
		if code, out, stderr := relay(t, w.dir, args...); code != 1 || !strings.Contains(out+stderr, "not permitted to publish to orders.1.created") {
			t.Errorf("%v: exit %d, %s%s", more, code, out, stderr)
		}
	}
}

// A replay that the server did not permit ended after ten seconds, and did not say how it goes on.
func TestReplay_regressionSaysHowToResumeWhatIsNotPermitted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, billing, natstest.WithConfig(`no_auth_user: all
authorization {users: [{user: all, password: p}, {user: u, password: p, permissions: {publish: {deny: "orders.>"}}}]}`))
	fill(t, w.js, 3, 1)
	began := time.Now()
	code, out, stderr := relay(t, w.dir, "dlq", "replay", "--to-subject", "original", "--yes", "--set", "nats.user=u", "--set", "nats.password=p")
	if code != 1 || !strings.Contains(stderr, "not permitted to publish to orders.") || !strings.Contains(stderr, "3 left, resume with: relay replay resume") {
		t.Errorf("exit %d, %s%s", code, out, stderr)
	}
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("it took %v", took)
	}
}
