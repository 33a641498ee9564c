package natsconn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/singleflight"

	"github.com/relaymq/relay/consumer/handler"
)

const (
	startTimeout  = 10 * time.Second
	dialTimeout   = 2 * time.Second // one server, at each step: dial, INFO, TLS, CONNECT
	reconnectWait = 250 * time.Millisecond
	reconnectMore = 750 * time.Millisecond // jitter, on top
	pingInterval  = 10 * time.Second
	pingsMissed   = 2
	flushTimeout  = 5 * time.Second // a write to a stalled link holds the connection's lock this long, not the usual minute
	readyTimeout  = 3 * time.Second
)

// Config says where NATS is and who relay is there. At most one of Creds, NKey, User and Token is set.
type Config struct {
	// URL is one address or several with commas: nats://host:4222, tls://host:4222. It is not needed with InProcess.
	URL string
	// Creds and NKey are files: a user's JWT with its seed, or a seed alone.
	Creds, NKey string
	// User and Password, or Token. Those that stand in files are read at each connect.
	User, Password, Token handler.Secret
	// CA, Cert and Key are PEM files. Each of them asks for TLS. Cert and Key go together.
	CA, Cert, Key string
	// InboxPrefix begins the subjects of answers. Empty means the library's.
	InboxPrefix string
	// Name is what the server's lists of connections show.
	Name string
	// InProcess connects through memory to a server in this process.
	InProcess nats.InProcessConnProvider
	// InProcessAuth is how this process authenticates there; nil without.
	InProcessAuth nats.Option
	// Logger may be nil.
	Logger *slog.Logger
}

// Conn is a connection that reconnects by itself. It is a nats.Conn in all but what this package adds.
type Conn struct {
	*nats.Conn
	cfg        Config
	files      []file
	where      string // for errors: the URL without secrets
	closed     chan struct{}
	reconnects atomic.Uint64
	probe      singleflight.Group
	lastErr    atomic.Pointer[error] // why it is not connected
}

// Connect returns when NATS has accepted the connection, or with the reason why not: after ten seconds at most, or when
// ctx ends. Once connected, ctx has no effect.
func Connect(ctx context.Context, cfg Config) (*Conn, error) {
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c := &Conn{cfg: cfg, where: redact(cfg.URL), closed: make(chan struct{})}
	if cfg.InProcess != nil {
		c.where = "the embedded server"
	}
	d := new(dialer)
	opts, files, err := cfg.options(d, log)
	if err != nil {
		return nil, err
	}
	c.files = files
	opts = append(opts, c.handlers(log)...)
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, noAnswer{})
	defer cancel()
	d.starting(ctx)
	nc, err := nats.Connect(cfg.URL, opts...)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to NATS at %s: %w", c.where, cfg.hint(c.cause(ctx, d, err)))
	}
	c.Conn = nc
	d.started(nc)
	if err := c.mayListen(nc.NewInbox()); err != nil {
		c.Close()
		return nil, err
	}
	log.Info("connected to NATS", "url", c.where, "server", nc.ConnectedServerName(), "version", nc.ConnectedServerVersion())
	return c, nil
}

// noAnswer is a net.Error: the server may answer later.
type noAnswer struct{}

func (noAnswer) Error() string   { return fmt.Sprintf("no answer within %v", startTimeout) }
func (noAnswer) Timeout() bool   { return true }
func (noAnswer) Temporary() bool { return true }

// hint says what to look at when the server refuses the user.
func (c Config) hint(err error) error {
	if !errors.Is(err, nats.ErrAuthorization) {
		return err
	}
	for key, set := range map[string]bool{
		"nats.creds": c.Creds != "", "nats.nkey": c.NKey != "", "nats.user and nats.password": c.User.Reveal() != "", "nats.token": c.Token.Reveal() != "",
	} {
		if set {
			return fmt.Errorf("%w: the server does not accept %s; check the value, and that the server at this address knows it", err, key)
		}
	}
	return fmt.Errorf("%w: the server requires authentication, and the configuration has none; set nats.creds, nats.nkey, nats.user and nats.password, or nats.token", err)
}

// cause puts right what the library makes of errors at the start: it swallows "connection refused", and reports a read
// from a connection that ctx closed.
func (c *Conn) cause(ctx context.Context, d *dialer, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, nats.ErrNoServers) && errors.Is(d.lastErr(), syscall.ECONNREFUSED):
		return fmt.Errorf("nothing listens there: %w", d.lastErr())
	case errors.Is(err, nats.ErrNoServers) && d.lastErr() != nil:
		return d.lastErr()
	case errors.Is(err, nats.ErrSecureConnWanted):
		return fmt.Errorf("TLS is required, but the server does not offer it: %w", err)
	}
	return err
}

func (c *Conn) handlers(log *slog.Logger) []nats.Option {
	quiet := newLimiter()
	return []nats.Option{
		nats.DisconnectErrHandler(func(nc *nats.Conn, err error) {
			if err == nil || nc.IsClosed() {
				return // asked for
			}
			c.lastErr.Store(&err)
			log.Warn("disconnected from NATS", "url", c.where, "error", err)
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) {
			c.lastErr.Store(&err)
			if ok, dropped := quiet.allow(); ok {
				log.Warn("NATS refuses to reconnect", "url", c.where, "error", err, "not_logged", dropped)
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			c.reconnects.Add(1)
			c.lastErr.Store(nil)
			log.Info("connected to NATS again", "url", c.where, "server", nc.ConnectedServerName())
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked) {
				c.lastErr.Store(&err)
			}
			ok, dropped := quiet.allow()
			if !ok {
				return
			}
			attrs := []any{"error", err, "not_logged", dropped}
			if sub != nil {
				attrs = append(attrs, "subject", sub.Subject)
			}
			log.Error("NATS reports an error", attrs...)
		}),
		nats.ClosedHandler(func(nc *nats.Conn) {
			if err := nc.LastError(); err != nil {
				c.lastErr.Store(&err)
			}
			close(c.closed)
		}),
	}
}

// Closed is closed when the connection has ended for good, by Close or because the library gave up. Then nothing works
// any more and the process should end; Ready says why.
func (c *Conn) Closed() <-chan struct{} { return c.closed }

// Reconnects counts how often the connection came back, for a metric.
func (c *Conn) Reconnects() uint64 { return c.reconnects.Load() }

// Ready is nil when the server has just answered a ping; otherwise why not. It waits for the answer, three seconds at
// most: the connection's own pings take up to half a minute to notice a link that went silent.
func (c *Conn) Ready() error {
	// A write to a stalled link holds the library's lock, so the probe may hang longer than its caller waits. It is one
	// probe however often one asks.
	probe := c.probe.DoChan("", func() (any, error) { return nil, c.ping() })
	late := time.NewTimer(readyTimeout)
	defer late.Stop()
	select {
	case r := <-probe:
		return r.Err
	case <-late.C:
		return fmt.Errorf("NATS at %s: no answer within %v", c.where, readyTimeout)
	}
}

func (c *Conn) ping() error {
	status := c.Status()
	if status == nats.CONNECTED {
		if err := c.FlushTimeout(readyTimeout); err != nil {
			return fmt.Errorf("NATS at %s: %w", c.where, err)
		}
		return nil
	}
	if p := c.lastErr.Load(); p != nil {
		return fmt.Errorf("NATS at %s: %v: %w", c.where, status, *p)
	}
	return fmt.Errorf("NATS at %s: %v", c.where, status)
}

// Close ends the connection and waits until its callbacks have run. It must not be called from one of them.
func (c *Conn) Close() {
	c.Conn.Close()
	<-c.closed
}
