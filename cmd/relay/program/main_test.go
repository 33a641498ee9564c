package program

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/race"
)

// beRelay in the environment makes the test binary the program itself. Its name does not begin with RELAY_, which would make it a key of the
// configuration.
const beRelay = "BE_RELAY"

func TestMain(m *testing.M) {
	if os.Getenv(beRelay) != "" {
		Main()
	}
	if name := os.Getenv(beOther); name != "" {
		if err := other(name); err != nil {
			fmt.Fprintln(os.Stderr, name+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m, append(natstest.Leaks(), goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(builtIn)
		os.Exit(code)
	}))...)
}

// builtIn is where the program without the race detector is, once a test needs it.
var builtIn string

// built is that program. The race detector makes the start of a process several times slower.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "relay-program-")
	if err != nil {
		return "", err
	}
	builtIn = dir
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", dir, "github.com/relaymq/relay/cmd/relay").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return filepath.Join(dir, "relay"), nil
})

// programFor is the program for a command line: the test binary itself for those in which much happens at a time, so that the race detector sees it.
func programFor(args []string) (string, error) {
	if race.Enabled && (len(args) == 0 || !slices.Contains([]string{"run", "dlq", "replay"}, args[0])) {
		return built()
	}
	return os.Executable()
}

// patience is for what takes a moment on an idle machine.
const patience = time.Minute

// process is a relay in a process of its own.
type process struct {
	t      testing.TB
	cmd    *exec.Cmd
	out    *output // stdout
	err    *output // stderr
	exited chan struct{}
	at     time.Time // when it exited
	args   []string
}

// output is what a process has written so far.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// spawn starts relay in dir. It is gone when the test ends.
func spawn(t testing.TB, dir string, stdin io.Reader, args ...string) *process {
	t.Helper()
	program, err := programFor(args)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: exec.Command(program, args...), out: &output{}, err: &output{}, exited: make(chan struct{}), args: args}
	p.cmd.Dir, p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = dir, stdin, p.out, p.err
	// Without the second that the race detector waits at each exit.
	p.cmd.Env = append(clean(os.Environ()), beRelay+"=1", "GORACE=atexit_sleep_ms=0")
	// A descendant that keeps the pipes open must not keep the test waiting.
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		p.at = time.Now()
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.kill()
		if strings.Contains(p.err.String(), "DATA RACE") {
			t.Errorf("relay %s has a data race", strings.Join(args, " "))
		}
		if t.Failed() && args[0] == "run" { // what short commands said is in their test
			t.Logf("relay %s\nstdout:\n%s\nstderr:\n%s", strings.Join(args, " "), tail(p.out.String()), tail(p.err.String()))
		}
	})
	return p
}

// clean leaves out what would configure relay.
func clean(env []string) (kept []string) {
	for _, e := range env {
		if !strings.HasPrefix(e, "RELAY_") {
			kept = append(kept, e)
		}
	}
	return append(kept, "TZ=UTC")
}

func tail(s string) string {
	const most = 12 << 10
	if len(s) > most {
		return "…" + s[len(s)-most:]
	}
	return s
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatalf("signal: %v", err)
	}
}

// wait returns the exit code, or -1 after a signal.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(2 * patience):
		p.t.Fatalf("relay %s does not end", strings.Join(p.args, " "))
	}
	return p.cmd.ProcessState.ExitCode()
}

// logged returns the log entries whose message holds text.
func (p *process) logged(text string) (found []map[string]any) {
	for line := range strings.Lines(p.err.String()) {
		var entry map[string]any
		if json.Unmarshal([]byte(line), &entry) != nil {
			continue
		}
		if msg, _ := entry["msg"].(string); strings.Contains(msg, text) {
			found = append(found, entry)
		}
	}
	return found
}

// saidLast returns why the service ended: what it wrote before it had a log, or the errors at the end of that.
func (p *process) saidLast() (said []string) {
	for _, entry := range p.logged("relay ends") {
		said = append(said, entry["error"].(string))
	}
	for line := range strings.Lines(p.err.String()) {
		if !strings.HasPrefix(line, "{") {
			said = append(said, line)
		}
	}
	return said
}

