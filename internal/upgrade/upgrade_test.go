// Package upgrade tests that a release takes over from the one before, and that one from it.
package upgrade

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
)

// first is the last commit of the first version: what comes due had one durable for each route.
const first = "1b0b09e~1"

// binaries are programs by version, made once.
var binaries = struct {
	mu   sync.Mutex
	dir  string
	made map[string]string
}{made: map[string]string{}}

func TestMain(m *testing.M) {
	code := m.Run()
	if binaries.dir != "" {
		_ = os.RemoveAll(binaries.dir)
	}
	os.Exit(code)
}

// binary is the program of a commit; empty: of this checkout.
func binary(t *testing.T, commit string) string {
	t.Helper()
	binaries.mu.Lock()
	defer binaries.mu.Unlock()
	if path, ok := binaries.made[commit]; ok {
		return path
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if binaries.dir == "" {
		dir, err := os.MkdirTemp("", "relay-upgrade")
		must(err)
		binaries.dir = dir
	}
	root, err := filepath.Abs("../..")
	must(err)
	source, path := root, filepath.Join(binaries.dir, "relay"+strings.Trim(commit, "~"))
	if commit != "" {
		if _, err := os.Stat(filepath.Join(root, ".git")); err != nil {
			t.Skip("this is no git checkout: the release before is in its history")
		}
		source = filepath.Join(binaries.dir, "source"+commit)
		archive := exec.Command("git", "-C", root, "archive", commit)
		archive.Stderr = os.Stderr
		data, err := archive.Output()
		must(err)
		must(unpack(data, source))
	}
	build := exec.Command("go", "build", "-o", path, "./cmd/relay")
	build.Dir = source
	out, err := build.CombinedOutput()
	if err != nil {
		t.Fatalf("building %s: %v\n%s", commit, err, out)
	}
	binaries.made[commit] = path
	return path
}

func unpack(data []byte, dir string) error {
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		path := filepath.Join(dir, filepath.FromSlash(h.Name))
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(path, 0o755)
		case tar.TypeReg:
			var content []byte
			if content, err = io.ReadAll(r); err == nil {
				if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
					err = os.WriteFile(path, content, 0o644)
				}
			}
		}
		if err != nil {
			return err
		}
	}
}

const patience = 60 * time.Second

// world is a server, an endpoint, and a configuration that all versions read.
type world struct {
	t    *testing.T
	nc   *nats.Conn
	js   jetstream.JetStream
	dir  string
	hook *httptest.Server

	mu      sync.Mutex
	answer  func(body string) int
	handled map[string]int // answered with 200
	failed  map[string]int
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, dir: t.TempDir(), handled: map[string]int{}, failed: map[string]int{}}
	w.answers(func(string) int { return 200 })
	w.hook = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.mu.Lock()
		code := w.answer(string(body))
		if code == 200 {
			w.handled[string(body)]++
		} else {
			w.failed[string(body)]++
		}
		w.mu.Unlock()
		rw.WriteHeader(code)
	}))
	t.Cleanup(w.hook.Close)
	return w
}

func (w *world) answers(f func(body string) int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer = f
}

// on has the world use a server.
func (w *world) on(s *natstest.Server, top string) {
	w.t.Helper()
	w.nc = s.Conn(w.t)
	var err error
	if w.js, err = jetstream.New(w.nc); err != nil {
		w.t.Fatal(err)
	}
	w.configure(fmt.Sprintf("nats: {url: %q%s}\n", s.URL(), top))
}

func (w *world) configure(top string) {
	w.t.Helper()
	text := top + `
admin: {listen: "127.0.0.1:0"}
streams: [{name: ORDERS, subjects: [orders.>]}]
routes:
  - name: hook
    subjects: [orders.>]
    start: all
    ack_wait: 5s
    handler: {http: {url: "` + w.hook.URL + `"}}
    timeout: 5s
    retry: {max_attempts: 4, policy: constant, min: 12s, max: 12s, jitter: 0, park_after: 1s}
    supervisor: {trip_after: 0, route_trip_after: 0}
`
	if err := os.WriteFile(filepath.Join(w.dir, "relay.yaml"), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// process is a relay that runs.
type process struct {
	w    *world
	cmd  *exec.Cmd
	log  *bytes.Buffer
	done chan error
}

func (w *world) run(commit string) *process {
	w.t.Helper()
	p := &process{w: w, cmd: exec.Command(binary(w.t, commit), "run"), log: new(bytes.Buffer), done: make(chan error, 1)}
	p.cmd.Dir, p.cmd.Stderr, p.cmd.Stdout = w.dir, p.log, p.log
	if err := p.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	w.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		select {
		case <-p.done:
		default:
		}
		if w.t.Failed() {
			w.t.Logf("relay of %q:\n%s", commit, p.log.String())
		}
	})
	return p
}

