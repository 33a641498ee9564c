package publish

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/relaymq/relay/cmd/relay/internal/publishing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/access"
	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/internal/subject"
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
			if !due.IsZero() {
				w, err := later.store(o, c, m, due, timeout)
				switch {
				case err != nil:
					return err
				case asJSON:
					return cli.PrintJSON(c.OutOrStdout(), w)
				}
				_, err = fmt.Fprintf(c.OutOrStdout(), "%s waits in %s until %s\n", w.ID, w.waits, cli.When(w.Due))
				return err
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt)
			defer stop()
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
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
			case err != nil:
				return err
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
