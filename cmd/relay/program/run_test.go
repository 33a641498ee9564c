package program

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/internal/natstest"
)

// within checks how long something took that was measured.
func within(t testing.TB, what string, took, most time.Duration) {
	t.Helper()
	t.Logf("%s: %v", what, took.Round(time.Millisecond))
	if took > most {
		t.Errorf("%s took %v, want at most %v", what, took, most)
	}
}

// It said in which stream publishers store it, which relay takes it out of at once.
func TestPub_laterNamesTheStreamInWhichItWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "routes: [{name: billing, subjects: [orders.>], handler: {http: {url: $HOOK}}}]\n")
	w.run().ready()
	code, said, failed := relay(t, w.dir, "pub", "orders.eu", "x", "--in", "1h", "--id", "remind-1")
	if code != 0 || !strings.HasPrefix(said, "remind-1 waits in RELAY_LATER until ") {
		t.Errorf("exit %d, %q, %q", code, said, failed)
	}
}

func TestRun_sigtermDrainsAndExitsWith0(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "routes: [{name: billing, subjects: [orders.>], handler: {http: {url: $HOOK}}}]\ndrain: 10s\n")
			p := w.run()
			finish := make(chan struct{})
			release := sync.OnceFunc(func() { close(finish) })
			defer release()
			w.hook.answers(func(request) (int, string) { <-finish; return 200, "" })
			publishMany(t, w.js, 64, func(i int) string { return fmt.Sprintf("orders.%d", i) })
			natstest.Eventually(t, "64 handlers run", func() bool { return w.hook.count() == 64 })
			p.signal(sig)
			p.await("draining")
			release()
			if code := p.wait(); code != 0 {
				t.Errorf("exit %d, want 0", code)
			}
			settled(t, w.js, "ORDERS", "billing")
			if n := w.hook.count(); n != 64 {
				t.Errorf("%d requests, want 64", n)
			}
			if len(p.logged("drained; bye")) != 1 {
				t.Error("it does not say that it drained")
			}
		})
	}
}

// F09. Relay used to say that it could not connect, with exit 1.
func TestRun_regressionSigtermWhileConnectingExitsWith0(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes the connection and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	w := newWorld(t, billing)
	w.configure("nats: {url: \"nats://" + silent.Addr().String() + "\"}\n" + billing)
	p := spawn(t, w.dir, nil, "run")
	c, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit %d, want 0", code)
	}
}

// Relay ended at once with 2, five times in half a second under a supervisor that starts it again.
func TestRun_regressionNATSAwayAtBootIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.configure("nats: {url: \"" + w.s.URL() + "\"}\n" + billing)
	w.s.Stop()
	p := spawn(t, w.dir, nil, "run")
	p.await("not working, retrying: NATS")
	status, body := 0, ""
	natstest.Eventually(t, "readiness says what is waited for", func() bool {
		status, body = p.get("/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, "nothing listens there")
	})
	if !strings.Contains(body, "(since ") {
		t.Errorf("since when is not said: %s", body)
	}
	if code, _, said := relay(t, w.dir, "dlq", "ls"); code != cli.ExitFailed || !strings.Contains(said, "nothing listens there") {
		t.Errorf("another command does not fail at once: exit %d, %s", code, said)
	}
	if n := len(p.logged("not working, retrying")); n != 1 {
		t.Errorf("%d lines in the log", n)
	}
	w.s.Restart()
	p.ready()
	w.publish("orders.eu", nil, nil)
	natstest.Eventually(t, "handled", func() bool { return w.hook.count() == 1 })
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit %d, want 0", code)
	}
}

