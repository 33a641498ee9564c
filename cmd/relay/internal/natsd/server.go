package natsd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

const (
	readyTimeout  = 10 * time.Second // after JetStream has read its store, which takes what it takes
	watchInterval = time.Second
)

// Config says where the server listens and keeps its files.
type Config struct {
	// Listen is host:port on loopback; port 0 is any. Whoever connects needs the key in the store; [Client] finds it.
	// Empty means that only this process can connect.
	Listen string
	// AnyPortIfTaken takes a free port when that of Listen is in use. ClientURL tells which.
	AnyPortIfTaken bool
	// StoreDir holds the lock and the directory of JetStream. It is made when missing, and given mode 0700.
	StoreDir string
	// Sync is how often files are fsynced, "1s" for instance, or "always" for every message. Empty means 1s.
	Sync string
	// Monitor is host:port on loopback of the server's monitoring pages. Empty means none.
	Monitor string
	// Logger may be nil.
	Logger *slog.Logger
}

// Server is a NATS server that runs in this process. Its methods are safe for concurrent use.
type Server struct {
	srv    *server.Server
	store  *store
	key    *key // nil without a listener
	closed sync.Once
	stop   chan struct{} // closed by Shutdown: ends the watch
	done   chan struct{}

	mu  sync.Mutex
	err error
}

