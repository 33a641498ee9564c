package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/access"
	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/cmd/relay/internal/natsconn"
	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/permission"
	"github.com/relaymq/relay/internal/transient"
)

// Client is what the commands that are not the service use.
type Client struct {
	Config *config.Config
	Conn   *natsconn.Conn
	JS     jetstream.JetStream
	user   func() string // whom the server takes a command for; nil for the console, which acts for others
}

// Open connects a command of a role to NATS. A configuration without routes will do.
func (o *Options) Open(ctx context.Context, role string) (*Client, error) {
	cfg, err := o.LoadClient()
	if err != nil {
		return nil, err
	}
	return OpenWith(ctx, cfg, role)
}

// OpenWith connects a command of a role to the NATS of a configuration.
func OpenWith(ctx context.Context, cfg *config.Config, role string) (*Client, error) {
	conn, err := Connect(ctx, cfg, role, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	js, err := NewJetStream(conn.Conn, cfg)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &Client{cfg, conn, js, sync.OnceValue(func() string { return control.NATSUser(ctx, conn.Conn) })}, nil
}

// Close ends the connection.
func (c *Client) Close() { c.Conn.Close() }

// Permitted calls f with a context that ends when the server refuses a subject, and then names that one and the role that has it.
// Requests to instances say so themselves; events, who the server takes the operator for, and subjects that begin with one of those in but, are no
// reason to fail.
func (c *Client) Permitted(ctx context.Context, role string, f func(context.Context) error, but ...string) error {
	ctx, stop := permission.Watch(ctx, c.Conn.Conn, append(but, c.Config.Service+".ctl.", event.Prefix(c.Config.Service)+".", "$SYS.")...)
	defer stop()
	err := permission.Cause(ctx, f(ctx))
	var v *permission.Error
	if errors.As(err, &v) {
		return fmt.Errorf("%w (relay nats permissions --for %s prints all that such a user needs)", err, role)
	}
	return err
}

// WithClient runs f with the operator's connection. Ctrl-C ends its context.
func (o *Options) WithClient(c *cobra.Command, f func(context.Context, *Client) error) error {
	return o.WithClientAs(c, access.Operator, f)
}

// WithClientAs is WithClient for another role.
func (o *Options) WithClientAs(c *cobra.Command, role string, f func(context.Context, *Client) error) error {
	ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A listing lives on a few MiB and makes a kilobyte of garbage for each entry: at the default, half of its time would go
	// to collecting it.
	debug.SetGCPercent(1000)
	debug.SetMemoryLimit(256 << 20)
	cl, err := o.Open(ctx, role)
	if err != nil {
		return err
	}
	defer cl.Close()
	err = cl.away(cl.Permitted(ctx, role, func(ctx context.Context) error { return f(ctx, cl) }))
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return fmt.Errorf("interrupted (%w)", err)
	}
	return err
}

// away has an error that came because the server went away say so: nats.go says of what is sent then that a buffer is full, and of an answer
// that does not come that a deadline is over.
func (c *Client) away(err error) error {
	if !transient.Is(err) {
		return err
	}
	text := strings.ReplaceAll(transient.Text(err.Error()), context.DeadlineExceeded.Error(), "NATS gave no answer in time")
	if why := c.Conn.Ready(); why != nil {
		text += " (" + why.Error() + ")"
	}
	return Said(text, err)
}

// WithDeadLetters runs f with the dead letters of the service. Ctrl-C ends its context.
func (o *Options) WithDeadLetters(c *cobra.Command, f func(context.Context, *Client, *dlq.Store) error) error {
	return o.WithClient(c, func(ctx context.Context, cl *Client) error {
		store, err := dlq.Attach(ctx, cl.JS, cl.Config.Service)
		if err != nil {
			return err
		}
		return f(ctx, cl, store)
	})
}
