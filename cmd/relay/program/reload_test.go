package program

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/eventkind"
	"github.com/relaymq/relay/internal/natstest"
)

// reloadJSON is what relay reload --json prints of an instance.
type reloadJSON struct {
	Outcome      string
	Faults       []string
	Added        []string
	Changed      []string
	Removed      []string
	Live         []string
	NeedsRestart []string `json:"needs_restart"`
	Routes       consumer.Changed
	Generation   int
}

// reloaded runs relay reload, and returns what the only instance said.
func (w *world) reloaded(wantCode int, args ...string) reloadJSON {
	w.t.Helper()
	code, stdout, stderr := relay(w.t, w.dir, append([]string{"reload", "--json"}, args...)...)
	var list []reloadJSON
	if err := json.Unmarshal([]byte(stdout), &list); err != nil || len(list) != 1 || code != wantCode {
		w.t.Fatalf("exit %d, not %d: %v\n%s%s", code, wantCode, err, stdout, stderr)
	}
	return list[0]
}

// arrives publishes to a subject and waits for the copy elsewhere.
func (w *world) arrives(subject, copied string) {
	w.t.Helper()
	sub, err := w.nc.SubscribeSync(copied)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	w.publish(subject, []byte("{}"), nil)
	if _, err := sub.NextMsg(patience); err != nil {
		w.t.Fatalf("no copy of %s on %s: %v", subject, copied, err)
	}
}

