package publish

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/relaymq/relay/cmd/relay/internal/publishing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/access"
	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/internal/subject"
	"github.com/relaymq/relay/internal/transient"
)

func newPub(o *cli.Options) *cobra.Command {
	var headers []string
	var timeout time.Duration
	var asJSON bool
	var later delay
	c := &cobra.Command{
		Use: "pub SUBJECT [BODY|-]", Short: "publish a message, confirmed by its stream", Args: cli.Args(cobra.RangeArgs(1, 2)),
		Long: `Pub publishes one message and waits until a stream has stored it. Without BODY, or with -, the body is read from
standard input. A stream that is full is tried again, with backoff, until --timeout.

With --in or --at the message waits in a stream of relay's own, and a running relay publishes it when it is due. --id names it: a
second message of the same id and subject replaces the first while the first waits. The Nats-Msg-Id of what is published begins with the id.
relay schedule ls lists the waiting messages, and relay schedule rm removes one.`,
		Example: `  relay pub orders.eu.created '{"id":1}'
  relay pub orders.eu.remind '{"id":1}' --in 10m --id remind-1
  relay pub orders.eu.created - -H 'Content-Type: application/json' < order.json`,
		RunE: func(c *cobra.Command, a []string) error {
			// JetStream would store orders.* as a subject of that name, which nobody means.
			if err := subject.ValidateLiteral(a[0]); err != nil {
				return fmt.Errorf("%w: subject: %w", cli.ErrUsage, err)
			}
			if timeout <= 0 {
				return fmt.Errorf("%w: --timeout must be above 0 (got %v)", cli.ErrUsage, timeout)
			}
			m, err := messageOf(c.InOrStdin(), a, headers)
			if err != nil {
				return err
			}
			due, err := later.due(time.Now())
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			if !due.IsZero() {
				w, err := later.store(ctx, o, m, due, timeout)
				switch {
				case err != nil:
					return err
				case asJSON:
					return cli.PrintJSON(c.OutOrStdout(), w)
				}
				_, err = fmt.Fprintf(c.OutOrStdout(), "%s waits in %s until %s\n", w.ID, w.waits, cli.When(w.Due))
				return err
			}
			cl, err := o.Open(ctx, access.Publisher)
			if err != nil {
				return err
			}
			defer cl.Close()
			var ack *jetstream.PubAck
			err = cl.Permitted(ctx, access.Publisher, func(ctx context.Context) (err error) {
				ack, err = publishing.Publish(ctx, cl.JS, m)
				return err
			})
			switch {
			case errors.Is(err, nats.ErrNoResponders), errors.Is(err, publishing.ErrNoStream):
				return fmt.Errorf("no stream holds subject %s: nothing was stored", cli.Printable(m.Subject))
			case publishing.Unknown(err):
				again := "it has no Nats-Msg-Id, so a second copy may be stored when you publish it again: look into the stream first (with -H 'Nats-Msg-Id: ID' it could be published again safely)"
				if id := m.Header.Get(jetstream.MsgIDHeader); id != "" {
					again = fmt.Sprintf("publish it again with the same Nats-Msg-Id (%s): within its duplicate window the stream stores no second copy", cli.Printable(id))
				}
				return unknown(ctx, err, timeout, again)
			case err != nil:
				return transient.Plain(err)
			case asJSON:
				return cli.PrintJSON(c.OutOrStdout(), ack)
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "stored in %s as %d\n", ack.Stream, ack.Sequence)
			return err
		},
	}
	f := c.Flags()
	f.StringArrayVarP(&headers, "header", "H", nil, "header as 'Name: value'; may be given more than once")
	f.DurationVar(&timeout, "timeout", 30*time.Second, "give up after this long")
	later.flags(c)
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// unknown says of a publish whose answer did not come why, and how to publish again.
func unknown(ctx context.Context, err error, timeout time.Duration, again string) error {
	why := "NATS gave no answer"
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		why = "interrupted"
	case ctx.Err() != nil:
		why = fmt.Sprintf("NATS gave no answer within %v", timeout)
	case errors.Is(err, nats.ErrDisconnected):
		why = "the connection to NATS was lost before the answer came"
	}
	return cli.Said(why+": it is not known whether the message is stored; "+again, err)
}