// F07: whatever a handler does, relay ends a second after the drain, and says by 3 that somebody was interrupted.
func TestRun_handlerBeyondTheDrainIsExit3(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]string{
		"endpoint that never answers": `{http: {url: $HOOK}}`,
		"program that traps TERM":     `{exec: {command: [sh, -c, "trap '' TERM; while :; do sleep 1; done"]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "routes: [{name: billing, subjects: [orders.>], handler: "+handler+"}]\ndrain: 1s\n")
			p := w.run()
			never := make(chan struct{})
			defer close(never)
			w.hook.answers(func(request) (int, string) { <-never; return 200, "" })
			w.publish("orders.eu", nil, nil)
			natstest.Eventually(t, "a handler runs", func() bool {
				_, metrics := p.get("/metrics")
				return strings.Contains(metrics, `relay_handlers_running{route="billing"} 1`)
			})
			start := time.Now()
			p.signal(syscall.SIGTERM)
			if code := p.wait(); code != cli.ExitForced {
				t.Errorf("exit %d, want %d", code, cli.ExitForced)
			}
			within(t, "exit after SIGTERM with a drain of 1s", p.at.Sub(start), 3*time.Second) // two, and one for a busy machine
			if !strings.Contains(p.err.String(), "handlers were interrupted: 1 of them after a drain of 1s") {
				t.Errorf("it says:\n%s", p.err)
			}
			// The interrupted attempt is not one, and the message is where it was.
			c, err := w.js.Consumer(t.Context(), "ORDERS", "billing")
			if err != nil {
				t.Fatal(err)
			}
			if i := c.CachedInfo(); i.NumPending+uint64(i.NumAckPending) != 1 {
				t.Errorf("the message is gone: %+v", i)
			}
			if n := len(deadLetters(t, w.js)); n != 0 {
				t.Errorf("%d dead letters", n)
			}
		})
	}
}

// F08.
func TestRun_secondSignalExitsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "routes: [{name: billing, subjects: [orders.>], handler: {http: {url: $HOOK}}}]\n")
	p := w.run()
	never := make(chan struct{})
	defer close(never)
	w.hook.answers(func(request) (int, string) { <-never; return 200, "" })
	w.publish("orders.eu", nil, nil)
	natstest.Eventually(t, "a handler runs", func() bool { return w.hook.count() == 1 })
	p.signal(syscall.SIGTERM)
	p.await("draining")
	start := time.Now()
	p.signal(syscall.SIGINT)
	if code := p.wait(); code != cli.ExitForced {
		t.Errorf("exit %d, want %d", code, cli.ExitForced)
	}
	within(t, "exit after the second signal", p.at.Sub(start), time.Second)
}

func TestRun_escalationIsExit4(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
routes:
  - name: billing
    subjects: [orders.>]
    handler: {exec: {command: [sh, -c, "echo no such table >&2; exit 1"]}}
    retry: {policy: constant, min: 10ms}
    supervisor: {trip_after: 1, max_restarts: 2, on_give_up: exit, restart: {policy: constant, min: 10ms}}
`)
	p := w.run()
	w.publish("orders.eu", nil, nil)
	if code := p.wait(); code != cli.ExitEscalated {
		t.Errorf("exit %d, want %d", code, cli.ExitEscalated)
	}
	last := lastLine(p.err.String())
	for _, want := range []string{"a key gave up", "billing", "orders.eu", "no such table"} {
		if !strings.Contains(last, want) {
			t.Errorf("the last line does not hold %q: %s", want, last)
		}
	}
	settledOrThere(t, w.js, 1)
}

// settledOrThere checks that no message is lost: each is still in the durable.
func settledOrThere(t testing.TB, js jetstream.JetStream, want uint64) {
	t.Helper()
	c, err := js.Consumer(t.Context(), "ORDERS", "billing")
	if err != nil {
		t.Fatal(err)
	}
	if i := c.CachedInfo(); i.NumPending+uint64(i.NumAckPending) != want {
		t.Errorf("%d pending and %d unacknowledged, want %d together", i.NumPending, i.NumAckPending, want)
	}
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSuffix(s, "\n"), "\n")
	return lines[len(lines)-1]
}