// A reload adds, changes and removes routes and nothing else; one that is invalid or refused changes nothing, and is told of by
// the command, the status and the metrics; instances with different files are named.
func TestReload(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	server := "nats: {url: \"" + w.s.URL() + "\"}\n"
	out := "streams: [{name: ORDERS, subjects: [orders.>]}, {name: OUT, subjects: [out.>]}]\n"
	write := func(name, yaml string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(w.dir, name), []byte("admin: {listen: 127.0.0.1:0}\n"+server+out+yaml), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("relay.yaml", `routes:
  - {name: a, subjects: [orders.a], start: all, handler: {forward: {subject: out.a}}}
  - {name: stays, subjects: [orders.stays], start: all, handler: {forward: {subject: out.stays}}}
`)
	p := w.run()
	w.arrives("orders.a", "out.a")

	changed := `log: {level: debug}
nats: {replicas: 1, inbox_prefix: _INBOX_x}
routes:
  - {name: a, subjects: [orders.a], start: all, handler: {forward: {subject: out.x}}}
  - {name: b, subjects: [orders.b], start: all, handler: {forward: {subject: out.b}}}
  - {name: stays, subjects: [orders.stays], start: all, handler: {forward: {subject: out.stays}}}
`
	server = ""
	changed = strings.Replace(changed, "nats: {", "nats: {url: \""+w.s.URL()+"\", ", 1)
	write("relay.yaml", changed)
	rep := w.reloaded(0)
	if !slices.Equal(rep.Added, []string{"b"}) || !slices.Equal(rep.Changed, []string{"a"}) || len(rep.Removed) != 0 || len(rep.Routes.Restarted) != 0 ||
		!slices.Equal(rep.Live, []string{"log.level"}) || !slices.Equal(rep.NeedsRestart, []string{"nats.inbox_prefix"}) || rep.Generation != 2 {
		t.Errorf("%+v", rep)
	}
	if !slices.Equal(rep.Routes.Live, []string{"a"}) {
		t.Errorf("changed live: %v", rep.Routes.Live)
	}
	w.arrives("orders.a", "out.x")
	w.arrives("orders.b", "out.b")
	w.arrives("orders.stays", "out.stays")
	if rep = w.reloaded(0); rep.Generation != 3 || len(rep.Changed) != 0 || len(rep.NeedsRestart) != 1 {
		t.Errorf("what needs the process is still told: %+v", rep)
	}

	// The file of the instance is at fault; the command reads another one, which says where the server is.
	write("client.yaml", changed)
	write("relay.yaml", changed+"  - {name: c, subjects: [orders.c], handler: discrad}\n")
	if rep = w.reloaded(2, "-c", "client.yaml"); rep.Outcome != "invalid" || !strings.Contains(strings.Join(rep.Faults, " "), "relay.yaml:9: routes[3].handler") {
		t.Errorf("%+v", rep)
	}
	write("relay.yaml", changed+"  - {name: c, subjects: [orders.b.c], stream: NONE, handler: discard}\n")
	if rep = w.reloaded(1); rep.Outcome != "refused" || !strings.Contains(strings.Join(rep.Faults, " "), "stream NONE does not exist") || rep.Generation != 3 {
		t.Errorf("%+v", rep)
	}
	if status := must(t, w.dir, "status"); !strings.Contains(status, "the last reload changed nothing") || !strings.Contains(status, "take effect after a restart of relay: nats.inbox_prefix") {
		t.Errorf("status:\n%s", status)
	}
	_, metrics := p.get("/metrics")
	for _, want := range []string{"relay_config_last_reload_successful 0", `relay_config_reloads_total{result="done"} 2`, `relay_config_reloads_total{result="refused"} 1`, `relay_config_info{generation="3"`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	w.arrives("orders.b", "out.b")

	// SIGHUP does the same.
	gone := strings.Replace(changed, "  - {name: b,", "  #- {name: b,", 1)
	write("relay.yaml", gone)
	p.signal(syscall.SIGHUP)
	natstest.Eventually(t, "the route is removed", func() bool { return len(p.logged("the configuration was reloaded")) == 3 })
	if _, err := w.js.Consumer(t.Context(), "ORDERS", "b"); err != nil {
		t.Errorf("its durable: %v", err)
	}
	var status []consumer.Status
	if err := json.Unmarshal([]byte(must(t, w.dir, "status", "--json")), &status); err != nil || len(status) != 1 || len(status[0].Routes) != 2 ||
		status[0].Config == nil || status[0].Config.Generation != 4 || status[0].Config.Failed != "" {
		t.Errorf("%+v %v", status, err)
	}

	// Another instance with another file.
	write("other.yaml", strings.Replace(gone, "debug", "info", 1))
	w.run("-c", "other.yaml")
	if status := must(t, w.dir, "status"); !strings.Contains(status, "! instances run different configurations, or files with another content: keys outside routes\n") {
		t.Errorf("status:\n%s", status)
	}
	if code, _, stderr := relay(t, w.dir, "reload", "--instance", "nobody"); code != 1 || !strings.Contains(stderr, "no instance nobody of service relay answers") {
		t.Errorf("%d %s", code, stderr)
	}
}

// What changes of a route in place is told apart from what makes it begin anew.
func TestReload_saysWhatChangedLive(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	write := func(routes string) {
		t.Helper()
		yaml := "admin: {listen: 127.0.0.1:0}\nnats: {url: \"" + w.s.URL() + "\"}\nstreams: [{name: ORDERS, subjects: [orders.>]}, {name: OUT, subjects: [out.>]}]\nroutes:\n" + routes
		if err := os.WriteFile(filepath.Join(w.dir, "relay.yaml"), []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("  - {name: a, subjects: [orders.a], start: all, handler: {forward: {subject: out.a}}}\n  - {name: b, subjects: [orders.b], start: all, handler: {forward: {subject: out.b}}}\n")
	p := w.run()
	write("  - {name: a, subjects: [orders.a], start: all, concurrency: 3, timeout: 5s, handler: {forward: {subject: out.x}}}\n  - {name: b, subjects: [orders.b, orders.c], start: all, handler: {forward: {subject: out.b}}}\n")
	out := must(t, w.dir, "reload")
	for _, want := range []string{"  changed live: a\n", "  changed: b\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if lines := p.logged("the configuration was reloaded"); len(lines) != 1 {
		t.Errorf("%v", lines)
	}
	w.arrives("orders.a", "out.x")
	w.arrives("orders.c", "out.b")
}

// reload.watch goes by content: of the file, and of the files that it names.
func TestReload_watch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	tokens := make(chan string, 100)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { tokens <- r.Header.Get("X-Token") }))
	defer hook.Close()
	if err := os.WriteFile(filepath.Join(w.dir, "token"), []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.configure("nats: {url: \"" + w.s.URL() + `"}
reload: {watch: 1s}
routes: [{name: a, subjects: [orders.a], start: all, handler: {http: {url: "` + hook.URL + `", headers: {X-Token: {file: token}}}}}]
`)
	p := w.run()
	if err := os.WriteFile(filepath.Join(w.dir, "token"), []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	reloaded := p.await("the configuration was reloaded")
	if reloaded["by"] != "reload.watch" || len(reloaded["changed"].([]any)) != 1 {
		t.Errorf("%v", reloaded)
	}
	w.publish("orders.a", []byte("{}"), nil)
	select {
	case token := <-tokens:
		if token != "two" {
			t.Errorf("the token is %q", token)
		}
	case <-time.After(patience):
		t.Error("the message is not handled")
	}
}

// Instances of one host listen on different addresses: that is no difference to be told of. Another content of a file that both name is.
func TestStatus_regressionDrift(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	yaml := "streams: [{name: ORDERS, subjects: [orders.>]}]\nnats: {url: \"" + w.s.URL() + "\"}\n" +
		"routes: [{name: a, subjects: [orders.a], start: all, handler: {http: {url: \"" + w.hook.URL + "\", sign: {keys: [{file: signing.key}]}, headers: {X: {file: token}}}}}]\n"
	files := map[string]string{"token": "one", "signing.key": "whsec_" + strings.Repeat("A", 32)}
	dirs := []string{w.dir, t.TempDir()}
	put := func(dir, name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i, dir := range dirs {
		put(dir, "relay.yaml", "admin: {listen: \""+[]string{"127.0.0.1", "localhost"}[i]+":0\"}\n"+yaml)
		for name, text := range files {
			put(dir, name, text)
		}
		spawn(t, dir, nil, "run").ready()
	}
	status := func(want bool, secret string) {
		t.Helper()
		text := must(t, w.dir, "status")
		const drift = "! instances run different configurations, or files with another content: route a\n"
		if strings.Contains(text, drift) != want || !want && strings.Contains(text, "instances run") || strings.Contains(text, secret) {
			t.Errorf("status:\n%s", text)
		}
	}
	status(false, "whsec_")
	for name, text := range map[string]string{"token": "s3cond", "signing.key": "whsec_" + strings.Repeat("B", 32)} {
		put(dirs[1], name, text)
		must(t, w.dir, "reload")
		status(true, text)
		put(dirs[1], name, files[name])
		must(t, w.dir, "reload")
		status(false, text)
	}
}

// A durable that relay made gets another ack_wait by a reload: that took a start with --adopt. Several instances of it change it once.
func TestReload_regressionAckWait(t *testing.T) {
	t.Parallel()
	for _, instances := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d instances", instances), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "")
			configure := func(wait string) {
				w.configure("nats: {url: \"" + w.s.URL() + "\"}\nroutes: [{name: a, subjects: [orders.a], start: all, ack_wait: " + wait + ", handler: {http: {url: $HOOK}}}]\n")
			}
			configure("30s")
			var list []*process
			for range instances {
				list = append(list, w.run())
			}
			for _, wait := range []string{"90s", "10s"} {
				configure(wait)
				if out := must(t, w.dir, "plan"); !strings.Contains(out, "ack_wait is") || !strings.Contains(out, "which a reload changes") {
					t.Errorf("plan:\n%s", out)
				}
				if out := must(t, w.dir, "reload"); strings.Count(out, "changed: a\n") != instances {
					t.Errorf("reload:\n%s", out)
				}
				want, _ := time.ParseDuration(wait)
				for stream, durable := range map[string]string{"ORDERS": "a", "RELAY_RETRY": "a--ORDERS"} {
					natstest.Eventually(t, durable+" has "+wait, func() bool {
						c, err := w.js.Consumer(t.Context(), stream, durable)
						return err == nil && c.CachedInfo().Config.AckWait == want
					})
				}
				for _, p := range list {
					natstest.Eventually(t, "it works with "+wait, func() bool { status, _ := p.get("/readyz"); return status == http.StatusOK })
				}
			}
			w.publish("orders.a", []byte("{}"), nil)
			natstest.Eventually(t, "the message is handled", func() bool { return w.hook.count() > 0 })

			// What somebody else gave the durable is not the reload's to change.
			c, err := w.js.Consumer(t.Context(), "ORDERS", "a")
			if err != nil {
				t.Fatal(err)
			}
			edited := c.CachedInfo().Config
			edited.AckWait = 25 * time.Second
			if _, err := w.js.UpdateConsumer(t.Context(), "ORDERS", edited); err != nil {
				t.Fatal(err)
			}
			configure("20s")
			if code, out, _ := relay(t, w.dir, "reload"); code != 1 || !strings.Contains(out, "ack_wait is 25s, not 20s") {
				t.Errorf("exit %d:\n%s", code, out)
			}
		})
	}
}

// A route that is stopped says why it is now: it named its first cause until it flowed again.
func TestStatus_regressionPresentCauseOfAStoppedRoute(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	var answer atomic.Int32
	answer.Store(http.StatusServiceUnavailable)
	tokens := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		if code := int(answer.Load()); code != http.StatusOK {
			rw.WriteHeader(code)
			return
		}
		rw.Header().Set("Content-Type", "application/json")
		_, _ = rw.Write([]byte(`{"access_token":"t","token_type":"Bearer"}`))
	}))
	defer tokens.Close()
	w.configure("nats: {url: \"" + w.s.URL() + "\"}\nroutes: [{name: a, subjects: [orders.a], start: all, handler: {http: {url: $HOOK, auth: {oauth2: {token_url: \"" + tokens.URL + "\", client_id: c, client_secret: s}}}}}]\n")
	w.hook.answers(func(request) (int, string) { return http.StatusBadGateway, "broken" })
	w.run()
	w.publish("orders.a", []byte("{}"), nil)
	why := func(want string) {
		t.Helper()
		natstest.Eventually(t, "the cause is "+want, func() bool {
			var status []consumer.Status
			err := json.Unmarshal([]byte(must(t, w.dir, "status", "--json")), &status)
			return err == nil && len(status) == 1 && status[0].Routes[0].State == control.StateStopped && strings.Contains(status[0].Routes[0].Why, want)
		})
	}
	why("503")
	answer.Store(http.StatusForbidden)
	why("403 Forbidden")
	answer.Store(http.StatusOK)
	why("broken")
}

