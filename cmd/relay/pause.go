package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/relaymq/relay/consumer"
)

func newPause(o *options) *cobra.Command {
	var why string
	c := &cobra.Command{
		Use: "pause ROUTE [KEY]", Short: "let nothing of a route, or of one of its keys, start until resume", Args: args(cobra.RangeArgs(1, 2)),
		Long: `Pause holds on every instance, and over restarts, until resume. Handlers that run finish. The messages of a paused route
stay in their stream; those of a paused key are given back for an hour, and asked for again by resume.`,
		Example: `  relay pause billing --why 'database migration'
  relay pause billing orders.us.created`,
		RunE: func(c *cobra.Command, a []string) error { return o.give(c, a, consumer.OrderPaused, why) },
	}
	c.Flags().StringVar(&why, "why", "", "a reason, shown in the log and by status")
	return c
}

func newResume(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "resume ROUTE [KEY]", Short: "end a pause, or the suspension of a key that gave up", Args: args(cobra.RangeArgs(1, 2)),
		RunE: func(c *cobra.Command, a []string) error { return o.give(c, a, consumer.OrderRunning, "") },
	}
}

// give stores an order and waits until the running instances have applied it.
func (o *options) give(c *cobra.Command, a []string, state, why string) error {
	ctx, cancel := context.WithTimeout(c.Context(), 10*time.Second)
	defer cancel()
	cl, err := o.open(ctx)
	if err != nil {
		return err
	}
	defer cl.close()
	running, err := consumer.AskStatus(ctx, cl.conn.Conn, cl.cfg.Service)
	if err != nil && !errors.Is(err, consumer.ErrNobody) {
		return err
	}
	if err := knownRoute(cl, running, a[0]); err != nil {
		return err
	}
	orders, err := consumer.OpenOrders(ctx, cl.js, cl.cfg.Service, cl.cfg.NATS.Replicas)
	if err != nil {
		return err
	}
	order := consumer.Order{Route: a[0], State: state, Why: why, By: caller(), At: time.Now().UTC()}
	what := "route " + a[0]
	if len(a) == 2 {
		order.Key = []byte(a[1])
		what = "key " + printable(a[1]) + " of " + what
	}
	revision, err := orders.Give(ctx, order)
	if err != nil {
		return err
	}
	for ctx.Err() == nil && len(running) > 0 {
		if running, err = consumer.AskStatus(ctx, cl.conn.Conn, cl.cfg.Service); err != nil {
			break
		}
		if !slices.ContainsFunc(running, func(s consumer.Status) bool { return s.Orders < revision }) {
			fmt.Fprintf(c.OutOrStdout(), "%s is %s on %d running %s\n", what, state, len(running), plural(len(running), "instance"))
			return nil
		}
	}
	fmt.Fprintf(c.OutOrStdout(), "%s will be %s: no running instance has answered yet\n", what, state)
	return nil
}

// knownRoute refuses a name that neither the configuration nor a running instance knows.
func knownRoute(cl *client, running []consumer.Status, name string) error {
	var known []string
	for _, rt := range cl.cfg.Routes {
		known = append(known, rt.Name)
	}
	for _, s := range running {
		for _, r := range s.Routes {
			known = append(known, r.Name)
		}
	}
	slices.Sort(known)
	known = slices.Compact(known)
	if len(known) > 0 && !slices.Contains(known, name) {
		return fmt.Errorf("%w: there is no route %s; there are %v", errUsage, printable(name), known)
	}
	return nil
}

func caller() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}

func plural(n int, noun string) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}
