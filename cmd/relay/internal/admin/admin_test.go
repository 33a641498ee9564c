package admin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/goleak"
)

const patience = 20 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs a server on a free port until the test ends.
func serve(t *testing.T, cfg Config) *Server {
	t.Helper()
	cfg.Listen = "127.0.0.1:0"
	s, err := Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Serve(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return s
}

// raw sends bytes on a connection of its own and reads the answer.
func raw(t *testing.T, s *Server, request string) (*http.Response, string) {
	t.Helper()
	c, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(request, " ")
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%q: %v", request, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

func get(t *testing.T, s *Server, path string) (*http.Response, string) {
	t.Helper()
	return raw(t, s, "GET "+path+" HTTP/1.1\r\nHost: "+s.Addr()+"\r\nConnection: close\r\n\r\n")
}

func TestServer_pages(t *testing.T) {
	ready := make(chan error, 1)
	s := serve(t, Config{Ready: func() error { return <-ready }})
	if resp, body := get(t, s, "/livez"); resp.StatusCode != 200 || body != "ok\n" {
		t.Fatalf("livez: %d %q", resp.StatusCode, body)
	}
	ready <- nil
	if resp, body := get(t, s, "/readyz"); resp.StatusCode != 200 || body != "ok\n" {
		t.Fatalf("readyz: %d %q", resp.StatusCode, body)
	}
	ready <- errors.Join(errors.New("NATS is gone"), errors.New("route billing: \x1b[31mfailed"))
	resp, body := get(t, s, "/readyz")
	if resp.StatusCode != 503 || body != "NATS is gone\nroute billing: \ufffd[31mfailed\n" {
		t.Fatalf("readyz: %d %q", resp.StatusCode, body)
	}
	if ct := resp.Header.Get("Content-Type"); ct != "text/plain; charset=utf-8" {
		t.Fatalf("content type %q", ct)
	}
	if resp, body := get(t, serve(t, Config{}), "/readyz"); resp.StatusCode != 200 {
		t.Fatalf("nothing to ask: %d %q", resp.StatusCode, body)
	}
}

func TestServer_everythingElse(t *testing.T) {
	s := serve(t, Config{})
	for target, want := range map[string]int{
		"/": 404, "/livez/": 404, "//livez": 404, "/./livez": 404, "/LIVEZ": 404, "/livez;x": 404, "/debug/pprof/": 404, "/debug/vars": 404,
		"/%2e%2e/livez": 404, "/metrics%2f": 404, "/livez%00": 404, "/livez?x=1": 200,
	} {
		resp, _ := get(t, s, target)
		if resp.StatusCode != want {
			t.Errorf("%s: %d, want %d", target, resp.StatusCode, want)
		}
		if resp.Header.Get("Location") != "" {
			t.Errorf("%s: redirected", target)
		}
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "QUERY"} {
		resp, _ := raw(t, s, method+" /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
		if resp.StatusCode != 405 || resp.Header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s: %d, allow %q", method, resp.StatusCode, resp.Header.Get("Allow"))
		}
	}
	for _, page := range []string{"/livez", "/readyz", "/metrics"} {
		if resp, body := raw(t, s, "HEAD "+page+" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); resp.StatusCode != 200 || body != "" {
			t.Errorf("HEAD %s: %d %q", page, resp.StatusCode, body)
		}
	}
	// A body is never read, whatever length it claims.
	if resp, _ := raw(t, s, "POST /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1073741824\r\n\r\n"); resp.StatusCode != 405 {
		t.Errorf("a large body: %d", resp.StatusCode)
	}
}

func TestServer_hosts(t *testing.T) {
	s := serve(t, Config{})
	for host, want := range map[string]int{
		"localhost": 200, "LocalHost:1": 200, "127.0.0.1": 200, "127.0.0.1:8420": 200, "[::1]": 200, "[::1]:8420": 200,
		"evil.test": 403, "evil.test:8420": 403, "127.0.0.1.nip.io": 403, "localhost.": 403, "localhost.evil.test": 403, "127.0.0.2": 403,
		"0.0.0.0": 403, "[::ffff:127.0.0.1]": 403, "127.1": 403, "localhost:x": 403, "[::1%25lo]": 403, "": 403,
	} {
		resp, _ := raw(t, s, "GET /livez HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n")
		// Go itself refuses a Host that is none, with 400.
		if resp.StatusCode != want && !(want == 403 && resp.StatusCode == 400) {
			t.Errorf("host %q: %d, want %d", host, resp.StatusCode, want)
		}
	}
	// The name in the request line wins over the header; HTTP/1.0 needs none.
	for _, request := range []string{
		"GET http://evil.test/livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
		"GET /livez HTTP/1.0\r\n\r\n",
	} {
		if resp, _ := raw(t, s, request); resp.StatusCode != 403 {
			t.Errorf("%q: %d", request, resp.StatusCode)
		}
	}
}

func TestServer_headers(t *testing.T) {
	s := serve(t, Config{Ready: func() error { return errors.New("no") }})
	for _, request := range []string{
		"GET /livez HTTP/1.1\r\nHost: localhost", "GET /readyz HTTP/1.1\r\nHost: localhost", "GET /metrics HTTP/1.1\r\nHost: localhost",
		"GET / HTTP/1.1\r\nHost: localhost", "POST /livez HTTP/1.1\r\nHost: localhost", "GET /livez HTTP/1.1\r\nHost: evil.test",
	} {
		resp, _ := raw(t, s, request+"\r\nOrigin: http://evil.test\r\nConnection: close\r\n\r\n")
		for name, want := range map[string]string{
			"X-Content-Type-Options":  "nosniff",
			"Cache-Control":           "no-store",
			"Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
			"Referrer-Policy":         "no-referrer",
			"X-Frame-Options":         "DENY",

			"Access-Control-Allow-Origin": "",
		} {
			if got := resp.Header.Get(name); got != want {
				t.Errorf("%q: %s is %q, want %q", request, name, got, want)
			}
		}
	}
}

func TestServer_metrics(t *testing.T) {
	runs := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "relay_attempts_total", Help: "x"}, []string{"route"})
	runs.WithLabelValues("billing").Add(3)
	// A label that is no UTF-8 is an error of that metric, and of no other.
	bad := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "relay_bad", Help: "x", ConstLabels: prometheus.Labels{"l": "\xff"}}, func() float64 { return 1 })
	if s, err := Listen(Config{Listen: "127.0.0.1:0", Collectors: []prometheus.Collector{bad}}); err == nil {
		s.Shutdown(t.Context())
		t.Fatal("took a label that is not UTF-8")
	}
	s := serve(t, Config{Collectors: []prometheus.Collector{runs, broken{}}})
	resp, body := get(t, s, "/metrics")
	if resp.StatusCode != 200 {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"relay_attempts_total", "go_goroutines", "process_open_fds"} {
		if families[name] == nil {
			t.Errorf("no %s", name)
		}
	}
	if v := families["relay_attempts_total"].GetMetric()[0].GetCounter().GetValue(); v != 3 {
		t.Errorf("relay_attempts_total is %v", v)
	}
	if s, err := Listen(Config{Listen: "127.0.0.1:0", Collectors: []prometheus.Collector{runs, runs}}); err == nil {
		s.Shutdown(t.Context())
		t.Fatal("took a collector twice")
	}
}

