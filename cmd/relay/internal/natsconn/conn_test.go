package natsconn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/consumer/handler"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/natstest/embedded"
)

const patience = 20 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

func connect(t *testing.T, cfg Config) *Conn {
	t.Helper()
	c, err := Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestConnect_inProcess(t *testing.T) {
	c := connect(t, Config{InProcess: embedded.Start(t, nil)})
	if err := c.Ready(); err != nil {
		t.Fatal(err)
	}
	c.Close()
	<-c.Closed()
	if err := c.Ready(); err == nil {
		t.Fatal("ready after Close")
	}
}

func TestConnect_saysNoAtOnce(t *testing.T) {
	auth := natstest.Start(t, natstest.WithConfig("authorization {user: relay, password: right}"))
	plain := natstest.Start(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "nats://" + l.Addr().String()
	l.Close()
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage")
	if err := os.WriteFile(garbage, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing")
	for name, c := range map[string]struct {
		cfg  Config
		want []string
	}{
		"nobody listens":  {Config{URL: nobody}, []string{nobody, "nothing listens there"}},
		"no such host":    {Config{URL: "nats://host.invalid:4222"}, []string{"host.invalid"}},
		"wrong password":  {Config{URL: auth.URL(), User: handler.SecretText("relay"), Password: handler.SecretText("hunter2")}, []string{auth.URL(), "Authorization Violation"}},
		"password in url": {Config{URL: strings.Replace(auth.URL(), "//", "//relay:hunter2@", 1)}, []string{auth.URL(), "Authorization Violation"}},
		"no tls there":    {Config{URL: strings.Replace(plain.URL(), "nats:", "tls:", 1)}, []string{"TLS is required"}},
		"empty url":       {Config{}, []string{"nats.url"}},
		"bad url":         {Config{URL: "nats://u:hunter2@ho st:x"}, []string{"nats.url"}},
		"bad scheme":      {Config{URL: "http://127.0.0.1:1"}, []string{"nats.url", `"http"`}},
		"no creds file":   {Config{URL: nobody, Creds: missing}, []string{"nats.creds", missing}},
		"no nkey file":    {Config{URL: nobody, NKey: missing}, []string{"nats.nkey", missing}},
		"bad nkey file":   {Config{URL: nobody, NKey: garbage}, []string{"nats.nkey"}},
		"no ca file":      {Config{URL: nobody, CA: missing}, []string{"nats.tls.ca", missing}},
		"bad ca file":     {Config{URL: nobody, CA: garbage}, []string{"nats.tls.ca", garbage}},
		"cert alone":      {Config{URL: nobody, Cert: garbage}, []string{"nats.tls"}},
		"bad cert":        {Config{URL: nobody, Cert: garbage, Key: garbage}, []string{"nats.tls.cert"}},
		"two identities":  {Config{URL: nobody, User: handler.SecretText("a"), Token: handler.SecretText("b")}, []string{"only one of"}},
	} {
		t.Run(name, func(t *testing.T) {
			begin := time.Now()
			_, err := Connect(t.Context(), c.cfg)
			if err == nil {
				t.Fatal("connected")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q holds a secret or a line break", err)
			}
			if d := time.Since(begin); d > startTimeout {
				t.Errorf("took %v", d)
			}
		})
	}
}

// A server that accepts and says nothing, and a list of them: the time-outs of the library add up, ours does not.
func TestConnect_endsWithItsContext(t *testing.T) {
	mute := listen(t, func(c net.Conn) { io.Copy(io.Discard, c) })
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("told to stop")
	time.AfterFunc(50*time.Millisecond, func() { cancel(why) })
	begin := time.Now()
	if _, err := Connect(ctx, Config{URL: mute + "," + mute}); !errors.Is(err, why) {
		t.Fatalf("error %v", err)
	}
	if d := time.Since(begin); d > dialTimeout {
		t.Fatalf("took %v", d)
	}
}

// listen serves each connection until the test ends.
func listen(t *testing.T, serve func(net.Conn)) (url string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				serve(c)
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return "nats://" + l.Addr().String()
}

const info = `INFO {"server_id":"X","server_name":"x","version":"2.15.2","proto":1,"headers":true,"max_payload":1048576,"auth_required":true}` + "\r\n"

func TestConnect_noCredentialsInPlainText(t *testing.T) {
	for name, cfg := range map[string]Config{"tls url": {}, "ca": {CA: writeCA(t)}} {
		t.Run(name, func(t *testing.T) {
			heard := make(chan string, 1)
			url := listen(t, func(c net.Conn) {
				io.WriteString(c, info)
				b, _ := io.ReadAll(c)
				heard <- string(b)
			})
			cfg.URL, cfg.User, cfg.Password = url, handler.SecretText("relay"), handler.SecretText("hunter2")
			if cfg.CA == "" {
				cfg.URL = strings.Replace(url, "nats:", "tls:", 1)
			}
			if _, err := Connect(t.Context(), cfg); !errors.Is(err, nats.ErrSecureConnWanted) {
				t.Fatalf("error %v", err)
			}
			if s := <-heard; s != "" {
				t.Fatalf("the server was sent %q", s)
			}
		})
	}
}

func TestConn_survivesARestart(t *testing.T) {
	s := natstest.Start(t)
	c := connect(t, Config{URL: s.URL()})
	js, err := jetstream.New(c.Conn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	cons, err := js.CreateConsumer(t.Context(), "S", jetstream.ConsumerConfig{Durable: "C"})
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 10)
	run, err := cons.Consume(func(m jetstream.Msg) { m.Ack(); got <- string(m.Data()) }, jetstream.PullHeartbeat(time.Second), jetstream.PullExpiry(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer run.Stop()
	publish := func(body string) {
		t.Helper()
		if _, err := js.Publish(t.Context(), "s", []byte(body)); err != nil {
			t.Fatal(err)
		}
		select {
		case s := <-got:
			if s != body {
				t.Fatalf("got %q, want %q", s, body)
			}
		case <-time.After(patience):
			t.Fatalf("%q did not come", body)
		}
	}
	publish("before")

	s.Stop()
	natstest.Eventually(t, "a reason for not being ready", func() bool { return c.Ready() != nil })
	// Nothing waits in a buffer to be sent behind our back.
	natstest.Eventually(t, "publish fails at once", func() bool { return errors.Is(c.Publish("s", []byte("lost")), nats.ErrReconnectBufExceeded) })
	if err := c.Ready(); !strings.Contains(err.Error(), s.URL()) || !strings.Contains(err.Error(), "RECONNECTING") {
		t.Fatalf("not ready: %v", err)
	}
	s.Restart()
	natstest.Eventually(t, "ready again", func() bool { return c.Ready() == nil && c.Reconnects() == 1 })
	publish("after") // and the consumer still pulls
}

func TestConn_notReadyWhenTheLinkIsSilent(t *testing.T) {
	s := natstest.Start(t)
	p := natstest.NewProxy(t, s.URL())
	c := connect(t, Config{URL: p.URL()})
	p.Stall()
	if err := c.Ready(); err == nil {
		t.Fatal("ready on a stalled link")
	}
	p.Resume()
	natstest.Eventually(t, "ready again", func() bool { return c.Ready() == nil })
	p.Cut()
	natstest.Eventually(t, "back after a cut", func() bool { return c.Reconnects() == 1 && c.Ready() == nil })
}

// The same refusal twice closes a connection of the library's own making for good.
func TestConn_authFailsThenIsRepaired(t *testing.T) {
	s := natstest.Start(t, natstest.WithConfig("authorization {users: [{user: relay, password: one}]}"))
	var log lines
	c := connect(t, Config{URL: s.URL(), User: handler.SecretText("relay"), Password: handler.SecretText("one"), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	s.Configure("authorization {users: [{user: relay, password: two}]}")
	s.Restart()
	natstest.Eventually(t, "refused at least three times", func() bool { return strings.Count(log.String(), "authorization violation") >= 3 })
	if err := c.Ready(); !errors.Is(err, nats.ErrAuthorization) {
		t.Fatalf("not ready: %v", err)
	}
	select {
	case <-c.Closed():
		t.Fatal("gave up")
	default:
	}
	s.Configure("authorization {users: [{user: relay, password: one}]}")
	s.Reload()
	natstest.Eventually(t, "ready again", func() bool { return c.Ready() == nil })
}

func TestConn_nkeyIsReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "seed")
	fresh := func() (public string) {
		kp, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		seed, _ := kp.Seed()
		if err := os.WriteFile(file, seed, 0o600); err != nil {
			t.Fatal(err)
		}
		public, _ = kp.PublicKey()
		return public
	}
	only := func(public string) string { return fmt.Sprintf("authorization {users: [{nkey: %s}]}", public) }
	s := natstest.Start(t, natstest.WithConfig(only(fresh())))
	c := connect(t, Config{URL: s.URL(), NKey: file})
	s.Configure(only(fresh()))
	s.Restart()
	natstest.Eventually(t, "ready with the new key", func() bool { return c.Reconnects() == 1 && c.Ready() == nil })
}

// An error that the library does not know closes the connection for good, silently.
func TestConn_closedByForce(t *testing.T) {
	url := listen(t, func(c net.Conn) {
		io.WriteString(c, strings.Replace(info, `"auth_required":true`, `"auth_required":false`, 1))
		buf := make([]byte, 4096)
		for begun := false; ; {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			if bytes.Contains(buf[:n], []byte("PING")) {
				io.WriteString(c, "PONG\r\n")
				if begun {
					io.WriteString(c, "-ERR 'Something New'\r\n")
				}
				begun = true
			}
		}
	})
	c := connect(t, Config{URL: url})
	c.Ready() // the second ping
	select {
	case <-c.Closed():
	case <-time.After(patience):
		t.Fatal("not closed")
	}
	if err := c.Ready(); err == nil || !strings.Contains(strings.ToLower(err.Error()), "something new") {
		t.Fatalf("not ready: %v", err)
	}
}

func TestConn_errorsAreLoggedAtABoundedRate(t *testing.T) {
	s := natstest.Start(t, natstest.WithConfig("authorization {users: [{user: relay, password: x, permissions: {publish: {deny: no_one}}}]}"))
	var log lines
	c := connect(t, Config{URL: s.URL(), User: handler.SecretText("relay"), Password: handler.SecretText("x"), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for range 1000 {
		if err := c.Publish("no_one", nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	c.Close() // the callbacks have run
	if n := strings.Count(log.String(), "Permissions Violation"); n < 1 || n > 20 {
		t.Fatalf("%d of 1000 errors logged", n)
	}
}

func TestLimiter(t *testing.T) {
	l := newLimiter()
	l.rate.AllowN(time.Now(), 5)
	for range 3 {
		if ok, _ := l.allow(); ok {
			t.Fatal("allowed beyond the burst")
		}
	}
	l.rate.SetBurst(10)
	l.rate.SetLimit(1e9)
	natstest.Eventually(t, "allowed again", func() bool { ok, dropped := l.allow(); return ok && dropped >= 3 })
}

// lines is a buffer that a log may write while a test reads.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
