package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Relay is one process of the program.
type Relay struct {
	*Proc
	Name  string
	Admin string // host:port
	w     *World
	conf  string
	netns string
}

// M is a piece of a configuration.
type M = map[string]any

// RelayConfig says how an instance runs. The zero value is the route work over t.> with the http handler.
type RelayConfig struct {
	// URL of NATS, of a proxy for instance. Empty: the servers of the run. "embedded": relay's own server.
	URL string
	// Route is laid over the route work; Top over the whole file.
	Route, Top M
	// Routes replaces the route work.
	Routes []M
	Binary string
	Env    []string
	Cgroup string
	Netns  string
	Args   []string
	// Ready waits for /readyz.
	NoWait bool
}

// StartRelay runs an instance called name, and waits until it is ready.
func (w *World) StartRelay(name string, h *Handler, c RelayConfig) *Relay {
	w.T.Helper()
	r := &Relay{Name: name, Admin: fmt.Sprintf("127.0.0.1:%d", freePort(w.T)), w: w, conf: w.path(name + ".yaml"), netns: c.Netns}
	route := M{
		"name": "work", "subjects": []string{"t.>"}, "start": "all", "concurrency": 64, "timeout": "30s", "ack_wait": "2s",
		"retry": M{"max_attempts": 3, "min": "200ms", "max": "200ms", "jitter": 0},
		// Rows about other things do not want their failing messages to stop their neighbours.
		"supervisor": M{"trip_after": 0, "route_trip": M{"of": 0}, "dead_trip": M{"of": 0}},
	}
	if w.stream != "" {
		route["stream"] = w.stream
	}
	if h != nil {
		route["handler"] = M{"http": M{"url": h.URL(name)}}
	}
	maps.Copy(route, c.Route)
	routes := []M{route}
	if c.Routes != nil {
		routes = c.Routes
	}
	conf := M{
		"nats": M{"url": w.relayURL(c.URL), "replicas": w.replicas()}, "routes": routes, "drain": "5s", "admin": M{"listen": r.Admin},
		"log": M{"level": "info", "format": "json"},
	}
	maps.Copy(conf, c.Top)
	text, err := json.MarshalIndent(conf, "", "  ") // which is YAML
	if err == nil {
		err = os.WriteFile(r.conf, text, 0o600)
	}
	if err != nil {
		w.T.Fatal(err)
	}
	argv := append([]string{orText(c.Binary, w.Bin.Relay), "run", "-c", r.conf}, c.Args...)
	r.Proc = w.startProc(name, procOptions{netns: c.Netns, env: slices.Concat(w.env, c.Env), cgroup: c.Cgroup}, argv...)
	if !c.NoWait {
		r.WaitReady(20 * time.Second)
	}
	if w.js != nil {
		w.watch(r)
	}
	return r
}

func (w *World) relayURL(url string) string {
	switch {
	case url == "embedded":
		return ""
	case url != "":
		return url
	}
	return w.nats.URL()
}

func (w *World) replicas() int {
	if w.nats == nil {
		return 1
	}
	return w.nats.replicas()
}

// WaitReady waits for /readyz, and fails the test with the log when it does not come.
func (r *Relay) WaitReady(d time.Duration) time.Duration {
	r.w.T.Helper()
	took, ok := r.w.Within(d, func() bool { ready, _ := r.Ready(); return ready })
	if !ok {
		_, why := r.Ready()
		r.w.T.Fatalf("%s is not ready after %v: %s\n%s", r.Name, d, why, tail(r.LogText(), 20))
	}
	return took
}