// broken is a collector that fails when asked.
type broken struct{}

func (broken) Describe(ch chan<- *prometheus.Desc) {
	ch <- prometheus.NewDesc("relay_broken", "x", nil, nil)
}

func (broken) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.NewInvalidMetric(prometheus.NewDesc("relay_broken", "x", nil, nil), errors.New("broken"))
}

func TestListen_refuses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().String()
	for addr, want := range map[string]error{
		"0.0.0.0:8420": ErrNotLoopback, ":8420": ErrNotLoopback, "[::]:8420": ErrNotLoopback, "192.0.2.1:8420": ErrNotLoopback, "example.test:8420": ErrNotLoopback,
		taken: ErrPortTaken, "127.0.0.1": nil, "": nil, "127.0.0.1:http-admin": nil, "127.0.0.1:70000": nil,
	} {
		s, err := Listen(Config{Listen: addr})
		if err == nil {
			s.Shutdown(t.Context())
			t.Errorf("%q: listens", addr)
			continue
		}
		if !strings.HasPrefix(err.Error(), "admin.listen: ") || (want != nil && !errors.Is(err, want)) {
			t.Errorf("%q: %v, want %v", addr, err, want)
		}
	}
	s, err := Listen(Config{Listen: taken, AnyPortIfTaken: true})
	if err != nil {
		t.Fatal(err)
	}
	if s.Addr() == taken || !strings.HasPrefix(s.Addr(), "127.0.0.1:") {
		t.Errorf("listens on %s", s.Addr())
	}
	if err := s.Shutdown(t.Context()); err != nil { // it never served
		t.Error(err)
	}
	if c, err := net.Dial("tcp", s.Addr()); err == nil {
		c.Close()
		t.Error("still listens after Shutdown")
	}
}

func TestServer_tooManyHeaderBytes(t *testing.T) {
	s := serve(t, Config{})
	c, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	// Go adds 4 KiB of its own to the limit. It resets the connection afterwards: only the status can be read.
	fmt.Fprintf(c, "GET /livez HTTP/1.1\r\nHost: localhost\r\nX: %s\r\n\r\n", strings.Repeat("x", maxHeaderBytes+8<<10))
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || !strings.Contains(line, "431") {
		t.Fatalf("%q, %v", line, err)
	}
}