// A broken file ended relay reload before anybody was asked, and log, events and metrics said nothing of it.
func TestReload_regressionBrokenFileReachesTheInstances(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]string{
		"a fault":       "routes: [{name: a, subjects: [orders.a], handler: discrad}]\n",
		"half a file":   "routes: [{name: a, subjects: [orders.a], han",
		"no YAML":       "routes:\n  - name: a\n subjects: x\n\t- : [\n",
		"unknown key":   "rotues: []\n",
		"another value": "drain: soon\nroutes: [{name: a, subjects: [orders.a], handler: discard}]\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "routes: [{name: a, subjects: [orders.a], handler: discard}]\n")
			p := w.run("-c", "relay.yaml")
			events, err := w.nc.SubscribeSync("relay.event.>")
			if err != nil {
				t.Fatal(err)
			}
			w.configure("nats:\n  url: \"" + w.s.URL() + "\"\n" + broken)
			code, out, stderr := relay(t, w.dir, "reload", "-c", "relay.yaml")
			if code != 2 || !strings.Contains(out, "invalid; nothing changed, generation 1 goes on") || !strings.Contains(stderr, "relay.yaml:") || !strings.Contains(stderr, "were asked all the same") {
				t.Errorf("exit %d\n%s%s", code, out, stderr)
			}
			if line := p.await("the configuration was not reloaded"); line["outcome"] != "invalid" || !strings.Contains(fmt.Sprint(line["error"]), "relay.yaml:") {
				t.Errorf("%v", line)
			}
			_, metrics := p.get("/metrics")
			for _, want := range []string{"relay_config_last_reload_successful 0", `relay_config_reloads_total{result="invalid"} 1`} {
				if !strings.Contains(metrics, want) {
					t.Errorf("metrics lack %s", want)
				}
			}
			for {
				m, err := events.NextMsg(patience)
				if err != nil {
					t.Fatalf("no event: %v", err)
				}
				if strings.Contains(string(m.Data), string(eventkind.ReloadFailed)) {
					if !strings.Contains(string(m.Data), "relay.yaml:") {
						t.Errorf("%s", m.Data)
					}
					break
				}
			}
		})
	}
	// Where the file does not even say where the server is, the command says that nobody was asked.
	w := newWorld(t, "routes: [{name: a, subjects: [orders.a], handler: discard}]\n")
	p := w.run()
	w.configure("nats: {url: [\nroutes: [")
	if code, _, stderr := relay(t, w.dir, "reload"); code != 2 || !strings.Contains(stderr, "the instances were not asked") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	if code, _, stderr := relay(t, w.dir, "reload", "--server", w.s.URL()); code != 2 || len(p.logged("the configuration was not reloaded")) == 0 {
		t.Errorf("exit %d: %s", code, stderr)
	}
}