// I-29: what cannot work is found at once, and one line says what it is.
func TestRun_preflightSaysNo(t *testing.T) {
	t.Parallel()
	deny := func(subjects ...string) natstest.Option {
		return natstest.WithConfig(fmt.Sprintf(`no_auth_user: test
			authorization {users: [{user: test, password: test}, {user: relay, password: secret, permissions: {publish: {deny: ["%s"]}}}]}`,
			strings.Join(subjects, `", "`)))
	}
	const asRelay = "nats: {url: $SERVER, user: relay, password: secret}\n"
	taken := listen(t)
	for _, c := range []struct {
		name    string
		opts    []natstest.Option
		config  string // a line "nats:" of its own replaces the usual one
		streams bool   // the stream is there before
		args    []string
		want    []string
	}{
		{
			name:   "JetStream is off",
			opts:   []natstest.Option{natstest.WithConfig("jetstream: disabled")},
			config: billing, want: []string{"JetStream", "start nats-server with -js"},
		},
		{
			name: "no stream for the subjects", config: strings.ReplaceAll(billing, "orders.>", "invoices.>"),
			want: []string{"route billing", `no stream holds subject "invoices.>"`, "nats stream add"},
		},
		{
			name: "named stream missing", config: billing + "    stream: INVOICES\n",
			want: []string{"route billing", "stream INVOICES does not exist", "nats stream add"},
		},
		{
			name: "stream there with other subjects", config: billing, streams: true,
			want: []string{"stream ORDERS", "subjects", "orders.>", "nats stream edit"},
		},
		{
			name: "may not ack", opts: []natstest.Option{deny("$JS.ACK.>")}, config: asRelay + billing,
			want: []string{"acknowledging on durable billing", "not permitted to publish to $JS.ACK.ORDERS.billing."},
		},
		{
			name: "may not pull", opts: []natstest.Option{deny("$JS.API.CONSUMER.MSG.NEXT.>")}, config: asRelay + billing,
			want: []string{"pulling from durable billing", "not permitted to publish to $JS.API.CONSUMER.MSG.NEXT.ORDERS.billing"},
		},
		{
			name: "may not dead-letter", opts: []natstest.Option{deny("relay.dlq.>")}, config: asRelay + billing,
			want: []string{"dead letters", "not permitted to publish to relay.dlq."},
		},
		{
			name: "may not dead-letter to its own prefix", opts: []natstest.Option{deny("broken.>")},
			config: asRelay + billing + "    dead_letter: {prefix: broken}\n",
			want:   []string{"dead letters", "not permitted to publish to broken."},
		},
		{
			name: "may not park", opts: []natstest.Option{deny("relay.park.>")}, config: asRelay + billing,
			want: []string{"parking", "not permitted to publish to relay.park."},
		},
		{
			name: "may not use the JetStream API", opts: []natstest.Option{deny("$JS.API.>")}, config: asRelay + billing,
			want: []string{"not permitted to publish to $JS.API.INFO"},
		},
		{
			name: "may not make a durable", opts: []natstest.Option{deny("$JS.API.CONSUMER.CREATE.ORDERS.>", "$JS.API.CONSUMER.DURABLE.CREATE.ORDERS.>")}, config: asRelay + billing,
			want: []string{"not permitted to publish to $JS.API.CONSUMER.CREATE.ORDERS.billing"},
		},
		{
			name: "may not keep attempts", opts: []natstest.Option{deny("$KV.>")}, config: asRelay + billing,
			want: []string{"not permitted to publish to $KV.RELAY_ATTEMPTS"},
		},
		{
			name: "may not store large dead letters", opts: []natstest.Option{deny("$O.>")}, config: asRelay + billing,
			want: []string{"large dead letters", "not permitted to publish to $O.RELAY_DLQ_BODIES."},
		},
		{
			name: "may not subscribe to answers", opts: []natstest.Option{natstest.WithConfig(`no_auth_user: test
				authorization {users: [{user: test, password: test}, {user: relay, password: secret, permissions: {subscribe: {deny: "_INBOX_relay.>"}}}]}`)}, config: asRelay + billing,
			want: []string{"not permitted to subscribe to _INBOX_relay.run.", "relay nats permissions --for service"},
		},
		{
			name: "wrong password", opts: []natstest.Option{deny("nothing")}, config: "nats: {url: $SERVER, user: relay, password: wrong}\n" + billing,
			want: []string{"cannot connect to NATS at $SERVER", "Authorization Violation", "does not accept nats.user and nats.password"},
		},
		{
			name: "credentials file missing", config: "nats: {url: $SERVER, creds: nowhere.creds}\n" + billing,
			want: []string{"nats.creds", "nowhere.creds", "no such file"},
		},
		{
			name: "CA file missing", config: "nats: {url: $SERVER, tls: {ca: nowhere.pem}}\n" + billing,
			want: []string{"nats.tls.ca", "nowhere.pem", "no such file"},
		},
		{
			name: "port of the embedded server taken", config: "nats: {embedded: {listen: " + taken + ", store_dir: data}}\n" + billing,
			want: []string{"nats.embedded.listen", taken, "the port is taken"},
		},
		{
			name: "port of admin taken", config: billing, args: []string{"--set", "admin.listen=" + taken},
			want: []string{"admin.listen", taken, "the port is taken"},
		},
		{
			name: "store is a file", config: "nats: {embedded: {listen: 127.0.0.1:0, store_dir: relay.yaml}}\n" + billing,
			want: []string{"nats.embedded.store_dir", "relay.yaml", "not a directory"},
		},
		{
			name: "program missing", config: strings.ReplaceAll(billing, `http: {url: "$HOOK"}`, "exec: {command: [./nowhere]}"),
			want: []string{"route billing: handler: command", "./nowhere", "no such file"},
		},
		{
			name: "program not executable", config: strings.ReplaceAll(billing, `http: {url: "$HOOK"}`, "exec: {command: [./relay.yaml]}"),
			want: []string{"route billing: handler: command", "./relay.yaml", "permission denied"},
		},
		{
			name: "directory of the program missing", config: strings.ReplaceAll(billing, `http: {url: "$HOOK"}`, "exec: {command: [sh], dir: nowhere}"),
			want: []string{"route billing: handler: dir", "nowhere", "no such file"},
		},
		{
			name: "CA of the endpoint missing", config: strings.ReplaceAll(billing, `http: {url: "$HOOK"}`, `http: {url: "https://127.0.0.1:1", tls: {ca: nowhere.pem}}`),
			want: []string{"tls.ca", "nowhere.pem", "no such file"},
		},
		{
			name: "unknown key", config: billing + "    retires: 5\n",
			want: []string{"relay.yaml", "routes[0].retires", "unknown key"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "", c.opts...)
			if c.streams {
				if _, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.eu"}}); err != nil {
					t.Fatal(err)
				}
			}
			config := c.config
			if !strings.Contains(config, "nats:") {
				config = "nats: {url: $SERVER}\n" + config
			}
			w.configure(strings.ReplaceAll(config, "$SERVER", w.s.URL()))
			start := time.Now()
			p := spawn(t, w.dir, nil, append([]string{"run"}, c.args...)...)
			if code := p.wait(); code != cli.ExitUsage {
				t.Errorf("exit %d, want %d", code, cli.ExitUsage)
			}
			if took := p.at.Sub(start); took > 10*time.Second {
				t.Errorf("it takes %v to say no, want at most 10s", took)
			}
			said := p.saidLast()
			// A fault is a line. Two of them are the same permission for the route's two durables.
			if len(said) == 0 || len(said) > 2 || len(said) == 2 && !strings.Contains(said[1], "not permitted to") {
				t.Fatalf("want one line, got %q", said)
			}
			for _, want := range c.want {
				if want = strings.ReplaceAll(want, "$SERVER", w.s.URL()); !strings.Contains(said[0], want) {
					t.Errorf("it does not say %q: %s", want, said[0])
				}
			}
		})
	}
}

