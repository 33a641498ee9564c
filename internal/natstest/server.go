package natstest

import (
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// startTimeout is for a loaded machine with the race detector on. A server starts in milliseconds.
const startTimeout = 20 * time.Second

// Option changes how [Start] runs a server.
type Option func(*Server)

// WithListen makes the server listen on a free port of 127.0.0.1, which it keeps over restarts.
func WithListen() Option { return func(s *Server) { s.listen = true } }

// WithOptions changes the options of the server, before every start. It runs after natstest has set its own.
func WithOptions(f func(*server.Options)) Option {
	return func(s *Server) { s.adjust = append(s.adjust, f) }
}

// Server is a NATS server with JetStream. Its methods are safe for concurrent use, Stop and Restart excepted: those are
// for the test's own goroutine.
type Server struct {
	t       testing.TB
	name    string
	store   string
	listen  bool
	cluster func(*server.Options) // nil for a single server
	adjust  []func(*server.Options)
	port    int // of the listener, once known

	mu  sync.Mutex
	srv *server.Server
}

// Start runs a server until the test ends.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()
	s := &Server{t: t, name: "test", store: t.TempDir()}
	for _, o := range opts {
		o(s)
	}
	t.Cleanup(s.Stop)
	if err := s.start(); err != nil {
		t.Fatalf("natstest: %v", err)
	}
	return s
}

func (s *Server) options() *server.Options {
	o := &server.Options{
		ServerName: s.name,
		Host:       "127.0.0.1",
		Port:       server.RANDOM_PORT,
		DontListen: !s.listen,
		NoSigs:     true, // else the server calls os.Exit on SIGINT
		JetStream:  true,
		StoreDir:   s.store,
		// Tests run many servers at once. Without a bound each would claim three quarters of the memory.
		JetStreamMaxMemory: 256 << 20,
		JetStreamMaxStore:  4 << 30,
	}
	if s.port != 0 {
		o.Port = s.port
	}
	if s.cluster != nil {
		s.cluster(o)
	}
	for _, f := range s.adjust {
		f(o)
	}
	return o
}

// start makes a new server from new options (the server package forbids using them twice). A port that was given up by
// Stop may still be held for a moment, by this server or by a stranger, so a port in use is tried again.
func (s *Server) start() error {
	deadline := time.Now().Add(startTimeout)
	for {
		srv, err := server.NewServer(s.options())
		if err != nil {
			return fmt.Errorf("server %s: %w", s.name, err)
		}
		log := &fatalLog{}
		srv.SetLoggerV2(log, false, false, false)
		srv.Start()
		if why := log.first(); why != "" {
			srv.Shutdown()
			srv.WaitForShutdown()
			if s.port == 0 || time.Now().After(deadline) {
				return fmt.Errorf("server %s: %s", s.name, why)
			}
			continue
		}
		if !srv.ReadyForConnections(time.Until(deadline)) {
			srv.Shutdown()
			srv.WaitForShutdown()
			return fmt.Errorf("server %s: not ready after %v", s.name, startTimeout)
		}
		if a, ok := srv.Addr().(*net.TCPAddr); ok {
			s.port = a.Port
		}
		s.mu.Lock()
		s.srv = srv
		s.mu.Unlock()
		return nil
	}
}

// Stop shuts the server down and waits for it. A second Stop does nothing. Connections start to reconnect.
func (s *Server) Stop() {
	srv := s.Native()
	srv.Shutdown() // a nil server is fine
	if srv != nil {
		srv.WaitForShutdown()
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

// Native is the server itself as it runs now; after Restart it is another one. Nil if it never started.
func (s *Server) Native() *server.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.srv
}

// URL is where the server listens. It is empty without WithListen.
func (s *Server) URL() string {
	if s.port == 0 {
		return ""
	}
	return fmt.Sprintf("nats://127.0.0.1:%d", s.port)
}

// StoreDir is where JetStream keeps its files, over restarts too. Account directories lie directly below it.
func (s *Server) StoreDir() string { return filepath.Join(s.store, server.JetStreamStoreDir) }

// InProcessConn dials the server that runs now, so that a connection outlives a restart. It makes Server a
// nats.InProcessConnProvider.
func (s *Server) InProcessConn() (net.Conn, error) {
	srv := s.Native()
	if srv == nil {
		return nil, fmt.Errorf("natstest: server %s does not run", s.name)
	}
	return srv.InProcessConn()
}

// Conn connects through memory. The connection reconnects for ever and at once; it is closed when the test ends.
func (s *Server) Conn(t testing.TB, opts ...nats.Option) *nats.Conn {
	t.Helper()
	closed := make(chan struct{})
	all := append([]nats.Option{
		nats.InProcessServer(s),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(10 * time.Millisecond),
	}, opts...)
	all = append(all, chainClosed(closed))
	nc, err := nats.Connect("", all...)
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

// fatalLog keeps what the server would have died of: in process, Fatalf is only a log line and Start returns.
type fatalLog struct {
	mu  sync.Mutex
	why string
}

func (l *fatalLog) first() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why
}

func (l *fatalLog) Fatalf(format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why == "" {
		l.why = fmt.Sprintf(format, v...)
	}
}

func (*fatalLog) Noticef(string, ...any) {}
func (*fatalLog) Warnf(string, ...any)   {}
func (*fatalLog) Errorf(string, ...any)  {}
func (*fatalLog) Debugf(string, ...any)  {}
func (*fatalLog) Tracef(string, ...any)  {}
