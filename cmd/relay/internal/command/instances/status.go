package instances

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/relaymq/relay/cmd/relay/internal/access"
	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/internal/control"
)

// watchEvery is how often --watch asks.
const watchEvery = 2 * time.Second

// statusFlags say what is asked and printed.
type statusFlags struct {
	json, instances, watch bool
	keys                   int
}

func newStatus(o *cli.Options) *cobra.Command {
	var f statusFlags
	c := &cobra.Command{
		Use: "status [ROUTE]", Short: "show every instance, its routes, and the keys that wait", Args: cli.Args(cobra.MaximumNArgs(1)),
		Long: `Status asks all running instances, over NATS, and prints what they say: their routes, how much waits where, and for each
route and each key that stands still since when, why, and what happens next.

  RUN       handlers at work             HELD     messages in the memory of the instances
  BACKLOG   in the stream, not delivered yet      UNACKED  delivered and not settled: with those that wait for a retry
  PARKED    in the retry stream          DEAD     stored dead letters (and how many the running instances added)

RUN, HELD, DONE and RETRIED are sums over the instances, the last two since they started; the others are counted by the
server. A question mark stands for what is not known yet. With a ROUTE it tells more of that route, by instance.`,
		Example: `  relay status
  relay status billing --keys 1000
  relay status --watch`,
		RunE: func(c *cobra.Command, a []string) error {
			if f.keys < 0 {
				return fmt.Errorf("%w: --keys %d: must be at least 0", cli.ErrUsage, f.keys)
			}
			cl, err := o.Open(c.Context(), access.Viewer)
			if err != nil {
				return err
			}
			defer cl.Close()
			route := ""
			if len(a) == 1 {
				route = a[0]
			}
			return cl.Permitted(c.Context(), access.Viewer, func(ctx context.Context) error {
				if f.watch {
					return f.again(ctx, c, cl, route)
				}
				return f.once(ctx, c, cl, route)
			})
		},
	}
	c.Flags().BoolVar(&f.json, "json", false, "print JSON")
	c.Flags().BoolVar(&f.instances, "instances", false, "print each instance by itself")
	c.Flags().BoolVar(&f.watch, "watch", false, "ask and print every two seconds, until interrupted")
	c.Flags().IntVar(&f.keys, "keys", 20, "how many keys of each route are printed at most; 0: none")
	return c
}

func (f statusFlags) once(ctx context.Context, c *cobra.Command, cl *cli.Client, route string) error {
	answers, err := ask(ctx, c, cl, control.StatusRequest{Route: route, Keys: cmp.Or(f.keys, -1)})
	if err != nil {
		return err
	}
	if route != "" {
		if err := answered(ctx, cl, answers, route); err != nil {
			return err
		}
	}
	w := c.OutOrStdout()
	switch {
	case f.json:
		return cli.PrintJSON(w, answers.Instances)
	case route != "":
		printRoute(w, answers.Instances, route, time.Now())
	case f.instances:
		for i := range answers.Instances {
			if i > 0 {
				fmt.Fprintln(w)
			}
			printStatus(w, answers.Instances[i:i+1], time.Now())
		}
	default:
		printStatus(w, answers.Instances, time.Now())
	}
	return nil
}

// again prints until it is interrupted. On a terminal each print takes the place of the one before.
func (f statusFlags) again(ctx context.Context, c *cobra.Command, cl *cli.Client, route string) error {
	clear := ""
	if term.IsTerminal(int(os.Stdout.Fd())) {
		clear = "\x1b[H\x1b[2J"
	}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for first := true; ; first = false {
		w := c.OutOrStdout()
		if !f.json {
			if !first && clear == "" {
				fmt.Fprintln(w)
			}
			fmt.Fprintf(w, "%s%s\n\n", clear, cli.When(time.Now()))
		}
		err := f.once(ctx, c, cl, route)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, control.ErrNobody):
			fmt.Fprintln(w, cli.Printable(err.Error()))
		case err != nil:
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// ask asks all instances, and says on standard error what is wrong with answers.
func ask(ctx context.Context, c *cobra.Command, cl *cli.Client, q control.StatusRequest) (control.Answers, error) {
	answers, err := control.Ask(ctx, cl.Conn.Conn, cl.Config.Service, q)
	complain(c.ErrOrStderr(), answers.Bad)
	if errors.Is(err, control.ErrNobody) {
		return answers, fmt.Errorf("%w: is relay run running, with service %s, on %s?", err, cl.Config.Service, cl.Conn.ConnectedUrlRedacted())
	}
	return answers, err
}

func complain(w io.Writer, bad []string) {
	for _, b := range bad {
		fmt.Fprintf(w, "an answer was left out: %s\n", cli.Printable(b))
	}
}

// answered refuses a route that no instance has told of.
func answered(ctx context.Context, cl *cli.Client, answers control.Answers, route string) error {
	for _, s := range answers.Instances {
		if _, ok := routeOf(s, route); ok {
			return nil
		}
	}
	everything, err := control.Ask(ctx, cl.Conn.Conn, cl.Config.Service, control.StatusRequest{Keys: -1})
	if err != nil {
		return err
	}
	return knownRoute(cl, everything.Instances, route)
}

func routeOf(s consumer.Status, name string) (consumer.RouteStatus, bool) {
	for _, r := range s.Routes {
		if r.Name == name {
			return r, true
		}
	}
	return consumer.RouteStatus{}, false
}
