package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	maxConns       = 256
	maxHeaderBytes = 16 << 10
	headerTimeout  = 5 * time.Second
	readTimeout    = 10 * time.Second
	writeTimeout   = 30 * time.Second
	idleTimeout    = time.Minute
	scrapeTimeout  = 10 * time.Second
	maxScrapes     = 4 // at once
	shutdownBound  = 5 * time.Second
)

var (
	// ErrPortTaken is that somebody else listens on the address.
	ErrPortTaken = errors.New("the port is taken")
	// ErrNotLoopback is that the address can be reached from other hosts.
	ErrNotLoopback = errors.New("not a loopback address")
)

// Config says where to listen and what to show.
type Config struct {
	// Listen is host:port; port 0 is any. It must be on loopback, unless Anywhere is set.
	Listen string
	// Anywhere is for probes: any address will do, and requests may carry any host name.
	Anywhere bool
	// Key is what errors call Listen; empty: admin.listen.
	Key string
	// AnyPortIfTaken takes a free port when that of Listen is in use. Addr tells which.
	AnyPortIfTaken bool
	// Ready is nil, or says why relay cannot work now: each line of its text is a reason. It is called for each request
	// for /readyz, several at once.
	Ready func() error
	// Console serves everything but health and metrics; nil: there is nothing else. The name of the host was checked.
	Console http.Handler
	// Collectors are relay's metrics. Those of the Go runtime and the process are added.
	Collectors []prometheus.Collector
	// Logger may be nil.
	Logger *slog.Logger
}

// Server has its address and answers once Serve runs. Its methods are safe for concurrent use.
type Server struct {
	cfg  Config
	addr string
	l    net.Listener // that Serve begins with
	http *http.Server

	mu   sync.Mutex
	down error // why it does not listen

	ended chan struct{}
	end   func()
}

// Listen binds the address. The error may be [ErrPortTaken] or [ErrNotLoopback], or say that two collectors have the
// same metric. Without a call of Serve, Shutdown must be called.
func Listen(cfg Config) (*Server, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	log := cfg.Logger
	reg := prometheus.NewRegistry()
	for _, c := range append([]prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	}, cfg.Collectors...) {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	l, err := cfg.listen()
	if err != nil {
		return nil, err
	}
	errlog := slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	h := &handler{
		ready: cfg.Ready, anywhere: cfg.Anywhere, console: cfg.Console,
		metrics: promhttp.HandlerFor(reg, promhttp.HandlerOpts{
			// One collector's fault must not hide the others: what is wrong with it is counted.
			ErrorHandling:       promhttp.ContinueOnError,
			ErrorLog:            errlog,
			Registry:            reg,
			MaxRequestsInFlight: maxScrapes,
			Timeout:             scrapeTimeout,
		}),
	}
	ended := make(chan struct{})
	return &Server{cfg: cfg, ended: ended, end: sync.OnceFunc(func() { close(ended) }), addr: l.Addr().String(), l: limit(l, maxConns), http: &http.Server{
		ConnState:         stateChanged,
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          errlog,
	}}, nil
}

func (c Config) listen() (net.Listener, error) {
	key := cmp.Or(c.Key, "admin.listen")
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return nil, fmt.Errorf("%s: must be host:port (got %q)", key, c.Listen)
	}
	if host == "localhost" {
		host = "127.0.0.1" // one address of the two it may stand for
	}
	if ip := net.ParseIP(host); !c.Anywhere && (ip == nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("%s: %q: %w; use 127.0.0.1, and admin.probes to let others see health and metrics", key, c.Listen, ErrNotLoopback)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if errors.Is(err, syscall.EADDRINUSE) {
		if c.AnyPortIfTaken {
			return net.Listen("tcp", net.JoinHostPort(host, "0"))
		}
		return nil, fmt.Errorf("%s: %s: %w; stop what listens there (another relay?) or choose another port", key, c.Listen, ErrPortTaken)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return l, nil
}

// Addr is where the server really listens, host:port.
func (s *Server) Addr() string { return s.addr }

// How long a listener that died waits before it listens again: twice as long each time.
const (
	againMin = 100 * time.Millisecond
	againMax = 30 * time.Second
)

// Down is why nothing listens just now, and nil while something does.
func (s *Server) Down() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.down
}

// Serve answers until ctx ends or Shutdown is called; then it returns, after the requests under way but within five seconds. A
// listener that dies is made again, on the same address, until it is there: see Down.
func (s *Server) Serve(ctx context.Context) {
	over := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownBound)
		defer cancel()
		over <- s.Shutdown(bound)
	})
	l := s.l
	for wait := againMin; ; wait = min(2*wait, againMax) {
		began := time.Now()
		err := s.http.Serve(l)
		if errors.Is(err, http.ErrServerClosed) {
			break
		}
		if time.Since(began) > againMax {
			wait = againMin
		}
		s.fell(err)
		if l = s.again(ctx, wait); l == nil {
			break
		}
	}
	if !stop() {
		<-over
	}
}

// fell notes that the listener died.
func (s *Server) fell(err error) {
	s.mu.Lock()
	s.down = fmt.Errorf("%s: nothing has listened on %s since %s; relay retries: %w", cmp.Or(s.cfg.Key, "admin.listen"), s.addr,
		time.Now().UTC().Format(time.RFC3339), err)
	s.mu.Unlock()
	s.cfg.Logger.Error("the listener for health and metrics ended; relay opens it again", "addr", s.addr, "error", err)
}

// again listens anew; nil when the server is to end.
func (s *Server) again(ctx context.Context, wait time.Duration) net.Listener {
	for ; ; wait = min(2*wait, againMax) {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-s.ended:
			timer.Stop()
			return nil
		case <-timer.C:
		}
		l, err := net.Listen("tcp", s.addr)
		if err != nil {
			s.cfg.Logger.Debug("cannot open the listener for health and metrics; retrying", "addr", s.addr, "error", err)
			continue
		}
		s.mu.Lock()
		s.down = nil
		s.mu.Unlock()
		s.cfg.Logger.Info("the listener for health and metrics is open again", "addr", s.addr)
		return limit(l, maxConns)
	}
}

// Shutdown stops listening, and waits for the requests under way until ctx ends: then it cuts them and returns why.
func (s *Server) Shutdown(ctx context.Context) error {
	s.end()
	err := s.http.Shutdown(ctx) // closes the listener, if Serve was called
	s.l.Close()
	if ctx.Err() != nil {
		return errors.Join(ctx.Err(), s.http.Close())
	}
	return err
}