// await waits for a log entry and returns the first.
func (p *process) await(text string) map[string]any {
	p.t.Helper()
	natstest.Eventually(p.t, "log: "+text, func() bool {
		if len(p.logged(text)) > 0 {
			return true
		}
		select {
		case <-p.exited:
			p.t.Fatalf("relay ended before it said %q", text)
		default:
		}
		return false
	})
	return p.logged(text)[0]
}

// get asks the admin listener.
func (p *process) get(path string) (status int, body string) {
	p.t.Helper()
	base := strings.TrimSuffix(p.await("admin is up")["url"].(string), "/readyz")
	r, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}).Get(base + path)
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	b, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(b)
}

// ready waits until the service says that it works.
func (p *process) ready() *process {
	p.t.Helper()
	p.await("admin is up")
	natstest.Eventually(p.t, "relay is ready", func() bool {
		select {
		case <-p.exited:
			p.t.Fatalf("relay ended with %d", p.cmd.ProcessState.ExitCode())
		default:
		}
		status, _ := p.get("/readyz")
		return status == http.StatusOK
	})
	return p
}

// relay runs a command to its end.
func relay(t testing.TB, dir string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	p := spawn(t, dir, strings.NewReader(""), args...)
	code = p.wait()
	return code, p.out.String(), p.err.String()
}

// relayInto runs a command to its end whose standard output is a file.
func relayInto(t testing.TB, dir string, out *os.File, args ...string) (code int, stderr string) {
	t.Helper()
	program, err := programFor(args)
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, append(clean(os.Environ()), beRelay+"=1"), out, &said
	_ = cmd.Run()
	return cmd.ProcessState.ExitCode(), said.String()
}

// must runs a command that has to succeed, and returns its output.
func must(t testing.TB, dir string, args ...string) string {
	t.Helper()
	code, stdout, stderr := relay(t, dir, args...)
	if code != 0 {
		t.Fatalf("relay %s: exit %d\n%s%s", strings.Join(args, " "), code, stdout, stderr)
	}
	return stdout
}

// world is an external server, an endpoint for http handlers, and a directory with a configuration.
type world struct {
	t    testing.TB
	dir  string
	s    *natstest.Server
	js   jetstream.JetStream
	nc   *nats.Conn
	hook *endpoint
}

// newWorld makes a world; routes is the YAML of its routes, in which $HOOK is the endpoint's URL.
func newWorld(t testing.TB, routes string, opts ...natstest.Option) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), hook: newEndpoint(t)}
	w.s = natstest.Start(t, opts...)
	w.nc = w.s.Conn(t)
	var err error
	if w.js, err = jetstream.New(w.nc); err != nil {
		t.Fatal(err)
	}
	w.configure("nats: {url: \"" + w.s.URL() + "\"}\n" + routes)
	return w
}

