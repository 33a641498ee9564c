package natstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, Leaks()...) }

// checkLeaks fails the test if anything is left after its cleanups. It must be called first.
func checkLeaks(t *testing.T) {
	ignore := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, append(Leaks(), ignore)...) })
}

func TestServer_restartKeepsPortAndStore(t *testing.T) {
	checkLeaks(t)
	s := Start(t)
	url := s.URL()
	back := make(chan struct{}, 1)
	nc := s.Conn(t, nats.ReconnectHandler(func(*nats.Conn) { back <- struct{}{} }))
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "s", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(s.StoreDir(), "$G", "streams", "S")); err != nil {
		t.Error(err)
	}
	s.Restart()
	if s.URL() != url {
		t.Fatalf("moved from %s to %s", url, s.URL())
	}
	select {
	case <-back:
	case <-time.After(startTimeout):
		t.Fatal("the connection did not come back")
	}
	st, err := js.Stream(t.Context(), "S")
	if err != nil {
		t.Fatal(err)
	}
	if n := st.CachedInfo().State.Msgs; n != 1 {
		t.Fatalf("%d messages after the restart, want 1", n)
	}
}

func TestServer_configuration(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	config := func(password string) string {
		return fmt.Sprintf("authorization {user: u, password: %s}, jetstream: disabled, log_file: %q", password, log)
	}
	s := Start(t, WithConfig(config("one")))
	refused := func(password string) {
		t.Helper()
		if nc, err := nats.Connect(s.URL(), nats.UserInfo("u", password)); !errors.Is(err, nats.ErrAuthorization) {
			nc.Close()
			t.Fatalf("with the password %q: %v", password, err)
		}
	}
	refused("two")
	nc := s.Conn(t, nats.UserInfo("u", "one"))
	if users := s.Look().Users; len(users) != 1 || users[0] != "u" {
		t.Errorf("connected: %q", users)
	}
	if js, err := jetstream.New(nc); err != nil {
		t.Fatal(err)
	} else if _, err := js.AccountInfo(t.Context()); !errors.Is(err, jetstream.ErrJetStreamNotEnabled) {
		t.Errorf("JetStream: %v", err)
	}
	if text, err := os.ReadFile(log); err != nil || !strings.Contains(string(text), "authentication error") {
		t.Errorf("log: %v\n%s", err, text)
	}
	s.Configure(config("two"))
	s.Reload()
	refused("one")
	s.Conn(t, nats.UserInfo("u", "two"))
}

func TestServer_whatCannotStart(t *testing.T) {
	s, err := newServer(t, "test", []Option{WithConfig("no_such_key: 1")})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.start(); err == nil || !strings.Contains(err.Error(), "no_such_key") {
		t.Errorf("started: %v", err)
	}
}

func TestCluster(t *testing.T) {
	checkLeaks(t)
	nodes := Cluster(t, 3)
	js := nodes[2].JetStream(t)
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	st, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, Replicas: 3})
	if err != nil {
		t.Fatal(err)
	}
	// Interest in the subject reaches the other nodes a little after the stream has its leader.
	if _, err := js.Publish(ctx, "s", nil, jetstream.WithRetryAttempts(100), jetstream.WithRetryWait(50*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	nodes[0].Restart()
	if err := awaitLeader(nodes); err != nil {
		t.Fatal(err)
	}
	// A question to a leader that is just elected anew may get no answer.
	for began := time.Now(); ; {
		ask, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		info, err := st.Info(ask)
		cancel()
		if err == nil && info.State.Msgs == 1 {
			return
		}
		if time.Since(began) > startTimeout {
			t.Fatalf("after a restart: %+v, %v", info, err)
		}
	}
}

func TestProxy(t *testing.T) {
	checkLeaks(t)
	target := echo(t)
	p := NewProxy(t, "tcp://"+target)
	c := dial(t, p.Addr())
	say := func(s string) {
		t.Helper()
		if _, err := c.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	hear := func(s string) {
		t.Helper()
		c.SetReadDeadline(time.Now().Add(startTimeout))
		got := make([]byte, len(s))
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, []byte(s)) {
			t.Fatalf("read %q, %v; want %q", got, err, s)
		}
	}

	say("one")
	hear("one")

	p.Stall()
	p.Stall() // twice is once
	say("two")
	// That nothing comes can only be seen by waiting: this is a wait for an event that must not happen.
	c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := c.Read(make([]byte, 1)); n != 0 {
		t.Fatalf("read while stalled: %d, %v", n, err)
	}
	p.Resume()
	hear("two")

	p.Stall()
	p.Cut() // a stalled connection can be cut
	c.SetReadDeadline(time.Now().Add(startTimeout))
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Fatal("read after the cut")
	}
	p.Resume()
	c = dial(t, p.Addr())
	say("three")
	hear("three")
	p.Stall() // the end of the test must cope
}

func echo(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

func dial(t *testing.T, addr string) net.Conn {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