// The time-outs are the HTTP server's own; what can be wrong is that they are not set, or that a connection survives
// them. In a bubble the five seconds are free: the connection is a pipe, for the bubble's clock stands still while a
// socket is read.
func TestServer_slowHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := Listen(Config{Listen: "127.0.0.1:0"})
		if err != nil {
			t.Fatal(err)
		}
		s.l.Close()
		client, server := net.Pipe()
		l := &oneConn{conns: make(chan net.Conn, 1), done: make(chan struct{})}
		l.conns <- server
		s.l = limit(l, maxConns)
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() { s.Serve(t.Context()) })
		wg.Go(func() {
			for _, b := range "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" {
				if _, err := fmt.Fprintf(client, "%c", b); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
			t.Error("the whole header was taken, a byte a second")
		})
		begin := time.Now()
		io.ReadAll(client)
		if d := time.Since(begin); d > headerTimeout+time.Second {
			t.Errorf("cut after %v", d)
		}
		client.Close()
		s.Shutdown(t.Context())
	})
}

// oneConn is a listener that has one connection to offer.
type oneConn struct {
	conns chan net.Conn
	done  chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l *oneConn) Close() error   { close(l.done); return nil }
func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }

func TestServer_connectionLimit(t *testing.T) {
	s := serve(t, Config{})
	request := "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" // kept alive
	ask := func(c net.Conn) error {
		c.SetDeadline(time.Now().Add(patience))
		if _, err := io.WriteString(c, request); err != nil {
			return err
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return err
		}
		resp.Body.Close()
		return nil
	}
	var held []net.Conn
	defer func() {
		for _, c := range held {
			c.Close()
		}
	}()
	dial := func() {
		c, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	for range maxConns {
		dial()
	}
	for i, c := range held {
		if err := ask(c); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	if n := len(s.l.(*limited).slots); n != maxConns {
		t.Fatalf("%d connections, want %d", n, maxConns)
	}
	dial()
	// The one too many takes the place of one that is idle, and of no other.
	if err := ask(held[maxConns]); err != nil {
		t.Fatal(err)
	}
	lost := 0
	for _, c := range held {
		if ask(c) != nil {
			lost++
		}
	}
	if lost != 1 {
		t.Errorf("%d connections were closed for one that was too many", lost)
	}
}

// 256 connections that were kept open and asked nothing kept probes out for minutes.
func TestServer_regressionConnectionsThatAskNothingDoNotKeepProbesOut(t *testing.T) {
	s := serve(t, Config{})
	for range maxConns {
		c, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	for range 10 {
		began := time.Now()
		if resp, _ := get(t, s, "/livez"); resp.StatusCode != 200 || time.Since(began) > headerTimeout/2 {
			t.Fatalf("%d after %v", resp.StatusCode, time.Since(began))
		}
	}
}

// A listener that died left a line in the log, and probes had nobody to ask.
func TestServer_regressionAListenerThatDiesIsMadeAgain(t *testing.T) {
	s := serve(t, Config{})
	if resp, _ := get(t, s, "/livez"); resp.StatusCode != 200 {
		t.Fatal(resp.StatusCode)
	}
	s.l.(*limited).Listener.Close()
	deadline := time.Now().Add(patience)
	seen := false
	for {
		seen = seen || s.Down() != nil
		c, err := net.Dial("tcp", s.Addr())
		if err == nil {
			c.Close()
			if seen && s.Down() == nil {
				break
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("it does not listen again (was down: %v): %v", seen, err)
		}
		time.Sleep(time.Millisecond)
	}
	if resp, _ := get(t, s, "/livez"); resp.StatusCode != 200 {
		t.Error(resp.StatusCode)
	}
}

func TestListen_probesAreReachedFromAnywhere(t *testing.T) {
	s := serve(t, Config{Anywhere: true, Key: "admin.probes"})
	if resp, _ := raw(t, s, "GET /readyz HTTP/1.1\r\nHost: 10.1.2.3:8421\r\nConnection: close\r\n\r\n"); resp.StatusCode != 200 {
		t.Errorf("%d", resp.StatusCode)
	}
	all, err := Listen(Config{Listen: "0.0.0.0:0", Anywhere: true, Key: "admin.probes"})
	if err != nil {
		t.Fatal(err)
	}
	_ = all.Shutdown(t.Context())
	if _, err := Listen(Config{Listen: "nowhere", Anywhere: true, Key: "admin.probes"}); err == nil || !strings.HasPrefix(err.Error(), "admin.probes: ") {
		t.Errorf("%v", err)
	}
}

func TestServer_shutdownWaitsForRequests(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan error)
	s := serve(t, Config{Ready: func() error { close(asked); return <-answer }})
	got := make(chan string, 1)
	go func() {
		_, body := get(t, s, "/readyz")
		got <- body
	}()
	<-asked
	down := make(chan error, 1)
	go func() { down <- s.Shutdown(t.Context()) }()
	answer <- errors.New("late")
	if body := <-got; body != "late\n" {
		t.Fatalf("%q", body)
	}
	if err := <-down; err != nil {
		t.Fatal(err)
	}
}

func TestServer_shutdownIsBounded(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan error)
	s := serve(t, Config{Ready: func() error { close(asked); return <-answer }})
	c, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
	<-asked
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	c.SetDeadline(time.Now().Add(patience))
	if _, err := io.ReadAll(c); err != nil && errors.Is(err, context.DeadlineExceeded) {
		t.Fatal("the connection is still there")
	}
	answer <- nil
}