// Start checks the store, starts the server and returns when it takes connections. It blocks while JetStream reads its
// store, which ctx does not interrupt: ctx is looked at before and after.
// The error may be [ErrPortTaken], [ErrNotLoopback], [ErrInUse], or name the file that cannot be read.
func Start(ctx context.Context, cfg Config) (_ *Server, err error) {
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	o, err := cfg.options()
	if err != nil {
		return nil, err
	}
	st, err := openStore(cfg.StoreDir)
	if err != nil {
		return nil, fmt.Errorf("nats.embedded.store_dir: %w", err)
	}
	defer func() {
		if err != nil {
			st.close()
		}
	}()
	want, err := st.survey()
	if err != nil {
		return nil, fmt.Errorf("nats.embedded.store_dir: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	o.StoreDir = st.dir
	var k *key
	if cfg.Listen != "" {
		if k, err = st.clientKey(); err == nil {
			err = k.secure(o)
		}
		if err != nil {
			return nil, fmt.Errorf("nats.embedded.store_dir: %w", err)
		}
	}
	srv, err := server.NewServer(o)
	if err != nil {
		return nil, fmt.Errorf("embedded NATS server: %w", err)
	}
	l := &bridge{log: log, starting: true}
	srv.SetLoggerV2(l, false, false, false)
	srv.Start()
	defer func() {
		if err != nil {
			srv.Shutdown()
			srv.WaitForShutdown()
		}
	}()
	if why := l.fatal(); why != "" {
		// Somebody may have been quicker than the look at the port.
		if err := cfg.portsFree(); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("embedded NATS server: %s", why)
	}
	if !srv.ReadyForConnections(readyTimeout) {
		return nil, fmt.Errorf("embedded NATS server: not ready after %v", readyTimeout)
	}
	if err := want.verify(ctx, srv, k, l.started()); err != nil {
		return nil, fmt.Errorf("nats.embedded.store_dir: %w", err)
	}
	if err := st.remember(); err != nil {
		return nil, fmt.Errorf("nats.embedded.store_dir: %w", err)
	}
	s := &Server{srv: srv, store: st, key: k, stop: make(chan struct{}), done: make(chan struct{})}
	if cfg.Listen != "" {
		if err := st.tellURL(s.ClientURL()); err != nil {
			return nil, fmt.Errorf("nats.embedded.store_dir: %w", err)
		}
	}
	go s.watch()
	return s, nil
}

// options checks the configuration and the ports.
func (c Config) options() (*server.Options, error) {
	o := &server.Options{
		ServerName:             "relay",
		NoSigs:                 true, // else the server calls os.Exit on SIGINT
		DontListen:             c.Listen == "",
		JetStream:              true,
		DisableJetStreamBanner: true,
	}
	switch c.Sync {
	case "":
		o.SyncInterval = time.Second
	case "always":
		o.SyncAlways = true
	default:
		d, err := time.ParseDuration(c.Sync)
		if err != nil || d <= 0 {
			return nil, fmt.Errorf("nats.embedded.sync: must be a duration above 0 or always (got %q)", c.Sync)
		}
		o.SyncInterval = d
	}
	if c.Listen != "" {
		host, port, err := freeAddress("nats.embedded.listen", c.Listen)
		if errors.Is(err, ErrPortTaken) && c.AnyPortIfTaken {
			port, err = server.RANDOM_PORT, nil
		}
		if err != nil {
			return nil, err
		}
		o.Host, o.Port = host, port
	}
	if c.Monitor != "" {
		host, port, err := freeAddress("nats.embedded.monitor", c.Monitor)
		if err != nil {
			return nil, err
		}
		o.HTTPHost, o.HTTPPort = host, port
	}
	return o, nil
}

// portsFree looks at both ports again.
func (c Config) portsFree() error {
	_, err := c.options()
	return err
}

// Option is what a connection of this process needs beside [Server.InProcess]: the key, when there is one.
func (s *Server) Option() nats.Option { return s.key.option() }

// InProcess connects through memory: nats.InProcessServer takes it.
func (s *Server) InProcess() nats.InProcessConnProvider { return s.srv }

// ClientURL is where the server really listens. It is empty without a listener.
func (s *Server) ClientURL() string {
	if a, ok := s.srv.Addr().(*net.TCPAddr); ok {
		return "nats://" + a.String()
	}
	return ""
}

// MonitorAddr is where the monitoring pages are, host:port. It is empty without them.
func (s *Server) MonitorAddr() string {
	if a := s.srv.MonitorAddr(); a != nil {
		return a.String()
	}
	return ""
}

// Shutdown stops the server, waits until its files are written, and lets the store go. Calls after the first do nothing
// but wait. Close connections first, or they start to reconnect.
func (s *Server) Shutdown() {
	s.closed.Do(func() { close(s.stop) })
	<-s.done
}

// Done is closed when the server has ended, by Shutdown or by itself. Err tells which.
func (s *Server) Done() <-chan struct{} { return s.done }

// Err is nil while the server runs and after Shutdown; otherwise why the server ended.
func (s *Server) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// watch owns the end of the server: it alone shuts it down, for whatever reason, and closes done.
func (s *Server) watch() {
	defer close(s.done)
	defer s.store.close()
	defer s.store.forgetURL()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		s.srv.WaitForShutdown()
	}()
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for err := error(nil); err == nil; {
		select {
		case <-s.stop:
			s.srv.Shutdown()
			<-gone
			return
		case <-gone:
			err = errors.New("embedded NATS server: it stopped by itself")
		case <-tick.C:
			err = s.store.present()
		}
		if err != nil {
			s.mu.Lock()
			s.err = err
			s.mu.Unlock()
		}
	}
	s.srv.Shutdown()
	<-gone
}

// Healthz is nil when the server can store messages in all its streams. It asks the disk and every stream, which is
// cheap enough for a readiness probe and too much for a message.
func (s *Server) Healthz() error {
	select {
	case <-s.done:
		return errors.Join(errors.New("embedded NATS server: it has ended"), s.Err())
	default:
	}
	if err := s.store.present(); err != nil {
		return err
	}
	if h := s.srv.Healthz(nil); h.Error != "" {
		return fmt.Errorf("embedded NATS server: %s (%s)", h.Error, s.store.space())
	}
	js, err := s.srv.Jsz(nil)
	if err == nil {
		err = storeLimit(js)
	}
	if err != nil {
		return fmt.Errorf("embedded NATS server: %w (%s)", err, s.store.space())
	}
	return nil
}

// storeLimit looks at what the server takes for its share of the disk. It calls itself healthy while it refuses every
// publish for it (10023).
func storeLimit(js *server.JSInfo) error {
	if most := js.Config.MaxStore; most > 0 && js.Store >= uint64(most) {
		return fmt.Errorf("its store holds %d of at most %d bytes", js.Store, most)
	}
	return nil
}

func jetstreamDir(dir string) string { return filepath.Join(dir, server.JetStreamStoreDir) }
