// Command natsd runs the NATS servers of one test process, for package natstest, which says why. It reads a [natstest.Request] a line from its
// standard input and writes a [natstest.Answer] a line. It ends with its input, so that nothing outlives the tests.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/relaymq/relay/internal/natstest"
)

func main() {
	h := &host{out: json.NewEncoder(os.Stdout), servers: make(map[int]*server.Server)}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var r natstest.Request
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			fmt.Fprintln(os.Stderr, "natsd:", err)
			os.Exit(2)
		}
		go h.answer(r) // the nodes of a cluster start at once
	}
}

type host struct {
	mu      sync.Mutex
	out     *json.Encoder
	servers map[int]*server.Server
}

func (h *host) answer(r natstest.Request) {
	a, err := h.do(r)
	if err != nil {
		a.Err = err.Error()
	}
	a.ID = r.ID
	h.mu.Lock()
	defer h.mu.Unlock()
	_ = h.out.Encode(a) // nobody reads any more: the tests are over
}

func (h *host) do(r natstest.Request) (a natstest.Answer, err error) {
	h.mu.Lock()
	srv := h.servers[r.Server]
	h.mu.Unlock()
	if srv == nil && r.Do != natstest.DoStart && r.Do != natstest.DoStop {
		return a, errors.New("it does not run")
	}
	switch r.Do {
	case natstest.DoStart:
		srv, err = start(r.Config, r.Within)
	case natstest.DoStop:
		stop(srv)
		srv = nil
	case natstest.DoReload:
		var o *server.Options
		if o, err = options(r.Config); err == nil {
			err = srv.ReloadOptions(o)
		}
	case natstest.DoLook:
		if a.Slow = srv.NumSlowConsumers(); srv.JetStreamIsClustered() { // the server panics on these outside of a cluster
			a.Peers, a.Current = len(srv.JetStreamClusterPeers()), srv.JetStreamIsCurrent()
		}
		conns, err := srv.Connz(&server.ConnzOptions{Username: true, Limit: 10_000})
		if err != nil {
			return a, err
		}
		for _, c := range conns.Conns {
			a.Users = append(a.Users, c.AuthorizedUser)
		}
	default:
		err = fmt.Errorf("nobody knows how to %q", r.Do)
	}
	if err == nil {
		h.mu.Lock()
		h.servers[r.Server] = srv
		h.mu.Unlock()
	}
	return a, err
}

func options(file string) (*server.Options, error) {
	o, err := server.ProcessConfigFile(file)
	if err != nil {
		return nil, err
	}
	o.NoSigs = true
	return o, nil
}

func start(file string, within time.Duration) (*server.Server, error) {
	o, err := options(file)
	if err != nil {
		return nil, err
	}
	srv, err := server.NewServer(o)
	if err != nil {
		return nil, err
	}
	log := &logger{file: o.LogFile}
	srv.SetLoggerV2(log, false, false, false)
	srv.Start()
	if log.fatal() != "" {
		err = errors.New(log.fatal())
	} else if !srv.ReadyForConnections(within) {
		err = fmt.Errorf("not ready after %v", within)
	}
	if err != nil {
		stop(srv)
		return nil, err
	}
	return srv, nil
}

func stop(srv *server.Server) {
	if srv != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
	}
}

// logger keeps what a server of its own process would have died of: here Fatalf is only a log line, and Start returns. It writes to log_file, if that is given.
type logger struct {
	file string
	mu   sync.Mutex
	why  string
}

func (l *logger) fatal() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why
}

func (l *logger) Fatalf(format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why == "" {
		l.why = fmt.Sprintf(format, v...)
	}
}

func (l *logger) line(format string, v []any) {
	if l.file == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	f, err := os.OpenFile(l.file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintf(f, format+"\n", v...)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "natsd:", err)
	}
}

func (l *logger) Warnf(format string, v ...any)  { l.line(format, v) }
func (l *logger) Errorf(format string, v ...any) { l.line(format, v) }
func (*logger) Noticef(string, ...any)           {}
func (*logger) Debugf(string, ...any)            {}
func (*logger) Tracef(string, ...any)            {}
