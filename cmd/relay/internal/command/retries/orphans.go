package retries

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/routes"
	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/orphans"
	"github.com/relaymq/relay/internal/retry"
)

func newOrphans(o *cli.Options) *cobra.Command {
	c := &cobra.Command{
		Use: "orphans", Short: "messages that wait for a route that was renamed or removed", Args: cli.Args(cli.KnownCommand),
		Long: `When a route, its durable or its stream gets another name, nobody consumes what waits under the old name: parked
retries, the undelivered messages of a durable, dead letters. Orphans finds these messages and moves them. Messages that an instance
with the old configuration still pulls are not orphans.`,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newOrphansLs(o), newOrphansMove(o), newOrphansReturn(o))
	return c
}

func newOrphansLs(o *cli.Options) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "ls", Short: "list messages that wait for routes that the configuration does not have", Args: cli.Args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			var list []orphans.Orphan
			err := o.WithClient(c, func(ctx context.Context, cl *cli.Client) (err error) {
				var routes []consumer.Route
				for _, rt := range cl.Config.Routes {
					routes = append(routes, rt.Route)
				}
				if list, err = findOrphans(ctx, cl, routes); err != nil {
					return err
				}
				running, err := control.AskStatus(ctx, cl.Conn.Conn, cl.Config.Service)
				if err != nil && !errors.Is(err, control.ErrNobody) {
					return err
				}
				// What an instance uses is none, also while it does not pull: of a route that is paused, or stands by.
				list = slices.DeleteFunc(list, func(of orphans.Orphan) bool {
					return of.Service == "" && slices.ContainsFunc(running, func(s consumer.Status) bool {
						return slices.ContainsFunc(s.Routes, func(rt consumer.RouteStatus) bool {
							if rt.Partitions != nil && rt.Partitions.Stream == of.Stream {
								return true
							}
							return rt.Stream == of.Stream && (of.Kind == orphans.Durable && rt.Durable == of.Durable || of.Kind == orphans.Retries && rt.Name == of.Route)
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
					list = []orphans.Orphan{}
				}
				return cli.PrintJSON(c.OutOrStdout(), list)
			}
			if len(list) == 0 {
				fmt.Fprintln(c.OutOrStdout(), "nothing waits for a route that does not exist")
				return nil
			}
			rows := [][]string{{"KIND", "ROUTE", "STREAM", "DURABLE", "MESSAGES", "OUTSTANDING", "NEXT"}}
			for _, of := range list {
				if of.Service != "" {
					of.Route = of.Service + ": " + of.Route
				}
				rows = append(rows, []string{
					of.Kind, of.Route, of.Stream, of.Durable, strconv.FormatUint(of.Messages, 10), strconv.Itoa(of.Outstanding), of.Next,
				})
			}
			cli.Table(c.OutOrStdout(), rows)
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func newOrphansMove(o *cli.Options) *cobra.Command {
	var from, to, stream, service string
	var dry, asJSON bool
	var consent cli.Consent
	c := &cobra.Command{
		Use: "move --from ROUTE --to ROUTE", Short: "move messages that wait for a route that does not exist to another route", Args: cli.Args(cobra.NoArgs),
		Long: `Move takes what waits for one route to another route: retries, with their attempts and their time, dead letters, and what the
durable of the old route has not handled. That durable is removed then. Messages that the durable of the new route delivers, too,
are not handed over. Each message is stored for the new route before the old one is removed: nothing is lost when this is interrupted, and
another run goes on. The old route must run nowhere, and the new one must have been started once. With the same route for both, it gets
what a durable has that it used before; its retries and dead letters are its own already. After a service was renamed,
--of-service is its old name; its routes may keep theirs.`,
		Example: `  relay orphans move --from billing --to invoicing --dry-run
  relay orphans move --from billing --to invoicing
  relay orphans move --of-service shop --from billing --to billing`,
		RunE: func(c *cobra.Command, _ []string) error {
			if from == "" || to == "" {
				return fmt.Errorf("%w: --from and --to are required", cli.ErrUsage)
			}
			return o.WithClient(c, func(ctx context.Context, cl *cli.Client) error {
				if service == cl.Config.Service {
					service = ""
				}
				// A route may get what it left in a durable that it used before. All else is its own already.
				toItself := from == to && service == ""
				if toItself && len(cl.Config.Routes) == 0 {
					return fmt.Errorf("%w: --from and --to are the same route, and without its configuration (-c) nobody knows which durable it uses now", cli.ErrUsage)
				}
				var others []consumer.Route
				prefix, known := "", len(cl.Config.Routes) == 0
				for _, rt := range cl.Config.Routes {
					if rt.Name == to {
						known, prefix = true, rt.DeadLetter.Prefix
					}
					if rt.Name != from || service != "" || toItself {
						others = append(others, rt.Route)
					}
				}
				if !known {
					return fmt.Errorf("%w: --to: the configuration has no route %s", cli.ErrUsage, cli.Printable(to))
				}
				list, err := findOrphans(ctx, cl, others)
				if err != nil {
					return err
				}
				list = slices.DeleteFunc(list, func(of orphans.Orphan) bool {
					return of.Kind == orphans.Partitions || toItself && of.Kind != orphans.Durable || of.Route != from || of.Service != service || stream != "" && of.Kind != orphans.Dead && of.Stream != stream
				})
				if stream != "" && service == "" && !toItself && !slices.ContainsFunc(list, func(of orphans.Orphan) bool { return of.Kind == orphans.Retries }) {
					list = append(list, orphans.Orphan{Kind: orphans.Retries, Route: from, Stream: stream})
				}
				var found orphans.Moved
				for _, of := range list {
					switch n := int(of.Messages); of.Kind {
					case orphans.Retries:
						found.Retries += n
					case orphans.Dead:
						found.Dead += n
					default:
						found.Durable += n + of.Outstanding
					}
				}
				var moved orphans.Moved
				if !dry && len(list) > 0 {
					if err := consent.Confirm(ctx, c, fmt.Sprintf("Give what waits for route %s to route %s (%s)?", cli.Printable(from), cli.Printable(to), movedText(found))); err != nil {
						return err
					}
					bar := cli.NewBar(c, found.Sum(), "moving")
					move := orphans.Move{
						Service: cl.Config.Service, From: from, To: to, OfService: service, Stream: stream, Prefix: prefix, Moved: func() { _ = bar.Add(1) },
					}
					record := &dlq.Job{Kind: dlq.OrphansMove, Filter: dlq.Filter{Route: from}, Why: "from route " + from + " to route " + to}
					err = cli.Record(ctx, cl, record, found.Sum(), func() (int, error) {
						var err error
						moved, err = move.Do(ctx, cl.JS, list)
						record.MovedAway, record.MovedHere = moved.Away, moved.Here
						return moved.Sum(), err
					})
					_ = bar.Finish()
					if err != nil {
						return fmt.Errorf("%d moved (%s); the others wait as before: %w", moved.Sum(), movedText(moved), err)
					}
				}
				out := c.OutOrStdout()
				if len(list) == 0 {
					nothingOf(c, from)
				}
				switch {
				case asJSON:
					return cli.PrintJSON(out, map[string]any{"from": from, "to": to, "found": found.Sum(), "moved": moved.Sum(), "of": found, "done": moved, "dry_run": dry})
				case dry:
					fmt.Fprintf(out, "%d would be moved: %s\n", found.Sum(), movedText(found))
				default:
					fmt.Fprintf(out, "%d moved: %s\n", moved.Sum(), movedText(moved))
				}
				return nil
			})
		},
	}
	f := c.Flags()
	f.StringVar(&from, "from", "", "the route whose messages wait")
	f.StringVar(&to, "to", "", "the route that gets them")
	f.StringVar(&stream, "stream", "", "only messages of this stream")
	f.StringVar(&service, "of-service", "", "the service of the old route, if that was renamed")
	f.BoolVar(&dry, "dry-run", false, "say how many messages there are, and move none")
	consent.Flag(c, "do not ask")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// nothingOf says on standard error that nothing was found of a route: its name may be mistyped, and nobody knows the names of routes that are gone.
func nothingOf(c *cobra.Command, route string) {
	fmt.Fprintf(c.ErrOrStderr(), "nothing was found that waits for route %s (relay orphans ls shows what waits, and for which routes)\n", cli.Printable(route))
}

func movedText(n orphans.Moved) string {
	return fmt.Sprintf("%d %s in the retry stream, %d dead %s, %d of the durable", n.Retries, cli.Plural(n.Retries, "message"), n.Dead, cli.Plural(n.Dead, "letter"), n.Durable)
}

func newOrphansReturn(o *cli.Options) *cobra.Command {
	var from, stream string
	var dry, asJSON bool
	var consent cli.Consent
	c := &cobra.Command{
		Use: "return --from ROUTE --stream STREAM", Short: "make dead letters of what waits for a route that does not read its stream", Args: cli.Args(cobra.NoArgs),
		Long: `Return takes what waits in the retry stream for a route, from one stream, and makes dead letters of it: parked retries, and what was
replayed to a route that never read that stream. relay dlq replays it then, with --to-subject where no route can have it. Each message is
a dead letter before it is taken out: nothing is lost when this is interrupted, and another run goes on. No instance may run the route on
that stream. Who did so is kept for 30 days: relay replay ls.`,
		Example: `  relay orphans return --from billing --stream LEGACY --dry-run
  relay orphans return --from billing --stream LEGACY
  relay dlq replay --route billing --reason operator --to-subject original`,
		RunE: func(c *cobra.Command, _ []string) error {
			if from == "" || stream == "" {
				return fmt.Errorf("%w: --from and --stream are required (relay orphans ls shows both)", cli.ErrUsage)
			}
			return o.WithClient(c, func(ctx context.Context, cl *cli.Client) error {
				running, err := routes.Known(ctx, cl)
				if err != nil {
					return err
				}
				if running.Running && slices.Contains(running.Routes[from].Streams, stream) {
					return fmt.Errorf("an instance of relay runs route %s on stream %s, and handles these messages; to make dead letters of them, use relay retries discard", cli.Printable(from), cli.Printable(stream))
				}
				// Of all routes: it may be one that the configuration has.
				list, err := findOrphans(ctx, cl, nil)
				if err != nil {
					return err
				}
				found, returned := 0, 0
				for _, of := range list {
					if of.Kind == orphans.Retries && of.Route == from && of.Stream == stream {
						found += int(of.Messages)
					}
				}
				if !dry && found > 0 {
					if err := consent.Confirm(ctx, c, fmt.Sprintf("Make dead letters of %d waiting %s of route %s?", found, cli.Plural(found, "message"), cli.Printable(from))); err != nil {
						return err
					}
					if returned, err = returnOrphans(ctx, c, cl, from, stream, found); err != nil {
						return fmt.Errorf("%d are dead letters now; the others wait as before: %w", returned, err)
					}
				}
				out := c.OutOrStdout()
				if found == 0 {
					nothingOf(c, from)
				}
				switch {
				case asJSON:
					return cli.PrintJSON(out, map[string]any{"from": from, "stream": stream, "found": found, "returned": returned, "dry_run": dry})
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
	f.StringVar(&from, "from", "", "the route for which the messages wait")
	f.StringVar(&stream, "stream", "", "the stream that the messages come from")
	f.BoolVar(&dry, "dry-run", false, "say how many messages there are, and change nothing")
	consent.Flag(c, "do not ask")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// returnOrphans records who does so, as a discard of retries is recorded.
func returnOrphans(ctx context.Context, c *cobra.Command, cl *cli.Client, route, stream string, total int) (n int, err error) {
	prefix := ""
	for _, rt := range cl.Config.Routes {
		if rt.Name == route {
			prefix = rt.DeadLetter.Prefix
		}
	}
	record := &dlq.Job{Kind: dlq.RetriesDiscard, Filter: dlq.Filter{Route: route}, Why: "returned from stream " + stream}
	bar := cli.NewBar(c, total, "returning")
	err = cli.Record(ctx, cl, record, total, func() (int, error) {
		n, err = orphans.Return(ctx, cl.JS, cl.Config.Service, route, stream, prefix, cli.Caller(), func(p retry.Parked) {
			_ = bar.Add(1)
			noteDiscarded(record, p)
		})
		return n, err
	})
	_ = bar.Finish()
	return n, err
}

// findOrphans finds what waits for routes that are not among these, of which the names and durables count.
func findOrphans(ctx context.Context, cl *cli.Client, known []consumer.Route) ([]orphans.Orphan, error) {
	var list []orphans.Route
	for _, rt := range known {
		rt = rt.WithDefaults()
		list = append(list, orphans.Route{Name: rt.Name, Durable: rt.Durable, Divided: rt.Partitions > 0})
	}
	return orphans.NewSearch(cl.JS, cl.Config.Service).All(ctx, list)
}
