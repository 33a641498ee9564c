package upgrade

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/natstest"
)

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
	var err error
	if binaries.dir == "" {
		binaries.dir, err = os.MkdirTemp("", "relay-upgrade")
	}
	root, path := "", ""
	if err == nil {
		root, err = filepath.Abs("../..")
	}
	if err == nil {
		path, err = Build(root, commit, binaries.dir)
	}
	if errors.Is(err, ErrNoHistory) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	binaries.made[commit] = path
	return path
}

const patience = 60 * time.Second

// world is a server, an endpoint, and a configuration that all versions read.
type world struct {
	t    *testing.T
	nc   *nats.Conn
	js   jetstream.JetStream
	dir  string
	hook *httptest.Server
	port int // of the embedded server; 0: the server is another one

	mu      sync.Mutex
	answer  func(body string) int
	handled map[string]int // answered with 200
	failed  map[string]int
	at      map[string]time.Time // when it was handled first
	runs    map[string]bool      // at work now
	begun   map[string]int       // of ordered messages: how many numbers of a key have begun
	limited int                  // how many run now
	most    int                  // and ran at once
	faults  []string
}

const (
	limit = 4                       // of the service
	brief = 30 * time.Millisecond   // what a message takes that needs room in it
	long  = 1500 * time.Millisecond // what others take, so that they are in hand when something happens
)

func newWorld(t *testing.T) *world {
	w := &world{t: t, dir: t.TempDir(), runs: map[string]bool{}}
	w.reset()
	w.answers(func(string) int { return 200 })
	w.hook = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		word := w.begin(string(body))
		select {
		case <-time.After(map[string]time.Duration{"limited": brief, "long": long}[word]):
			rw.WriteHeader(w.end(string(body), word, false))
		case <-r.Context().Done(): // whoever asked was killed
			w.end(string(body), word, true)
		}
	}))
	t.Cleanup(w.hook.Close)
	return w
}

// reset forgets what was handled.
func (w *world) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handled, w.failed, w.at, w.begun = map[string]int{}, map[string]int{}, map[string]time.Time{}, map[string]int{}
}

// begin notes that a message starts, and what is wrong with that.
func (w *world) begin(body string) (word string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	word, number, _ := strings.Cut(body, " ")
	if w.runs[body] && word != "tick" {
		w.faults = append(w.faults, body+" starts while it runs already")
	}
	w.runs[body] = true
	if strings.HasPrefix(word, "ordered") {
		switch n, _ := strconv.Atoi(number); {
		case n > w.begun[word]:
			w.faults = append(w.faults, fmt.Sprintf("%s starts before %d", body, w.begun[word]))
		case n == w.begun[word]:
			w.begun[word]++
		}
	}
	if word == "limited" {
		w.limited++
		w.most = max(w.most, w.limited)
	}
	return word
}

// end notes what becomes of it.
func (w *world) end(body, word string, cut bool) (code int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.runs, body)
	if word == "limited" {
		w.limited--
	}
	if cut {
		return 0
	}
	if code = w.answer(body); code != 200 {
		w.failed[body]++
		return code
	}
	if w.handled[body]++; w.handled[body] == 1 {
		w.at[body] = time.Now()
	}
	return code
}

// sound fails the test for what went wrong with starts.
func (w *world) sound() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.faults[:min(10, len(w.faults))] {
		w.t.Error(f)
	}
	if w.most > limit {
		w.t.Errorf("%d ran at once under a limit of %d over all instances", w.most, limit)
	}
	w.faults = nil
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

// attach connects to the embedded server, which is there only while relay runs.
func (w *world) attach() {
	w.t.Helper()
	if w.port == 0 {
		return
	}
	if w.nc != nil {
		w.nc.Close()
	}
	w.eventually("the embedded server is there", func() bool {
		key, err := nats.NkeyOptionFromSeed(filepath.Join(w.dir, "data", "client.nk"))
		if err != nil {
			return false
		}
		nc, err := nats.Connect(fmt.Sprintf("nats://127.0.0.1:%d", w.port), key)
		if err != nil {
			return false
		}
		w.nc = nc
		w.js, err = jetstream.New(nc)
		return err == nil
	})
}