// A change is taken within one look and a moment, and the line of the drain says what was reloaded.
func TestReload_regressionWatchTookTwoPeriods(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	const every = 4 * time.Second
	yaml := "nats: {url: \"" + w.s.URL() + "\"}\nreload: {watch: 4s}\nroutes: [{name: a, subjects: [orders.a], start: all, handler: discard}]\n"
	w.configure(yaml)
	p := w.run()
	changed := time.Now()
	w.configure(yaml + "drain: 7s\n")
	p.await("the configuration was reloaded")
	if took := time.Since(changed); took > every+3*time.Second {
		t.Errorf("took %v", took)
	}
	p.signal(syscall.SIGTERM)
	p.wait()
	if line := p.await("draining"); line["drain"] != float64(7*time.Second) && line["drain"] != "7s" {
		t.Errorf("%v", line)
	}
}

// systemd hears when the service works, reloads and stops, and that it lives.
func TestNotify(t *testing.T) {
	w := newWorld(t, "routes: [{name: a, subjects: [orders.a], start: all, handler: discard}]\n")
	dir, err := os.MkdirTemp("", "n") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	var (
		mu   sync.Mutex
		said []string
		done = make(chan struct{})
	)
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			mu.Lock()
			said = append(said, string(buf[:n]))
			mu.Unlock()
		}
	}()
	defer func() { _ = conn.Close(); <-done }()
	t.Setenv("NOTIFY_SOCKET", filepath.Join(dir, "s"))
	t.Setenv("WATCHDOG_USEC", "1000000")
	heard := func(after int, words ...string) (at int) {
		t.Helper()
		natstest.Eventually(t, strings.Join(words, " and "), func() bool {
			mu.Lock()
			defer mu.Unlock()
			at = after + slices.IndexFunc(said[after:], func(s string) bool {
				return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(s, word) })
			})
			return at >= after
		})
		return at
	}
	p := w.run()
	at := heard(0, "READY=1", "STATUS=all routes work")
	heard(at, "WATCHDOG=1")
	if out := must(t, w.dir, "reload"); !strings.Contains(out, "nothing differs") {
		t.Errorf("reload: %s", out)
	}
	at = heard(at, "RELOADING=1", "MONOTONIC_USEC=")
	heard(at, "READY=1")
	p.signal(syscall.SIGTERM)
	heard(at, "STOPPING=1")
	if code := p.wait(); code != 0 {
		t.Errorf("exit %d", code)
	}
}