// listen takes a port for the length of the test.
func listen(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// The first thing that most users do: make run. The ports are taken, as they may be on any machine.
func TestRun_demo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for from, to := range map[string]string{"../../../config.example.yaml": "config.example.yaml", "../../../testdata/demo": "testdata/demo"} {
		copyTree(t, from, filepath.Join(dir, to))
	}
	makefile, err := os.ReadFile("../../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^\t\$\(BIN\) (run .*)$`).FindSubmatch(makefile)
	if line == nil {
		t.Fatal("make run does not run relay")
	}
	nats, admin := listen(t), listen(t)
	args := append(strings.Fields(string(line[1])), "--set", "nats.embedded.listen="+nats, "--set", "admin.listen="+admin)
	p := spawn(t, dir, nil, args...)

	// What the orders show:
	p.await("the demo is over")
	handled := func(why string, ok func(e map[string]any) bool, text string) {
		t.Helper()
		natstest.Eventually(t, why, func() bool {
			for _, e := range p.logged(text) {
				if ok(e) {
					return true
				}
			}
			return false
		})
	}
	is := func(key, want string) func(map[string]any) bool {
		return func(e map[string]any) bool { return fmt.Sprint(e[key]) == want }
	}
	for _, route := range []string{"billing", "shipping", "audit"} {
		handled("a delivery of "+route, is("route", route), "handled")
	}
	handled("a retry with its delay", func(e map[string]any) bool {
		d, err := time.ParseDuration(fmt.Sprint(e["delay"]))
		return err == nil && d > 0 && strings.Contains(fmt.Sprint(e["error"]), "connection refused")
	}, "attempt failed")
	handled("a key that waits", is("key", "orders.us.created"), "key waits")
	handled("the key flows again", is("key", "orders.us.created"), "key flows again")
	handled("a dead letter", is("reason", "exhausted"), "dead-lettered")

	// relay's own look at what it is permitted made the server warn of it, once for each durable.
	for _, e := range p.logged("nats-server: ") {
		if e["level"] != "DEBUG" {
			t.Errorf("the server says %v", e["msg"])
		}
	}

	// What it says to do next, done. In a log of JSON it is a record: nothing of it is plain text.
	if out := p.out.String(); out != "" {
		t.Errorf("it prints %q", out)
	}
	var commands []string
	for _, c := range p.await("the demo is over")["commands"].([]any) {
		commands = append(commands, c.(string))
	}
	ran := map[string]string{}
	for _, cmd := range commands {
		switch {
		case strings.HasPrefix(cmd, "nats "): // not everybody has it; the server it names is asked by the others
			continue
		case strings.HasPrefix(cmd, "curl "):
			url := strings.Fields(cmd)[1]
			if strings.Contains(url, admin) {
				t.Errorf("admin is said to be on the taken port: %s", cmd)
			}
			r, err := http.Get(url)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, r.Body)
			r.Body.Close()
			http.DefaultClient.CloseIdleConnections()
			if r.StatusCode != http.StatusOK {
				t.Errorf("%s: %s", cmd, r.Status)
			}
			ran["curl"] = r.Status
			continue
		}
		if strings.Contains(cmd, nats) {
			t.Errorf("NATS is said to be on the taken port: %s", cmd)
		}
		c := exec.Command("sh", "-c", cmd)
		c.Dir, c.Env = dir, append(clean(os.Environ()), beRelay+"=1", "GORACE=atexit_sleep_ms=0")
		out, err := c.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", cmd, err, out)
		}
		ran[cmd] = string(out)
	}
	for command, want := range map[string]string{
		" pub orders": "stored in ORDERS as", " explain ": "billing (by orders.*.created)", " dlq ls": "order has no address",
		" dlq replay": "1 replayed", "touch ": "", "curl": "200",
	} {
		found := false
		for cmd, out := range ran {
			found = found || strings.Contains(cmd, command) && strings.Contains(out, want)
		}
		if !found {
			t.Errorf("no command %q that says %q among %q", command, want, ran)
		}
	}
	handled("the replayed order is shipped", func(e map[string]any) bool {
		return fmt.Sprint(e["route"]) == "shipping" && fmt.Sprint(e["seq"]) == fmt.Sprint(p.logged("dead-lettered")[0]["seq"]) && fmt.Sprint(e["verdict"]) == "ack"
	}, "handled")
	p.signal(syscall.SIGINT)
	if code := p.wait(); code != 0 {
		t.Errorf("exit %d, want 0", code)
	}

	// Of the second run the handler is mended. It announced a dead letter all the same.
	p = spawn(t, dir, nil, append(args, "--set", "log.format=text")...)
	natstest.Eventually(t, "the second run is over", func() bool { return strings.Contains(p.out.String(), "Ctrl-C drains and stops.") })
	if out := p.out.String(); !strings.Contains(out, "no dead letters") || strings.Contains(out, "dlq ") || !strings.Contains(out, "are handled") {
		t.Errorf("the second run says: %s", out)
	}
	p.signal(syscall.SIGINT)
	if code := p.wait(); code != 0 {
		t.Errorf("the second run: exit %d, want 0", code)
	}
}

