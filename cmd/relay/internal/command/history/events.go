package history

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/access"
	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/events"
)

// eventsFlags choose events.
type eventsFlags struct {
	follow, json bool
	route, kind  string
	since        string
	limit        int
}

func newEvents(o *cli.Options) *cobra.Command {
	var f eventsFlags
	c := &cobra.Command{
		Use: "events", Short: "what happened: keys and routes that wait and flow again, dead letters, replays, who did what", Args: cli.Args(cobra.NoArgs),
		Long: `Events prints the stored events, oldest first, the last 50 unless told otherwise; events.store: true in the configuration
stores them. With --follow it prints those that are published from now on, stored or not, until it is interrupted.

Events that are alike are gathered: the first one comes at once, and those of the minute after it as one, with how many there
were. They are best effort: relay status and relay dlq show what waits and what is dead-lettered.`,
		Example: `  relay events --since 2h --route billing
  relay events --follow --kind dead_letter --json`,
		RunE: func(c *cobra.Command, _ []string) error {
			since, err := cli.ParseTime(f.since, time.Now())
			switch {
			case err != nil:
				return fmt.Errorf("%w: --since %w", cli.ErrUsage, err)
			case f.kind != "" && !slices.Contains(event.Kinds(), event.Kind(f.kind)):
				return fmt.Errorf("%w: --kind %q: must be one of %s", cli.ErrUsage, f.kind, kindNames())
			case f.limit < 1:
				return fmt.Errorf("%w: --limit %d: must be above 0", cli.ErrUsage, f.limit)
			case f.follow && (f.since != "" || c.Flags().Changed("limit")):
				return fmt.Errorf("%w: --follow prints only new events: remove --since and --limit", cli.ErrUsage)
			}
			role := access.Operator // reads the stream
			if f.follow {
				role = access.Viewer
			}
			return o.WithClientAs(c, role, func(ctx context.Context, cl *cli.Client) error {
				if f.follow {
					return f.tail(ctx, c.OutOrStdout(), c.ErrOrStderr(), cl)
				}
				return f.stored(ctx, c.OutOrStdout(), cl, since)
			})
		},
	}
	c.Flags().BoolVarP(&f.follow, "follow", "f", false, "print events as they are published, until interrupted")
	c.Flags().BoolVar(&f.json, "json", false, "print JSON lines: CloudEvents, as they are on the wire")
	c.Flags().StringVar(&f.route, "route", "", "only this route's")
	c.Flags().StringVar(&f.kind, "kind", "", "only this kind: "+kindNames())
	c.Flags().StringVar(&f.since, "since", "", "only events since this time (RFC 3339) or age (2h)")
	c.Flags().IntVar(&f.limit, "limit", 50, "at most this many, the newest")
	return c
}

func kindNames() string {
	var names []string
	for _, k := range event.Kinds() {
		names = append(names, string(k))
	}
	return strings.Join(names, ", ")
}

// subjects are those of the events that are asked for. Kinds have one token or two.
func (f eventsFlags) subjects(service string) []string {
	route := cmp.Or(f.route, "*")
	if f.kind != "" {
		return []string{event.Prefix(service) + "." + f.kind + "." + route}
	}
	return []string{event.Prefix(service) + ".*." + route, event.Prefix(service) + ".*.*." + route}
}

// tail prints events until ctx is done.
func (f eventsFlags) tail(ctx context.Context, out, notes io.Writer, cl *cli.Client) error {
	arrived := make(chan *nats.Msg, 1024)
	for _, s := range f.subjects(cl.Config.Service) {
		sub, err := cl.Conn.ChanSubscribe(s, arrived)
		if err != nil {
			return err
		}
		defer func() { _ = sub.Unsubscribe() }()
	}
	if err := cl.Conn.FlushTimeout(eventsTimeout); err != nil {
		return err
	}
	fmt.Fprintln(notes, "waiting for events")
	for {
		select {
		case <-ctx.Done():
			return nil
		case m := <-arrived:
			f.print(out, notes, m.Subject, m.Data)
		}
	}
}

const eventsTimeout = 10 * time.Second

// stored prints the newest that are kept.
func (f eventsFlags) stored(ctx context.Context, out io.Writer, cl *cli.Client, since time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, eventsTimeout)
	defer cancel()
	stream, err := cl.JS.Stream(ctx, events.StreamName(cl.Config.Service))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("no events are stored for service %s: set events.store: true, or use --follow", cl.Config.Service)
	}
	if err != nil {
		return err
	}
	list, err := events.Stored(ctx, stream, f.subjects(cl.Config.Service), since, f.limit)
	if err != nil {
		return err
	}
	for _, m := range list {
		f.print(out, io.Discard, m.Subject, m.Data)
	}
	if len(list) == 0 && !f.json {
		fmt.Fprintln(out, "no events")
	}
	return nil
}

// print writes an event as a line. Anybody who may publish there can send what is none.
func (f eventsFlags) print(out, notes io.Writer, subject string, data []byte) {
	var e event.Event
	if err := e.UnmarshalJSON(data); err != nil {
		fmt.Fprintf(notes, "relay: on %s: %s\n", cli.Printable(subject), cli.Printable(err.Error()))
		return
	}
	if f.json {
		_ = cli.PrintLine(out, e)
		return
	}
	text := e.Text
	if e.Count > 1 {
		text = fmt.Sprintf("%d times since %s, the last: %s", e.Count, cli.When(e.First), text)
	}
	if e.By != "" {
		text += " (by " + e.By + ")"
	}
	fmt.Fprintf(out, "%s  %-15s  %s  %s\n", cli.When(e.Time), cli.Printable(string(e.Kind)), cli.Printable(cmp.Or(e.Route, "-")), cli.Printable(text))
}
