package natstest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/freeport"
)

// startTimeout is for a loaded machine with the race detector on. A server starts in milliseconds.
const startTimeout = 20 * time.Second

// Option changes how [Start] runs a server.
type Option func(*Server)

// WithConfig adds to the configuration of the server, in its own format. It wins over what natstest has set, key by key at the top; of several, the last counts.
func WithConfig(text string) Option { return func(s *Server) { s.Configure(text) } }

// Server is a NATS server with JetStream. Its methods are safe for concurrent use, Configure, Reload, Stop and Restart excepted: those are
// for the test's own goroutine.
type Server struct {
	t       testing.TB
	host    *host
	number  int // by which the host knows it
	name    string
	dir     string
	cluster string // of its configuration; empty for a single server
	more    string // of its configuration, by the test
	port    int
}

// Start runs a server until the test ends.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()
	s, err := newServer(t, "test", opts)
	if err == nil {
		err = s.start()
	}
	if err != nil {
		t.Fatalf("natstest: %v", err)
	}
	return s
}

func newServer(t testing.TB, name string, opts []Option) (*Server, error) {
	h, err := hosted()
	if err != nil {
		return nil, err
	}
	s := &Server{t: t, host: h, number: h.number(), name: name, dir: t.TempDir()}
	for _, o := range opts {
		o(s)
	}
	t.Cleanup(s.Stop)
	if s.port, err = freeport.Get(); err != nil {
		return nil, err
	}
	return s, nil
}

// configured writes the configuration.
func (s *Server) configured() (file string, err error) {
	file = filepath.Join(s.dir, "server.conf")
	// Tests run many servers at once. Without a bound each would claim three quarters of the memory.
	text := fmt.Sprintf("server_name: %s\nlisten: \"127.0.0.1:%d\"\nstore_dir: %q\njetstream {max_memory_store: 256MB, max_file_store: 4GB}\n%s\n%s\n",
		s.name, s.port, s.dir, s.cluster, s.more)
	return file, os.WriteFile(file, []byte(text), 0o600)
}

// start runs the server. The port may still be held for a moment, by this server before it was stopped or by a stranger, so it is tried again.
func (s *Server) start() error {
	file, err := s.configured()
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(10 * time.Millisecond) {
		_, err := s.host.ask(Request{Server: s.number, Do: DoStart, Config: file, Within: startTimeout})
		if err == nil {
			return nil
		}
		if !strings.Contains(err.Error(), syscall.EADDRINUSE.Error()) || time.Now().After(deadline) {
			return fmt.Errorf("server %s: %w", s.name, err)
		}
	}
}

// Stop shuts the server down and waits for it. A second Stop does nothing. Connections start to reconnect.
func (s *Server) Stop() {
	if _, err := s.host.ask(Request{Server: s.number, Do: DoStop}); err != nil {
		s.t.Errorf("natstest: stop: %v", err)
	}
}

// Restart stops the server and starts it again: same store, same port, same name.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	if err := s.start(); err != nil {
		s.t.Fatalf("natstest: restart: %v", err)
	}
}

// Configure replaces what [WithConfig] said, from the next Restart or Reload on.
func (s *Server) Configure(text string) { s.more = text }

// Reload has the running server read its configuration again.
func (s *Server) Reload() {
	s.t.Helper()
	file, err := s.configured()
	if err == nil {
		_, err = s.host.ask(Request{Server: s.number, Do: DoReload, Config: file})
	}
	if err != nil {
		s.t.Fatalf("natstest: reload: %v", err)
	}
}

// Look is what the server says of itself.
func (s *Server) Look() Answer {
	s.t.Helper()
	a, err := s.host.ask(Request{Server: s.number, Do: DoLook})
	if err != nil {
		s.t.Fatalf("natstest: look: %v", err)
	}
	return a
}

// Name is what the server is called in its cluster.
func (s *Server) Name() string { return s.name }

// Addr is host:port of the listener. It stays over restarts.
func (s *Server) Addr() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// URL is Addr as a NATS URL.
func (s *Server) URL() string { return "nats://" + s.Addr() }

// StoreDir is where JetStream keeps its files, over restarts too. Account directories lie directly below it.
func (s *Server) StoreDir() string { return filepath.Join(s.dir, "jetstream") }

// Conn is a connection that reconnects for ever and at once, until the test ends.
func (s *Server) Conn(t testing.TB, opts ...nats.Option) *nats.Conn {
	t.Helper()
	closed := make(chan struct{})
	all := append([]nats.Option{
		nats.MaxReconnects(-1),
		nats.ReconnectWait(10 * time.Millisecond),
	}, opts...)
	all = append(all, chainClosed(closed))
	nc, err := nats.Connect(s.URL(), all...)
	if err != nil {
		t.Fatalf("natstest: connect to %s: %v", s.name, err)
	}
	t.Cleanup(func() {
		nc.Close()
		<-closed // the callbacks' goroutine ends after this one: nothing is left for the next test's goleak
	})
	return nc
}

// JetStream is a JetStream context on a connection of its own.
func (s *Server) JetStream(t testing.TB) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(s.Conn(t))
	if err != nil {
		t.Fatalf("natstest: jetstream: %v", err)
	}
	return js
}

// chainClosed keeps a handler the test may have set and signals after it.
func chainClosed(done chan<- struct{}) nats.Option {
	return func(o *nats.Options) error {
		user := o.ClosedCB
		o.ClosedCB = func(nc *nats.Conn) {
			defer close(done)
			if user != nil {
				user(nc)
			}
		}
		return nil
	}
}