func copyTree(t testing.TB, from, to string) {
	t.Helper()
	if info, err := os.Stat(from); err == nil && info.IsDir() {
		if err := os.CopyFS(to, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
		return
	}
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// The embedded server: found by the commands through the configuration alone, and gone with relay.
func TestRun_embeddedServerServesTheCommands(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close() // for the embedded server; should somebody take it meanwhile, the test says so
	config := "nats: {embedded: {listen: " + addr + ", store_dir: data}}\n" + billing
	w.configure(config)
	w.hook.answers(func(request) (int, string) { return 422, "no such customer" })
	p := w.run()
	if out := must(t, w.dir, "pub", "orders.eu", `{"id":1}`); out != "stored in ORDERS as 1\n" {
		t.Errorf("pub says %q", out)
	}
	natstest.Eventually(t, "dead letter", func() bool { return strings.Contains(must(t, w.dir, "dlq", "ls"), "no such customer") })
	if out := must(t, w.dir, "dlq", "show", "1", "--raw"); out != `{"id":1}` {
		t.Errorf("body %q", out)
	}
	// Another user of the host, who has not the key: nothing is to be had.
	if nc, err := nats.Connect("nats://" + addr); err == nil || !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("without the key: %v", err)
		nc.Close()
	}
	if fi, err := os.Stat(filepath.Join(w.dir, "data", "client.nk")); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", fi, err)
	}
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit %d", code)
	}
	code, _, said := relay(t, w.dir, "dlq", "ls")
	if code != cli.ExitFailed || !strings.Contains(said, "nothing listens there") || !strings.Contains(said, "is relay running?") {
		t.Errorf("without relay: exit %d, %s", code, said)
	}
	// A second life finds everything.
	w.hook.answers(nil)
	p = w.run()
	if out := must(t, w.dir, "dlq", "replay", "--yes"); !strings.Contains(out, "1 replayed") {
		t.Errorf("replay says %q", out)
	}
	natstest.Eventually(t, "handled", func() bool { return w.hook.count() == 2 })
	// One store, one relay.
	w.configure(strings.ReplaceAll(config, addr, "127.0.0.1:0"))
	second := spawn(t, w.dir, nil, "run")
	if code := second.wait(); code != cli.ExitUsage || !strings.Contains(lastLine(second.err.String()), "store_dir") {
		t.Errorf("a second relay on the same store: exit %d, %s", code, second.err)
	}
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit %d", code)
	}
}