// stop ends a relay as an operator does.
func (p *process) stop() {
	p.w.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-p.done:
		if err != nil {
			p.w.t.Fatalf("it ended with %v", err)
		}
	case <-time.After(patience):
		p.w.t.Fatal("it does not end")
	}
}

// relay runs a command.
func (w *world) relay(commit string, args ...string) (out string, err error) {
	w.t.Helper()
	c := exec.Command(binary(w.t, commit), args...)
	c.Dir = w.dir
	text, err := c.CombinedOutput()
	return string(text), err
}

func (w *world) must(commit string, args ...string) string {
	w.t.Helper()
	out, err := w.relay(commit, args...)
	if err != nil {
		w.t.Fatalf("relay %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (w *world) publish(prefix string, n int) {
	w.t.Helper()
	for i := range n {
		if _, err := w.js.Publish(w.t.Context(), "orders.eu", fmt.Appendf(nil, "%s %d", prefix, i)); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("never: %s; handled %v, failed %v", what, w.count(w.handled), w.count(w.failed))
		}
	}
}

// count is how often messages came, by the first word of their bodies.
func (w *world) count(of map[string]int) map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := map[string]int{}
	for body, times := range of {
		word, _, _ := strings.Cut(body, " ")
		n[word] += times
	}
	return n
}

func (w *world) messages(stream string) int {
	s, err := w.js.Stream(w.t.Context(), stream)
	if err != nil {
		return -1
	}
	return int(s.CachedInfo().State.Msgs)
}

// goRound has messages in every state while one version follows another.
func (w *world) goRound(from, to string, between func()) {
	w.t.Helper()
	failing := func(body string) int {
		switch {
		case strings.HasPrefix(body, "parked"):
			return 503
		case strings.HasPrefix(body, "dead"):
			return 422
		}
		return 200
	}
	w.answers(failing)
	p := w.run(from)
	w.eventually("the stream is there", func() bool { return w.messages("ORDERS") >= 0 })
	before := w.count(w.handled)["ok"]
	dead := max(0, w.messages("RELAY_DLQ"))
	w.publish("ok-"+from, 0)
	w.publish("ok", 5)
	w.publish("parked", 30)
	w.publish("dead", 4)
	w.eventually("each is in its state", func() bool {
		return w.count(w.handled)["ok"] == before+5 && w.messages("RELAY_RETRY") >= 30 && w.messages("RELAY_DLQ") == dead+4
	})
	p.stop()
	w.publish("waits", 7)
	if between != nil {
		between()
	}
	w.answers(func(string) int { return 200 })
	p = w.run(to)
	w.eventually("what waited is handled, and what was parked", func() bool {
		n := w.count(w.handled)
		return n["waits"] == 7 && n["parked"] == 30
	})
	w.eventually("nothing waits any more", func() bool { return w.messages("RELAY_RETRY") == 0 })
	w.must(to, "dlq", "replay", "--yes")
	w.eventually("dead letters are replayed", func() bool { return w.messages("RELAY_DLQ") == 0 && w.count(w.handled)["dead"] == 4 })
	time.Sleep(2 * time.Second) // what comes twice comes now
	p.stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	for body, n := range w.handled {
		if n != 1 && !strings.HasPrefix(body, "ok") {
			w.t.Errorf("%s was handled %d times", body, n)
		}
	}
	w.handled, w.failed = map[string]int{}, map[string]int{}
}

func TestUpgrade_oneServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.on(natstest.Start(t, natstest.WithListen()), "")
	w.goRound(first, "", nil)
	var _ = json.Valid
	w.goRound("", first, func() {
		out, err := w.relay("", "nats", "downgrade", "--yes")
		t.Logf("downgrade: %v\n%s", err, out)
	})
	w.goRound(first, "", nil)
}