// SIGHUP while relay still reads its configuration ends nothing: it is done once relay is ready. Other commands end by it, as any does.
func TestReload_regressionHangupWhileStarting(t *testing.T) {
	t.Parallel()
	if signal.Ignored(syscall.SIGHUP) {
		t.Skip("these tests run under nohup: programs that they start do not hear SIGHUP")
	}
	w := newWorld(t, "routes: [{name: a, subjects: [orders.a], handler: discard}]\n")
	pipe := filepath.Join(w.dir, "pipe.yaml")
	text, err := os.ReadFile(filepath.Join(w.dir, "relay.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	// begin starts relay, and calls meanwhile while it waits for its configuration, which is a file from then on.
	begin := func(meanwhile func(*process), args ...string) *process {
		_ = os.Remove(pipe)
		if err := syscall.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
		p := spawn(t, w.dir, nil, append(args, "-c", pipe)...)
		f, err := os.OpenFile(pipe, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		meanwhile(p)
		if err := errors.Join(os.Remove(pipe), os.WriteFile(pipe, text, 0o600)); err != nil {
			t.Fatal(err)
		}
		_, _ = f.Write(text)
		return p
	}
	p := begin(func(p *process) {
		for range 3 {
			p.signal(syscall.SIGHUP)
			time.Sleep(20 * time.Millisecond)
		}
	}, "run")
	p.ready()
	natstest.Eventually(t, "it was reloaded", func() bool { return len(p.logged("the configuration was reloaded")) >= 1 }) // signals may come late

	other := begin(func(p *process) {
		p.signal(syscall.SIGHUP)
		time.Sleep(20 * time.Millisecond)
	}, "status")
	other.wait()
	if s, ok := other.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !s.Signaled() || s.Signal() != syscall.SIGHUP {
		t.Errorf("status ends with %v", other.cmd.ProcessState)
	}
}
