package program

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/dlq"
)

func newOrphans(o *options) *cobra.Command {
	c := &cobra.Command{
		Use: "orphans", Short: "what waits for a route that was renamed or taken away", Args: args(knownCommand),
		Long: `When a route, its durable or its stream gets another name, what waits under the old one is consumed by nobody: retries that
were parked, a durable with what it has not delivered, dead letters. Orphans finds and moves it. What an instance with the old
configuration still pulls is none.`,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newOrphansLs(o), newOrphansMove(o), newOrphansReturn(o))
	return c
}

func newOrphansLs(o *options) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "ls", Short: "list what waits for routes that the configuration does not have", Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			var list []consumer.Orphan
			err := o.withClient(c, func(ctx context.Context, cl *client) (err error) {
				var names []string
				for _, rt := range cl.cfg.Routes {
					names = append(names, rt.Name)
				}
				if list, err = consumer.Orphans(ctx, cl.js, cl.cfg.Service, names); err != nil {
					return err
				}
				running, err := consumer.AskStatus(ctx, cl.conn.Conn, cl.cfg.Service)
				if err != nil && !errors.Is(err, consumer.ErrNobody) {
					return err
				}
				// What an instance uses is none, also while it does not pull: of a route that is paused, or stands by.
				list = slices.DeleteFunc(list, func(of consumer.Orphan) bool {
					return slices.ContainsFunc(running, func(s consumer.Status) bool {
						return slices.ContainsFunc(s.Routes, func(rt consumer.RouteStatus) bool {
							return rt.Stream == of.Stream && (of.Kind == consumer.OrphanDurable && rt.Durable == of.Durable || of.Kind == consumer.OrphanRetries && rt.Name == of.Route)
						})
					})
				})
				return nil
			})
			if err != nil {
				return err
			}
			if asJSON {
				if list == nil {
					list = []consumer.Orphan{}
				}
				return printJSON(c.OutOrStdout(), list)
			}
			if len(list) == 0 {
				fmt.Fprintln(c.OutOrStdout(), "nothing waits for a route that is not there")
				return nil
			}
			rows := [][]string{{"KIND", "ROUTE", "STREAM", "DURABLE", "MESSAGES", "OUTSTANDING", "NEXT"}}
			for _, of := range list {
				rows = append(rows, []string{
					of.Kind, of.Route, of.Stream, of.Durable, strconv.FormatUint(of.Messages, 10), strconv.Itoa(of.Outstanding), of.Next,
				})
			}
			table(c.OutOrStdout(), rows)
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func newOrphansMove(o *options) *cobra.Command {
	var from, to, stream string
	var yes, dry, asJSON bool
	c := &cobra.Command{
		Use: "move --from ROUTE --to ROUTE", Short: "give the retries of a route that is not there to another one of the same stream", Args: args(cobra.NoArgs),
		Long: `Move takes what waits in the retry stream for one route to another route of the same stream, with its attempts and its time.
Each message is stored for the new route before the old one is removed: nothing is lost when this is interrupted, and another
run goes on. The old route must run nowhere, and the new one must have been started once.`,
		Example: `  relay orphans move --from billing --to invoicing --dry-run
  relay orphans move --from billing --to invoicing`,
		RunE: func(c *cobra.Command, _ []string) error {
			if from == "" || to == "" {
				return fmt.Errorf("%w: --from and --to are required", errUsage)
			}
			return o.withClient(c, func(ctx context.Context, cl *client) error {
				var others []string
				known := len(cl.cfg.Routes) == 0
				for _, rt := range cl.cfg.Routes {
					known = known || rt.Name == to
					if rt.Name != from {
						others = append(others, rt.Name)
					}
				}
				if !known {
					return fmt.Errorf("%w: --to: the configuration has no route %s", errUsage, printable(to))
				}
				list, err := consumer.Orphans(ctx, cl.js, cl.cfg.Service, others)
				if err != nil {
					return err
				}
				var chosen []consumer.Orphan
				total := 0
				for _, of := range list {
					if of.Kind == consumer.OrphanRetries && of.Route == from && of.Stream != "" && (stream == "" || of.Stream == stream) {
						chosen = append(chosen, of)
						total += int(of.Messages)
					}
				}
				if stream != "" && len(chosen) == 0 { // those of an earlier version do not say their stream
					chosen = []consumer.Orphan{{Route: from, Stream: stream}}
				}
				out := c.OutOrStdout()
				moved := 0
				if !dry && len(chosen) > 0 {
					if err := confirm(ctx, c, yes, fmt.Sprintf("Give %d waiting %s of route %s to route %s?", total, plural(total, "message"), printable(from), printable(to))); err != nil {
						return err
					}
					bar := newBar(c, total, "moving")
					for _, of := range chosen {
						n, err := consumer.MoveOrphans(ctx, cl.js, cl.cfg.Service, from, to, of.Stream, func() { _ = bar.Add(1) })
						moved += n
						if err != nil {
							_ = bar.Finish()
							return fmt.Errorf("%d moved, the others wait as before: %w", moved, err)
						}
					}
					_ = bar.Finish()
				}
				if asJSON {
					return printJSON(out, map[string]any{"from": from, "to": to, "found": total, "moved": moved, "dry_run": dry})
				}
				if dry {
					fmt.Fprintf(out, "%d would be moved\n", total)
					return nil
				}
				fmt.Fprintf(out, "%d moved\n", moved)
				return nil
			})
		},
	}
	f := c.Flags()
	f.StringVar(&from, "from", "", "the route whose messages wait")
	f.StringVar(&to, "to", "", "the route that gets them")
	f.StringVar(&stream, "stream", "", "only those of this stream")
	f.BoolVar(&dry, "dry-run", false, "say how many there are, and move none")
	f.BoolVarP(&yes, "yes", "y", false, "do not ask")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func newOrphansReturn(o *options) *cobra.Command {
	var from, stream string
	var yes, dry, asJSON bool
	c := &cobra.Command{
		Use: "return --from ROUTE --stream STREAM", Short: "make dead letters of what waits for a route that does not read its stream", Args: args(cobra.NoArgs),
		Long: `Return takes what waits in the retry stream for a route, from one stream, and makes dead letters of it: parked retries, and what was
replayed to a route that never read that stream. relay dlq replays it then, with --to-subject where no route can have it. Each message is
a dead letter before it is taken out: nothing is lost when this is interrupted, and another run goes on. No instance may run the route on
that stream. Who did so is kept for 30 days: relay replay ls.`,
		Example: `  relay orphans return --from billing --stream LEGACY --dry-run
  relay orphans return --from billing --stream LEGACY
  relay dlq replay --route billing --reason operator --to-subject original`,
		RunE: func(c *cobra.Command, _ []string) error {
			if from == "" || stream == "" {
				return fmt.Errorf("%w: --from and --stream are required (relay orphans ls shows both)", errUsage)
			}
			return o.withClient(c, func(ctx context.Context, cl *client) error {
				running, err := knownRoutes(ctx, cl)
				if err != nil {
					return err
				}
				if running.running && slices.Contains(running.known[from].streams, stream) {
					return fmt.Errorf("an instance of relay runs route %s on stream %s, and takes them: relay retries discard is for those", printable(from), printable(stream))
				}
				// Of all routes: it may be one that the configuration has.
				list, err := consumer.Orphans(ctx, cl.js, cl.cfg.Service, nil)
				if err != nil {
					return err
				}
				found, returned := 0, 0
				for _, of := range list {
					if of.Kind == consumer.OrphanRetries && of.Route == from && of.Stream == stream {
						found += int(of.Messages)
					}
				}
				if !dry && found > 0 {
					if err := confirm(ctx, c, yes, fmt.Sprintf("Make dead letters of %d waiting %s of route %s?", found, plural(found, "message"), printable(from))); err != nil {
						return err
					}
					if returned, err = returnOrphans(ctx, c, cl, from, stream, found); err != nil {
						return fmt.Errorf("%d are dead letters now, the others wait as before: %w", returned, err)
					}
				}
				out := c.OutOrStdout()
				switch {
				case asJSON:
					return printJSON(out, map[string]any{"from": from, "stream": stream, "found": found, "returned": returned, "dry_run": dry})
				case dry:
					fmt.Fprintf(out, "%d would become dead letters\n", found)
				default:
					fmt.Fprintf(out, "%d returned: they are dead letters now\n", returned)
				}
				return nil
			})
		},
	}
	f := c.Flags()
	f.StringVar(&from, "from", "", "the route for which they wait")
	f.StringVar(&stream, "stream", "", "the stream that they come from")
	f.BoolVar(&dry, "dry-run", false, "say how many there are, and change nothing")
	f.BoolVarP(&yes, "yes", "y", false, "do not ask")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// returnOrphans records who does so, as a discard of retries is recorded.
func returnOrphans(ctx context.Context, c *cobra.Command, cl *client, route, stream string, total int) (n int, err error) {
	prefix := ""
	for _, rt := range cl.cfg.Routes {
		if rt.Name == route {
			prefix = rt.DeadLetter.Prefix
		}
	}
	record := &dlq.Job{Kind: dlq.RetriesDiscard, Filter: dlq.Filter{Route: route}, Why: "returned from stream " + stream}
	bar := newBar(c, total, "returning")
	err = recorded(ctx, cl, record, total, func() (int, error) {
		n, err = consumer.ReturnOrphans(ctx, cl.js, cl.cfg.Service, route, stream, prefix, caller(), func(p ack.Parked) {
			_ = bar.Add(1)
			noteDiscarded(record, p)
		})
		return n, err
	})
	_ = bar.Finish()
	return n, err
}