func (w *world) configure(top string) {
	w.t.Helper()
	text := top + `
admin: {listen: "127.0.0.1:0"}
streams:
  - {name: ORDERS, subjects: [orders.>]}
  - {name: STAYS, subjects: [stays.>]}
  - {name: ORDERED, subjects: [ordered.>]}
  - {name: LIMITED, subjects: [limited.>]}
  - {name: LONG, subjects: [long.>]}
  - {name: TICKS, subjects: [ticks.>]}
limits: {gate: {concurrency: ` + strconv.Itoa(limit) + `, scope: service}}
schedules: [{name: tick, every: 1s, subject: ticks.now, body: tick}]
routes:
`
	for _, r := range []struct{ name, subjects, more string }{
		{"hook", "orders.>", retry("1500ms", "1s")},                  // what fails is parked
		{"stays", "stays.>", retry("2s", "1h")},                      // what fails stays in its durable
		{"ordered", "ordered.>", "order: key, " + retry("1s", "1h")}, // ordered messages never park
		{"limited", "limited.>", "limits: [gate], " + retry("1s", "1h")},
		{"long", "long.>", retry("1s", "1h")},
		{"ticks", "ticks.>", retry("1s", "1h")},
	} {
		text += fmt.Sprintf("  - {name: %s, subjects: [%s], start: all, ack_wait: 5s, timeout: 5s, handler: {http: {url: %q}}, %s}\n", r.name, r.subjects, w.hook.URL, r.more)
	}
	if err := os.WriteFile(filepath.Join(w.dir, "relay.yaml"), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// retry are the policies of a route whose messages come again after delay, and wait in the retry stream beyond park.
func retry(delay, park string) string {
	return fmt.Sprintf("retry: {max_attempts: 99, policy: constant, min: %s, max: %s, jitter: 0, park_after: %s}, supervisor: {trip_after: 0, route_trip_after: 0}", delay, delay, park)
}

// process is a relay that runs.
type process struct {
	w    *world
	cmd  *exec.Cmd
	log  *bytes.Buffer // to be read when it is done
	done chan struct{}
	err  error // then
}

func (w *world) run(commit string) *process {
	w.t.Helper()
	p := &process{w: w, cmd: exec.Command(binary(w.t, commit), "run"), log: new(bytes.Buffer), done: make(chan struct{})}
	p.cmd.Dir, p.cmd.Stderr, p.cmd.Stdout = w.dir, p.log, p.log
	if err := p.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		p.err = p.cmd.Wait()
	}()
	w.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if w.t.Failed() {
			lines := strings.Split(p.log.String(), "\n")
			w.t.Logf("relay of %q:\n%s", commit, strings.Join(lines[max(0, len(lines)-12):], "\n"))
		}
	})
	return p
}

// ready waits until so many instances run, and all are ready.
func (w *world) ready(n int) {
	w.t.Helper()
	w.eventually("all are ready", func() bool {
		list, err := control.AskStatus(w.t.Context(), w.nc, "relay")
		return err == nil && len(list) == n && !slices.ContainsFunc(list, func(s consumer.Status) bool { return !s.Ready })
	})
}

