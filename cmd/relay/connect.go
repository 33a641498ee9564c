package main

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
)

// connect opens the connection of the configuration. With the embedded server, inProcess is its own provider; a command
// that is not the service reaches it on the address it listens on.
func connect(ctx context.Context, cfg *config.Config, name string, inProcess nats.InProcessConnProvider, log *slog.Logger) (*natsconn.Conn, error) {
	n := cfg.NATS
	url := n.URL.String()
	if url == "" && inProcess == nil {
		url = "nats://" + n.Embedded.Listen
	}
	c, err := natsconn.Connect(ctx, natsconn.Config{
		URL: url, Creds: n.Creds, NKey: n.NKey, User: n.User.Reveal(), Password: n.Password.Reveal(), Token: n.Token.Reveal(),
		CA: n.TLS.CA, Cert: n.TLS.Cert, Key: n.TLS.Key, Name: name, InProcess: inProcess, Logger: log,
	})
	var op *net.OpError
	if err != nil && len(n.URL) == 0 && inProcess == nil && errors.As(err, &op) {
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

func newJetStream(nc *nats.Conn, cfg *config.Config) (jetstream.JetStream, error) {
	if cfg.NATS.Domain != "" {
		return jetstream.NewWithDomain(nc, cfg.NATS.Domain)
	}
	return jetstream.New(nc)
}
