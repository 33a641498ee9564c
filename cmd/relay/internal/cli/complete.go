package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/access"
	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/dlq"
)

// completeTimeout is how long a shell waits for what only the server knows.
const completeTimeout = 2 * time.Second

// CompleteValues gives shells the values of arguments and flags: routes of the configuration, reasons, contexts, and the jobs
// that the server has. What cannot be had completes nothing.
func CompleteValues(root *cobra.Command, o *Options) {
	_ = root.RegisterFlagCompletionFunc("context", flagValues(config.Contexts))
	walk(root, func(c *cobra.Command) {
		if c.Flags().Lookup("route") != nil {
			_ = c.RegisterFlagCompletionFunc("route", flagValues(o.routeNames))
		}
		for _, flag := range []string{"from", "to"} {
			if c.Flags().Lookup(flag) != nil && strings.HasPrefix(c.CommandPath(), "relay orphans ") {
				_ = c.RegisterFlagCompletionFunc(flag, flagValues(o.routeNames))
			}
		}
		if c.Flags().Lookup("reason") != nil {
			_ = c.RegisterFlagCompletionFunc("reason", flagValues(reasons))
		}
		switch c.CommandPath() {
		case "relay status":
			c.ValidArgsFunction = first(o.routeNames)
		case "relay pause", "relay resume":
			c.ValidArgsFunction = o.routeAndKey
		case "relay schedule show", "relay schedule run", "relay schedule pause", "relay schedule resume", "relay schedule rm":
			c.ValidArgsFunction = first(o.scheduleNames)
		case "relay replay show", "relay replay cancel", "relay replay resume":
			c.ValidArgsFunction = first(o.jobIDs)
		}
	})
}

func walk(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		walk(sub, f)
	}
}

// flagValues completes a flag.
func flagValues(list func() []string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return list(), cobra.ShellCompDirectiveNoFileComp
	}
}

// first completes the first argument.
func first(list func() []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, a []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(a) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return list(), cobra.ShellCompDirectiveNoFileComp
	}
}

func (o *Options) routeNames() (names []string) {
	cfg, err := o.LoadClient()
	if err != nil {
		return nil
	}
	for _, rt := range cfg.Routes {
		names = append(names, rt.Name)
	}
	return names
}

// routeAndKey completes a route, and then the keys of it that wait somewhere, with why.
func (o *Options) routeAndKey(_ *cobra.Command, a []string, _ string) ([]string, cobra.ShellCompDirective) {
	switch len(a) {
	case 0:
		return o.routeNames(), cobra.ShellCompDirectiveNoFileComp
	case 1:
		return o.waitingKeys(a[0]), cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// waitingKeys are the keys of a route that wait, as the running instances say.
func (o *Options) waitingKeys(route string) (keys []string) {
	ctx, cancel := context.WithTimeout(context.Background(), completeTimeout)
	defer cancel()
	cl, err := o.Open(ctx, access.Viewer)
	if err != nil {
		return nil
	}
	defer cl.Close()
	answers, _ := control.Ask(ctx, cl.Conn.Conn, cl.Config.Service, control.StatusRequest{Route: route}) // what came until then
	seen := make(map[string]bool)
	for _, s := range answers.Instances {
		for _, rt := range s.Routes {
			if rt.Name != route {
				continue
			}
			for _, k := range rt.Waiting {
				// A shell takes what it completes: control bytes would be typed.
				if k.Key != "" && k.KeyBytes == 0 && !seen[k.Key] && Printable(k.Key) == k.Key {
					seen[k.Key] = true
					keys = append(keys, cobra.CompletionWithDesc(k.Key, Shorten(Printable(k.State+": "+k.Why), 60)))
				}
			}
		}
	}
	return keys
}

func (o *Options) scheduleNames() (names []string) {
	cfg, err := o.LoadClient()
	if err != nil {
		return nil
	}
	for _, s := range cfg.Schedules {
		names = append(names, s.Name)
	}
	return names
}

func reasons() (names []string) {
	for _, r := range []dlq.Reason{dlq.Exhausted, dlq.Rejected, dlq.Crash, dlq.Expired, dlq.GaveUp, dlq.Operator} {
		names = append(names, string(r))
	}
	return names
}

// jobIDs are the replay jobs, with what a shell shows beside them.
func (o *Options) jobIDs() (ids []string) {
	ctx, cancel := context.WithTimeout(context.Background(), completeTimeout)
	defer cancel()
	cl, err := o.Open(ctx, access.Operator)
	if err != nil {
		return nil
	}
	defer cl.Close()
	jobs, err := dlq.AttachJobs(ctx, cl.JS, cl.Config.Service)
	if err != nil {
		return nil
	}
	list, err := jobs.List(ctx)
	if err != nil {
		return nil
	}
	for _, j := range list {
		ids = append(ids, cobra.CompletionWithDesc(j.ID, fmt.Sprintf("%s, %d of %d", j.State, j.Handed, j.Total)))
	}
	return ids
}
