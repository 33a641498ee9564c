package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
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
	// Listen is host:port on loopback; port 0 is any.
	Listen string
	// AnyPortIfTaken takes a free port when that of Listen is in use. Addr tells which.
	AnyPortIfTaken bool
	// Ready is nil, or says why relay cannot work now: each line of its text is a reason. It is called for each request
	// for /readyz, several at once.
	Ready func() error
	// Collectors are relay's metrics. Those of the Go runtime and the process are added.
	Collectors []prometheus.Collector
	// Logger may be nil.
	Logger *slog.Logger
}

// Server has its address and answers once Serve runs. Its methods are safe for concurrent use.
type Server struct {
	l    net.Listener
	http *http.Server
}

// Listen binds the address. The error may be [ErrPortTaken] or [ErrNotLoopback], or say that two collectors have the
// same metric. Without a call of Serve, Shutdown must be called.
func Listen(cfg Config) (*Server, error) {
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
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
		ready: cfg.Ready,
		metrics: promhttp.HandlerFor(reg, promhttp.HandlerOpts{
			// One collector's fault must not hide the others: what is wrong with it is counted.
			ErrorHandling:       promhttp.ContinueOnError,
			ErrorLog:            errlog,
			Registry:            reg,
			MaxRequestsInFlight: maxScrapes,
			Timeout:             scrapeTimeout,
		}),
	}
	return &Server{l: limit(l, maxConns), http: &http.Server{
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
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return nil, fmt.Errorf("admin.listen: must be host:port (got %q)", c.Listen)
	}
	if host == "localhost" {
		host = "127.0.0.1" // one address of the two it may stand for
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return nil, fmt.Errorf("admin.listen: %q: %w; use 127.0.0.1, and a proxy of your own to let others in", c.Listen, ErrNotLoopback)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if errors.Is(err, syscall.EADDRINUSE) {
		if c.AnyPortIfTaken {
			return net.Listen("tcp", net.JoinHostPort(host, "0"))
		}
		return nil, fmt.Errorf("admin.listen: %s: %w; stop what listens there (another relay?) or choose another port", c.Listen, ErrPortTaken)
	}
	if err != nil {
		return nil, fmt.Errorf("admin.listen: %w", err)
	}
	return l, nil
}

// Addr is where the server really listens, host:port.
func (s *Server) Addr() string { return s.l.Addr().String() }

// Serve answers until ctx ends or Shutdown is called; then it returns nil, after the requests under way but within five
// seconds. Any other end of the listener is its error.
func (s *Server) Serve(ctx context.Context) error {
	over := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownBound)
		defer cancel()
		over <- s.Shutdown(bound)
	})
	err := s.http.Serve(s.l)
	if !stop() {
		<-over
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("admin: %w", err)
}

// Shutdown stops listening, and waits for the requests under way until ctx ends: then it cuts them and returns why.
func (s *Server) Shutdown(ctx context.Context) error {
	err := s.http.Shutdown(ctx) // closes the listener, if Serve was called
	s.l.Close()
	if ctx.Err() != nil {
		return errors.Join(ctx.Err(), s.http.Close())
	}
	return err
}