// configure writes relay.yaml.
func (w *world) configure(yaml string) {
	w.t.Helper()
	yaml = "admin: {listen: 127.0.0.1:0}\nstreams: [{name: ORDERS, subjects: [orders.>]}]\n" + strings.ReplaceAll(yaml, "$HOOK", w.hook.URL)
	if err := os.WriteFile(filepath.Join(w.dir, "relay.yaml"), []byte(yaml), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// run starts the service and waits until it works.
func (w *world) run(args ...string) *process {
	w.t.Helper()
	return spawn(w.t, w.dir, nil, append([]string{"run"}, args...)...).ready()
}

func (w *world) publish(subject string, data []byte, header nats.Header) uint64 {
	w.t.Helper()
	ack, err := w.js.PublishMsg(w.t.Context(), &nats.Msg{Subject: subject, Data: data, Header: header})
	if err != nil {
		w.t.Fatal(err)
	}
	return ack.Sequence
}

// publishMany publishes n messages of distinct bodies, a thousand at a time.
func publishMany(t testing.TB, js jetstream.JetStream, n int, subject func(i int) string) {
	t.Helper()
	for i := range n {
		if _, err := js.PublishAsync(subject(i), fmt.Appendf(nil, `{"n":%d}`, i)); err != nil {
			t.Fatal(err)
		}
		if i%1000 != 999 && i != n-1 {
			continue
		}
		select {
		case <-js.PublishAsyncComplete():
		case <-time.After(patience):
			t.Fatal("publishing does not end")
		}
	}
	if st, err := js.Stream(t.Context(), "ORDERS"); err != nil || st.CachedInfo().State.Msgs != uint64(n) {
		t.Fatalf("not all is published: %v", err)
	}
}

// countedAfter is when a message that was stored is certainly among those that are pending.
const countedAfter = 30 * time.Millisecond

// settled waits until nothing of the durable is left to do.
func settled(t testing.TB, js jetstream.JetStream, stream, durable string) {
	t.Helper()
	defer func() {
		if t.Failed() { // is it slow, or does it stand still?
			for range 2 {
				if c, err := js.Consumer(context.Background(), stream, durable); err == nil {
					t.Logf("the durable: %+v", *c.CachedInfo())
				}
				time.Sleep(time.Second)
			}
		}
	}()
	// What was just stored is counted as pending a moment later.
	var since time.Time
	natstest.Eventually(t, durable+" is settled", func() bool {
		c, err := js.Consumer(t.Context(), stream, durable)
		if err != nil || c.CachedInfo().NumPending > 0 || c.CachedInfo().NumAckPending > 0 {
			since = time.Time{}
			return false
		}
		if since.IsZero() {
			since = time.Now()
		}
		return time.Since(since) >= countedAfter
	})
}

func deadLetters(t testing.TB, js jetstream.JetStream) (list []dlq.Entry) {
	t.Helper()
	store, err := dlq.Attach(t.Context(), js, "")
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range store.List(t.Context(), dlq.Filter{WithBody: true}) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, e)
	}
	return list
}

// request is one that the endpoint got.
type request struct {
	at, answered time.Time
	id, subject  string
	attempt      string
	life         string
	status       int
	body         string
}

// endpoint is where http handlers send to. It keeps a ledger of all requests.
type endpoint struct {
	*httptest.Server
	mu       sync.Mutex
	answer   func(r request) (status int, text string)
	requests []*request
	open     int // connections
}

func newEndpoint(t testing.TB) *endpoint {
	e := &endpoint{}
	e.Server = httptest.NewUnstartedServer(e)
	e.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		e.mu.Lock()
		defer e.mu.Unlock()
		switch s {
		case http.StateNew:
			e.open++
		case http.StateClosed:
			e.open--
		}
	}
	e.Start()
	t.Cleanup(e.Close)
	return e
}

// answers sets what the endpoint says; 200 by default. It is called outside the lock and may block.
func (e *endpoint) answers(f func(r request) (status int, text string)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answer = f
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the sender was killed in the middle of it
	}
	rec := &request{
		at: time.Now(), id: r.Header.Get("Relay-Id"), subject: r.Header.Get("Relay-Subject"),
		attempt: r.Header.Get("Relay-Attempt"), life: r.Header.Get("Life"), body: string(body),
	}
	e.mu.Lock()
	e.requests = append(e.requests, rec)
	answer, seen := e.answer, *rec
	e.mu.Unlock()
	status, text := http.StatusOK, ""
	if answer != nil {
		status, text = answer(seen)
	}
	e.mu.Lock()
	rec.status, rec.answered = status, time.Now()
	e.mu.Unlock()
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

// all is the ledger so far.
func (e *endpoint) all() (list []request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range e.requests {
		list = append(list, *r)
	}
	return list
}

func (e *endpoint) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.requests)
}

// connections is how many senders are connected. At zero the ledger holds everything that they sent.
func (e *endpoint) connections() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.open
}