// Unless told otherwise nobody but relay reaches the embedded server: any user of the host could delete its dead letters.
func TestRun_embeddedServerListensOnlyWhenTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.configure("nats: {embedded: {store_dir: data}}\n" + billing)
	p := w.run()
	if url := p.await("embedded nats-server is up")["url"]; url != "in this process only" {
		t.Errorf("it listens on %v", url)
	}
	code, _, said := relay(t, w.dir, "dlq", "ls")
	if code != cli.ExitFailed || !strings.Contains(said, "takes no connections: set nats.embedded.listen") {
		t.Errorf("exit %d, %s", code, said)
	}
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit %d", code)
	}
}

// A listing must be whole lines even while relay logs: this reads the log as a machine would.
func TestRun_logIsJSONLinesWithoutControlBytes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, billing)
	w.hook.answers(func(request) (int, string) { return 422, "\x1b[31mred\x1b[0m\r\nfake log line" })
	p := w.run("--set", "log.level=debug")
	w.publish("orders.\x1b[31m", nil, nil)
	p.await("dead-lettered")
	p.signal(syscall.SIGTERM)
	p.wait()
	lines := bufio.NewScanner(strings.NewReader(p.err.String()))
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), `{"time":`) || !strings.HasSuffix(lines.Text(), "}") {
			t.Errorf("not a record: %q", lines.Text())
		}
	}
	for _, b := range p.err.String() {
		if b < ' ' && b != '\n' {
			t.Fatalf("control byte %q in the log", b)
		}
	}
}

// A log that was found somewhere said nothing of the version, the file and the routes it was of; and the error at the end
// was plain text among JSON.
func TestRun_logBeginsWithWhatRunsAndEndsWithWhy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, billing)
	p := w.run("--set", "drain=5s")
	first := p.await("relay starts")
	for key, want := range map[string]any{"service": "relay", "config": "relay.yaml", "routes": 1.0, "nats": w.s.URL(), "overridden_by": []any{"--set drain"}} {
		if fmt.Sprint(first[key]) != fmt.Sprint(want) {
			t.Errorf("%s is %v, want %v", key, first[key], want)
		}
	}
	file, err := os.ReadFile(filepath.Join(w.dir, "relay.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if hash := fmt.Sprintf("%x", sha256.Sum256(file)); first["version"] == "" || !strings.HasPrefix(hash, first["config_sha256"].(string)) {
		t.Errorf("version %v, hash %v", first["version"], first["config_sha256"])
	}
	route := p.await("route")
	if route["route"] != "billing" || route["handler"] != "http "+w.hook.URL || route["concurrency"] != 64.0 || fmt.Sprint(route["subjects"]) != "[orders.>]" {
		t.Errorf("the route is %v", route)
	}
	// The store of the first one's admin listener is taken: why the second one ends is a record too.
	addr := strings.TrimSuffix(strings.TrimPrefix(p.await("admin is up")["url"].(string), "http://"), "/readyz")
	second := spawn(t, w.dir, nil, "run", "--set", "admin.listen="+addr)
	if code := second.wait(); code != cli.ExitUsage {
		t.Errorf("exit %d", code)
	}
	if end := second.logged("relay ends"); len(end) != 1 || end[0]["exit_code"] != 2.0 || !strings.Contains(end[0]["error"].(string), addr) {
		t.Errorf("it ends with %v", end)
	}
	for line := range strings.Lines(p.err.String() + second.err.String()) {
		if !strings.HasPrefix(line, "{") {
			t.Errorf("not JSON: %q", line)
		}
	}
}