func tail(s string, lines int) string {
	all := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Ready asks /readyz; why is its body.
func (r *Relay) Ready() (ready bool, why string) {
	status, body, err := r.get("/readyz")
	if err != nil {
		return false, err.Error()
	}
	return status == http.StatusOK, body
}

func (r *Relay) get(path string) (status int, body string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	defer cancel()
	tr := &http.Transport{DisableKeepAlives: true}
	if r.netns != "" {
		tr.DialContext = nsDialer{r.netns}.DialContext
	} else {
		tr.DialContext = (&net.Dialer{}).DialContext
	}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.Admin+path, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// Metrics sums a metric over its labels.
func (r *Relay) Metrics(name string) (sum float64) {
	_, body, err := r.get("/metrics")
	if err != nil {
		return -1
	}
	for line := range strings.Lines(body) {
		if !strings.HasPrefix(line, name+"{") && !strings.HasPrefix(line, name+" ") {
			continue
		}
		var v float64
		if _, err := fmt.Sscan(line[strings.LastIndexByte(strings.TrimSpace(line), ' ')+1:], &v); err == nil {
			sum += v
		}
	}
	return sum
}

// KillRelay is kill -9. What the server had delivered and was not told of may come again.
func (w *World) KillRelay(r *Relay) *Fault {
	r.Kill()
	at := time.Now()
	f := w.fault("kill -9 "+r.Name, at, w.InFlight())
	f.Crash = true
	return f
}

// thaw is when a process that was stopped went on.
type thaw struct {
	name string
	at   time.Time
}

// Pause stops the process for d, as a machine that sleeps.
func (w *World) Pause(p *Proc, d time.Duration) {
	before := w.InFlight()
	p.Signal(syscall.SIGSTOP)
	at := time.Now()
	w.fault(fmt.Sprintf("stop %s for %v", p.Name, d), at, max(before, w.InFlight()))
	time.Sleep(time.Until(at.Add(d)))
	w.mu.Lock()
	w.thaws = append(w.thaws, thaw{p.Name, time.Now()})
	w.mu.Unlock()
	p.Signal(syscall.SIGCONT)
	w.Note("continue %s", p.Name)
}

// Handler is the process of an http handler.
type Handler struct {
	*Proc
	addr   string
	w      *World
	Ledger string
	netns  string
}

// StartHandler runs an http handler.
func (w *World) StartHandler(netns string) *Handler { return w.startHandler("http", netns) }

func (w *World) startHandler(name, netns string) *Handler {
	w.T.Helper()
	return w.startHandlerAt(name, netns, "127.0.0.1:0")
}

// startHandlerAt runs an http handler that listens there.
func (w *World) startHandlerAt(name, netns, listen string) *Handler {
	w.T.Helper()
	h := &Handler{w: w, Ledger: w.path(name + ".ledger"), netns: netns}
	first := make(chan string, 1)
	w.ledgers.Add(h.Ledger)
	h.Proc = w.startProc(name, procOptions{netns: netns, first: func(line string) {
		select {
		case first <- line:
		default: // it was started again
		}
	}}, w.Bin.Chaosd, "http", "-ledger", h.Ledger, "-listen", listen)
	select {
	case h.addr = <-first:
	case <-time.After(10 * time.Second):
	}
	if h.addr == "" {
		w.T.Fatalf("the handler does not start: %s", h.LogText())
	}
	return h
}

// URL for one instance of relay.
func (h *Handler) URL(instance string) string { return "http://" + h.addr + "/h/" + instance }

// Mode makes the handler ok, slow, hang, dead or down.
func (h *Handler) Mode(mode string) {
	h.w.T.Helper()
	h.w.Note("handler %s", mode)
	r := Relay{w: h.w, Admin: h.addr, netns: h.netns}
	if _, _, err := r.get("/mode/" + mode); err != nil {
		h.w.T.Fatalf("handler: %v", err)
	}
}

// count is how many requests came.
func (h *Handler) count() (n int) {
	h.w.T.Helper()
	_, text, err := (&Relay{w: h.w, Admin: h.addr, netns: h.netns}).get("/count")
	if _, bad := fmt.Sscan(text, &n); err != nil || bad != nil {
		h.w.T.Fatalf("the handler does not count: %v %v", err, bad)
	}
	return n
}

// Embedded is a program of its own that embeds relay, with a Go handler.
type Embedded struct {
	*Proc
	Ledger string
}

// StartEmbedded runs an embedding program. Conf is the embedConfig of chaosd.
func (w *World) StartEmbedded(name string, conf M) *Embedded {
	w.T.Helper()
	e := &Embedded{Ledger: w.path(name + ".ledger")}
	all := M{
		"URL": w.nats.URL(), "Service": "relay", "Instance": name, "Ledger": e.Ledger, "Subjects": []string{"t.>"}, "Stream": w.stream,
		"Durable": "work", "Concurrency": 64, "MaxAttempts": 3, "AckWait": 2 * time.Second, "Timeout": 30 * time.Second,
		"Drain": 2 * time.Second, "RetryMin": 200 * time.Millisecond, "RetryMax": 200 * time.Millisecond, "MaxStuck": 8,
	}
	maps.Copy(all, conf)
	text, err := json.Marshal(all)
	file := w.path(name + ".json")
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		w.T.Fatal(err)
	}
	w.ledgers.Add(e.Ledger)
	e.Proc = w.startProc(name, procOptions{}, w.Bin.Chaosd, "embed", "-config", file)
	return e
}

// askEmbedded has the embedding programs write their status to their logs, for whoever looks into a failure.
func (w *World) askEmbedded() {
	w.mu.Lock()
	procs := slices.Clone(w.procs)
	w.mu.Unlock()
	for _, p := range procs {
		if len(p.argv) > 1 && p.argv[1] == "embed" {
			p.Signal(syscall.SIGUSR1)
		}
	}
	time.Sleep(200 * time.Millisecond)
}

// Embedded starts an instance with its own server, connects the harness to it, and makes the stream.
func (w *World) Embedded(h *Handler, store string) *Relay {
	w.T.Helper()
	port := freePort(w.T)
	w.nats = &NATS{w: w, Nodes: []*Node{{w: w, Port: port}}}
	w.stream = "T"
	r := w.StartRelay("r1", h, RelayConfig{URL: "embedded", Top: M{
		"nats":    M{"url": "", "replicas": 1, "embedded": M{"listen": fmt.Sprintf("127.0.0.1:%d", port), "store_dir": store}},
		"streams": []M{{"name": "T", "subjects": []string{"t.>"}}},
	}})
	w.nats.Nodes[0].Proc = r.Proc
	w.nkeyFile = filepath.Join(store, "client.nk")
	w.Connect()
	w.watch(r)
	return r
}
