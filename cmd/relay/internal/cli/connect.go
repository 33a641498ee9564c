package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/cmd/relay/internal/access"
	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/cmd/relay/internal/natsconn"
	"github.com/relaymq/relay/cmd/relay/internal/natsd"
	"github.com/relaymq/relay/internal/permission"
)

// Connect opens the connection of the configuration, for what a role does. embedded is the server of this process, if it has one; a command that
// is not the service reaches it where it listens, with the key in its store.
func Connect(ctx context.Context, cfg *config.Config, role string, embedded *natsd.Server, log *slog.Logger) (*natsconn.Conn, error) {
	n, name := cfg.NATS, "relay-cli"
	if role == access.Service {
		name = cfg.Service
	}
	nc := natsconn.Config{
		URL: n.URL.String(), Creds: n.Creds, NKey: n.NKey, User: n.User, Password: n.Password, Token: n.Token,
		CA: n.TLS.CA, Cert: n.TLS.Cert, Key: n.TLS.Key, Name: name, Logger: log,
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
	nc.InboxPrefix = inbox(cfg, nc, role)
	c, err := natsconn.Connect(ctx, nc)
	if err == nil && role == access.Service && c.AuthRequired() && cfg.NATS.InboxPrefix == "_INBOX" {
		c.Close()
		return nil, fmt.Errorf("nats.inbox_prefix: must not be _INBOX, where all clients get their answers: whoever may subscribe there could read the messages that relay pulls. Leave the key out to use _INBOX_%s", cfg.Service)
	}
	if v := (*permission.Error)(nil); errors.As(err, &v) {
		return nil, fmt.Errorf("%w (relay nats permissions --for %s prints all that such a user needs)", err, role)
	}
	var op *net.OpError
	if err != nil && len(n.URL) == 0 && embedded == nil && errors.As(err, &op) {
		return nil, fmt.Errorf("%w\n(is relay running? The embedded server lives in it; name another server with --server)", err)
	}
	return c, err
}

// inbox begins the subjects on which a program has its answers.
func inbox(cfg *config.Config, nc natsconn.Config, role string) string {
	switch {
	case role == access.Service:
		return cfg.ServiceInbox()
	case role == access.Publisher && cfg.NATS.InboxPrefix == "":
		return "_INBOX"
	}
	return cfg.UserInbox(role, nc.UserName())
}

// NewJetStream is the JetStream of the configured domain.
func NewJetStream(nc *nats.Conn, cfg *config.Config) (jetstream.JetStream, error) {
	if cfg.NATS.Domain != "" {
		return jetstream.NewWithDomain(nc, cfg.NATS.Domain)
	}
	return jetstream.New(nc)
}