// stop ends a relay as an operator does.
func (p *process) stop() {
	p.w.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		if p.err != nil {
			p.w.t.Fatalf("it ended with %v", p.err)
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

func (w *world) publish(subject, prefix string, n int) {
	w.t.Helper()
	for i := range n {
		if _, err := w.js.Publish(w.t.Context(), subject, fmt.Appendf(nil, "%s %d", prefix, i)); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) eventually(what string, ok func() bool, last ...*string) {
	w.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			for _, text := range last {
				w.t.Log(*text)
			}
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

// ticked tells how many runs of the schedule were published, and fails the test when one was published twice or, with each, left out.
func (w *world) ticked(each bool) (n int) {
	w.t.Helper()
	s, err := w.js.Stream(w.t.Context(), "TICKS")
	if err != nil {
		w.t.Fatal(err)
	}
	var last time.Time
	state := s.CachedInfo().State
	for seq := state.FirstSeq; seq <= state.LastSeq; seq++ {
		m, err := s.GetMsg(w.t.Context(), seq)
		if err != nil {
			w.t.Fatal(err)
		}
		run, err := time.Parse(time.RFC3339, m.Header.Get("Relay-Schedule-Run"))
		if err != nil {
			w.t.Fatal(err)
		}
		if since := run.Sub(last); since <= 0 || each && !last.IsZero() && since != time.Second {
			w.t.Errorf("the run of the schedule at %v came after that at %v", run, last)
		}
		last = run
		n++
	}
	return n
}

// states are how many messages are in each state when one version follows another, by the first word of their bodies.
var states = map[string]int{
	"ok": 5, "parked": 30, "nak": 6, "redo": 3, "dead": 4, "waits": 7, "later": 2, "ordered-a": 10, "ordered-b": 10, "limited": 20, "long": 8,
}

// follow has messages in every state while one version follows another.
func (w *world) follow(from, to string) {
	w.t.Helper()
	w.reset()
	w.answers(func(body string) int {
		switch word, _, _ := strings.Cut(body, " "); word {
		case "parked", "nak", "ordered-a", "ordered-b":
			return 503
		case "dead", "redo":
			return 422
		}
		return 200
	})
	p := w.run(from)
	w.attach()
	w.ready(1)
	for _, word := range []string{"ok", "parked", "dead"} {
		w.publish("orders.eu", word, states[word])
	}
	for _, word := range []string{"nak", "redo"} {
		w.publish("stays.eu", word, states[word])
	}
	w.publish("ordered.a", "ordered-a", states["ordered-a"]) // the first ones fail, and the others wait for these
	w.publish("ordered.b", "ordered-b", states["ordered-b"])
	w.must(from, "pub", "orders.eu", "later 0", "--in", "4s")
	w.eventually("each has failed", func() bool {
		failed := w.count(w.failed)
		return w.count(w.handled)["ok"] == states["ok"] && failed["parked"] >= states["parked"] && failed["nak"] >= states["nak"] &&
			w.messages("RELAY_DLQ") == states["dead"]+states["redo"]
	})
	w.answers(func(string) int { return 503 })
	w.must(from, "dlq", "replay", "--route", "stays", "--yes") // they wait in the durable of what comes due
	w.eventually("those that were replayed have failed again", func() bool { return w.count(w.failed)["redo"] >= 2*states["redo"] })
	w.publish("limited.eu", "limited", states["limited"]) // the last ones run, or wait, when it ends
	w.publish("long.eu", "long", states["long"])
	p.stop()
	if w.port == 0 {
		w.publish("orders.eu", "waits", states["waits"])
	}
	w.answers(func(string) int { return 200 })
	p = w.run(to)
	if w.attach(); w.port > 0 {
		w.publish("orders.eu", "waits", states["waits"])
	}
	w.must(to, "pub", "orders.eu", "later 1", "--in", "1s")
	w.eventually("all are handled", func() bool {
		n := w.count(w.handled)
		for word, want := range states {
			if n[word] < want && word != "dead" {
				return false
			}
		}
		return true
	})
	w.eventually("nothing waits any more", func() bool { return w.messages("RELAY_RETRY") == 0 })
	w.must(to, "dlq", "replay", "--yes")
	w.eventually("dead letters are replayed", func() bool { return w.messages("RELAY_DLQ") == 0 && w.count(w.handled)["dead"] == states["dead"] })
	time.Sleep(time.Second) // what comes twice comes now
	if to == "" {
		var out string
		w.eventually("the audit finds nothing unexplained", func() (ok bool) {
			var err error
			if out, err = w.relay(to, "audit"); strings.Contains(out, "are missing; neither relay") {
				// What earlier versions took out nobody noted.
				w.must(to, "audit", "--accept-lost", "--yes")
			}
			return err == nil
		}, &out)
	}
	w.ticked(false)
	p.stop()
	w.sound()
	w.mu.Lock()
	defer w.mu.Unlock()
	for body, n := range w.handled {
		if n != 1 && body != "tick" {
			w.t.Errorf("from %q to %q: %s was handled %d times", from, to, body, n)
		}
	}
}

// Between the last release and this one nothing has to be prepared, in either direction.
func TestUpgrade_theLastReleaseAndBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.on(natstest.Start(t), "")
	w.follow(Last, "")
	w.follow("", Last)
	w.follow(Last, "")
}

func TestUpgrade_cluster(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.on(natstest.Cluster(t, 3)[0], ", replicas: 3")
	w.follow(Last, "")
	w.follow("", Last)
}

// The server is inside relay.
func TestUpgrade_embedded(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.port = l.Addr().(*net.TCPAddr).Port
	_ = l.Close()
	w.configure(fmt.Sprintf("nats: {embedded: {store_dir: data, listen: \"127.0.0.1:%d\"}}\n", w.port))
	t.Cleanup(func() {
		if w.nc != nil {
			w.nc.Close()
		}
	})
	w.follow(Last, "")
	w.follow("", Last)
}
