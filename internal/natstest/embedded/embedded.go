// Package embedded runs a NATS server inside the process of a test: for tests of connections that go through memory or look at a handshake, and for those of
// users, who have no natsd. All others run theirs by package natstest.
package embedded

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/relaymq/relay/internal/freeport"
)

// startTimeout is for a loaded machine with the race detector on. A server starts in milliseconds.
const startTimeout = 20 * time.Second

// Server is a NATS server with JetStream.
type Server struct {
	t      testing.TB
	store  string
	port   int
	adjust func(*server.Options)
	srv    atomic.Pointer[server.Server]
}

// Start runs a server until the test ends. It does not listen: connections go through memory. The function may change its options before each start, with
// DontListen among them; it may be nil.
func Start(t testing.TB, adjust func(*server.Options)) *Server {
	t.Helper()
	port, err := freeport.Get()
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, store: t.TempDir(), port: port, adjust: adjust}
	t.Cleanup(s.stop)
	s.start()
	return s
}

// start makes a new server from new options: the server package forbids using them twice.
func (s *Server) start() {
	s.t.Helper()
	o := &server.Options{
		ServerName: "test", Host: "127.0.0.1", Port: s.port, DontListen: true, NoSigs: true, NoLog: true, JetStream: true, StoreDir: s.store,
		JetStreamMaxMemory: 256 << 20, JetStreamMaxStore: 4 << 30,
	}
	if s.adjust != nil {
		s.adjust(o)
	}
	srv, err := server.NewServer(o)
	if err == nil {
		s.srv.Store(srv)
		if srv.Start(); !srv.ReadyForConnections(startTimeout) {
			err = errors.New("not ready")
		}
	}
	if err != nil {
		s.t.Fatalf("embedded server: %v", err)
	}
}

func (s *Server) stop() {
	if srv := s.srv.Load(); srv != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
	}
}

// Restart stops the server and starts it again: same store, same port.
func (s *Server) Restart() {
	s.t.Helper()
	s.stop()
	s.start()
}

// URL is where the server listens, if it does.
func (s *Server) URL() string { return fmt.Sprintf("nats://127.0.0.1:%d", s.port) }

// InProcessConn dials the server that runs now. It makes Server a nats.InProcessConnProvider.
func (s *Server) InProcessConn() (net.Conn, error) { return s.srv.Load().InProcessConn() }
