package program

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/cmd/relay/internal/natsconn"
	"github.com/relaymq/relay/cmd/relay/internal/natsd"
	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/permission"
)

// connect opens the connection of the configuration. embedded is the server of this process, if it has one; a command that
// is not the service reaches it where it listens, with the key in its store.
func connect(ctx context.Context, cfg *config.Config, name string, embedded *natsd.Server, log *slog.Logger) (*natsconn.Conn, error) {
	n := cfg.NATS
	nc := natsconn.Config{
		URL: n.URL.String(), Creds: n.Creds, NKey: n.NKey, User: n.User.Reveal(), Password: n.Password.Reveal(), Token: n.Token.Reveal(),
		CA: n.TLS.CA, Cert: n.TLS.Cert, Key: n.TLS.Key, Name: name, InboxPrefix: n.InboxPrefix, Logger: log,
	}
	switch {
	case embedded != nil:
		nc.InProcess, nc.InProcessAuth = embedded.InProcess(), embedded.Option()
	case nc.URL == "":
		var err error
		nc.URL, nc.NKey, err = natsd.Client(n.Embedded.StoreDir, n.Embedded.Listen)
		if errors.Is(err, natsd.ErrNoListener) {
			return nil, fmt.Errorf("%w: set nats.embedded.listen to 127.0.0.1:4222 for relay run and its commands, or name a server with nats.url or --server", err)
		}
		if err != nil {
			return nil, err
		}
	}
	c, err := natsconn.Connect(ctx, nc)
	var op *net.OpError
	if err != nil && len(n.URL) == 0 && embedded == nil && errors.As(err, &op) {
		return nil, fmt.Errorf("%w\n(is relay running? The embedded server lives in it; name another server with --server)", err)
	}
	return c, err
}

// client is what the commands that are not the service use.
type client struct {
	cfg  *config.Config
	conn *natsconn.Conn
	js   jetstream.JetStream
}

// open connects a command to NATS. A configuration without routes will do.
func (o *options) open(ctx context.Context) (*client, error) {
	cfg, err := o.read(true)
	if err != nil {
		return nil, err
	}
	conn, err := connect(ctx, cfg, "relay-cli", nil, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	js, err := newJetStream(conn.Conn, cfg)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &client{cfg, conn, js}, nil
}

func (c *client) close() { c.conn.Close() }

// permitted calls f with a context that ends when the server refuses a subject, and then names that one and the role that has it.
// Requests to instances say so themselves; events, and who the server takes the operator for, are no reason to fail.
func (c *client) permitted(ctx context.Context, role string, f func(context.Context) error) error {
	ctx, stop := permission.Watch(ctx, c.conn.Conn, c.cfg.Service+".ctl.", event.Prefix(c.cfg.Service)+".", "$SYS.")
	defer stop()
	err := permission.Cause(ctx, f(ctx))
	var v *permission.Error
	if errors.As(err, &v) {
		return fmt.Errorf("%w (relay nats permissions --for %s prints all that such a user needs)", err, role)
	}
	return err
}

func newJetStream(nc *nats.Conn, cfg *config.Config) (jetstream.JetStream, error) {
	if cfg.NATS.Domain != "" {
		return jetstream.NewWithDomain(nc, cfg.NATS.Domain)
	}
	return jetstream.New(nc)
}
