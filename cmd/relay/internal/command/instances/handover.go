package instances

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/access"
	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/console"
	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/eventkind"
)

// handedOver is what became of a handover.
type handedOver struct {
	Route string `json:"route"`
	From  string `json:"from"`
	To    string `json:"to"`
	// Fence is the number of the new holder.
	Fence uint64        `json:"fence"`
	Took  time.Duration `json:"took_ns"`
}

func (h handedOver) String() string {
	return fmt.Sprintf("route %s: instance %s has it now, %s had it (fence %d, after %v)", cli.Printable(h.Route), cli.Printable(h.To), cli.Printable(h.From), h.Fence,
		h.Took.Round(time.Millisecond))
}

// errStillDrains is the kind of error that says that the handover goes on.
var errStillDrains = errors.New("the instance that has the route still drains it")

func newHandover(o *cli.Options) *cobra.Command {
	var to string
	var asJSON bool
	var timeout time.Duration
	c := &cobra.Command{
		Use: "handover ROUTE", Short: "give a route with instances: one to another instance", Args: cli.Args(cobra.ExactArgs(1)),
		Long: `Handover has the instance that has the route drain it: nothing new starts, handlers that run finish (for as long as its drain
permits), and what it did not start goes back. Then an instance that stands by goes on, at once and in order. Nothing is lost, and no attempt is spent.
The command returns when another instance has the route. Use it before you stop a machine, or to spread routes over instances.`,
		Example: `  relay handover billing
  relay handover billing --to host-2-4Xk1`,
		RunE: func(c *cobra.Command, names []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), timeout)
			defer cancel()
			cl, err := o.Open(ctx, access.Operator)
			if err != nil {
				return err
			}
			defer cl.Close()
			return cl.Permitted(ctx, access.Operator, func(ctx context.Context) error {
				done, err := handOver(ctx, cl, control.HandoverOrder{Route: names[0], To: to, By: cli.Caller()}, c.ErrOrStderr())
				if err != nil {
					return err
				}
				if asJSON {
					return cli.PrintJSON(c.OutOrStdout(), done)
				}
				_, err = fmt.Fprintln(c.OutOrStdout(), done)
				return err
			})
		},
	}
	c.Flags().StringVar(&to, "to", "", "the instance that gets the route (default: any that stands by)")
	c.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait until another instance has the route; the handover goes on after that")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// holderOf is who has the route, as far as the answers tell, and who stands by. The holder's own word counts first.
func holderOf(list []consumer.Status, route string) (holder string, fence uint64, standbys []string, leased bool) {
	for _, s := range list {
		rt, ok := routeOf(s, route)
		if !ok || rt.Holder == nil {
			continue
		}
		leased = true
		if rt.Holder.Here {
			return s.Instance, rt.Holder.Fence, rt.Holder.Standbys, true
		}
		if rt.Holder.Instance != "" {
			holder, fence, standbys = rt.Holder.Instance, rt.Holder.Fence, rt.Holder.Standbys
		}
	}
	return holder, fence, standbys, leased
}

// handOver gives the order, and waits until another instance has the route. An order that names who has the route is refused when somebody else has.
func handOver(ctx context.Context, c *cli.Client, order control.HandoverOrder, notes io.Writer) (*handedOver, error) {
	route, to := order.Route, order.To
	q := control.StatusRequest{Route: route, Keys: -1}
	answers, err := control.Ask(ctx, c.Conn.Conn, c.Config.Service, q)
	complain(notes, answers.Bad)
	if err != nil {
		return nil, err
	}
	if err := answered(ctx, c, answers, route); err != nil {
		return nil, err
	}
	from, fence, standbys, leased := holderOf(answers.Instances, route)
	switch {
	case !leased:
		return nil, fmt.Errorf("%w: all instances handle messages of route %s: there is nothing to hand over; see instances: one", cli.ErrUsage, cli.Printable(route))
	case from == "":
		return nil, cli.Said(fmt.Sprintf("no instance has route %s now: see relay status %s", cli.Printable(route), cli.Printable(route)), console.ErrConflict)
	case order.From != "" && order.From != from:
		return nil, cli.Said(fmt.Sprintf("instance %s has route %s now, not %s: look at the instances again", cli.Printable(from), cli.Printable(route), cli.Printable(order.From)), console.ErrConflict)
	case to == from:
		return nil, fmt.Errorf("%w: --to: instance %s has the route already", cli.ErrUsage, cli.Printable(to))
	case to != "" && !slices.Contains(standbys, to):
		return nil, fmt.Errorf("%w: --to: instance %s does not stand by for route %s; %s", cli.ErrUsage, cli.Printable(to), cli.Printable(route), standingBy(standbys))
	case len(standbys) == 0:
		return nil, cli.Said(fmt.Sprintf("no other instance stands by for route %s: start one first", cli.Printable(route)), console.ErrConflict)
	}
	began := time.Now()
	order.From = from
	list, bad, err := control.Handover(ctx, c.Conn.Conn, c.Config.Service, order)
	complain(notes, bad)
	if err != nil && !errors.Is(err, control.ErrNobody) {
		return nil, err
	}
	i := slices.IndexFunc(list, func(h control.HandedOver) bool { return h.Instance == from })
	switch {
	case i < 0 && slices.ContainsFunc(answers.Instances, func(s consumer.Status) bool { return s.Instance == from && s.Version == "" }):
		return nil, cli.Said(fmt.Sprintf("instance %s, which has route %s, runs an earlier version, which does not know this order: stop that instance, and another one takes the route at once",
			cli.Printable(from), cli.Printable(route)), console.ErrConflict)
	case i < 0:
		return nil, cli.Said(fmt.Sprintf("instance %s, which has route %s, does not answer: another instance takes the route when the lease of the first ends", cli.Printable(from), cli.Printable(route)), control.ErrNobody)
	case !list[i].Giving:
		why := cli.Or(list[i].Refused, "the instance does not know the order")
		return nil, cli.Said(fmt.Sprintf("instance %s does not hand route %s over: %s", cli.Printable(from), cli.Printable(route), cli.Printable(why)), console.ErrConflict)
	}
	c.Tell(eventkind.Audit, event.Data{Route: route, By: order.By, Text: fmt.Sprintf("route %s is to be handed over by instance %s", route, from)})
	for {
		answers, err := control.AskUntil(ctx, c.Conn.Conn, c.Config.Service, q, func(s consumer.Status) bool {
			rt, ok := routeOf(s, route)
			return ok && rt.Holder != nil && rt.Holder.Here && rt.Holder.Fence > fence
		})
		if holder, now, _, _ := holderOf(answers.Instances, route); now > fence {
			if holder == from {
				return nil, cli.Said(fmt.Sprintf("instance %s took route %s again, because no other instance took it in time", cli.Printable(from), cli.Printable(route)), console.ErrConflict)
			}
			return &handedOver{Route: route, From: from, To: holder, Fence: now, Took: time.Since(began)}, nil
		}
		if err != nil && !errors.Is(err, control.ErrNobody) {
			if ctx.Err() != nil {
				return nil, cli.Said(fmt.Sprintf("instance %s still drains route %s after %v, and hands the route over when it has finished: see relay status %s",
					cli.Printable(from), cli.Printable(route), time.Since(began).Round(time.Second), cli.Printable(route)), errStillDrains)
			}
			return nil, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func standingBy(list []string) string {
	if len(list) == 0 {
		return "no other instance does"
	}
	return "these instances stand by: " + cli.Printable(strings.Join(list, ", "))
}
