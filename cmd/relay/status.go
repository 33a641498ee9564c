package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/relaymq/relay/consumer"
)

func newStatus(o *options) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "status", Short: "how every instance, its routes and the keys that wait are", Args: args(cobra.NoArgs),
		Long: `Status asks all running instances, over NATS, and prints what they say: their routes, what waits where, and each key
that waits, probes or is suspended, with the reason and the next try.`,
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := o.open(c.Context())
			if err != nil {
				return err
			}
			defer cl.close()
			list, err := askStatus(c.Context(), cl)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), list)
			}
			printStatus(c.OutOrStdout(), list, time.Now())
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func askStatus(ctx context.Context, cl *client) ([]consumer.Status, error) {
	list, err := consumer.AskStatus(ctx, cl.conn.Conn, cl.cfg.Service)
	if errors.Is(err, consumer.ErrNobody) {
		return nil, fmt.Errorf("%w: is relay run running, with service %s, on %s?", err, cl.cfg.Service, cl.conn.ConnectedUrlRedacted())
	}
	slices.SortFunc(list, func(a, b consumer.Status) int { return strings.Compare(a.Instance, b.Instance) })
	return list, err
}

func printStatus(w io.Writer, list []consumer.Status, now time.Time) {
	for i, s := range list {
		if i > 0 {
			fmt.Fprintln(w)
		}
		ready := "ready"
		if !s.Ready {
			ready = "NOT READY"
		}
		fmt.Fprintf(w, "%s  %s, up %v\n", s.Instance, ready, now.Sub(s.Started).Round(time.Second))
		if s.Parked > 0 {
			fmt.Fprintf(w, "  %d messages of the service wait in the retry stream\n", s.Parked)
		}
		for _, t := range s.Trouble {
			fmt.Fprintf(w, "  ! %s\n", printable(t))
		}
		fmt.Fprintln(w)
		rows := [][]string{{"ROUTE", "STATE", "RUNNING", "QUEUED", "STASH", "ACK PENDING", "ACKED", "RETRIED", "DEAD", "KEYS", ""}}
		for _, r := range s.Routes {
			why := ""
			if r.State != "flowing" {
				why = printable(r.Why) + next(r.Until, now)
			}
			running := fmt.Sprint(r.Running)
			if r.Stuck > 0 {
				running += fmt.Sprintf(" (+%d stuck)", r.Stuck)
			}
			rows = append(rows, []string{
				r.Name, r.State, running, fmt.Sprint(r.Window), fmt.Sprint(r.Stash), fmt.Sprint(r.AckPending), fmt.Sprint(r.Acked),
				fmt.Sprint(r.Retried), fmt.Sprint(r.Dead), keyCounts(r.Keys), why,
			})
		}
		table(w, rows)
		printKeys(w, s.Routes, now)
	}
}

func printKeys(w io.Writer, routes []consumer.RouteStatus, now time.Time) {
	rows := [][]string{{"KEY", "ROUTE", "STATE", "SINCE", "NEXT TRY", "STASH", "RESTARTS", "WHY"}}
	for _, r := range routes {
		for _, k := range r.Waiting {
			at := "-"
			if k.Until != nil {
				at = "in " + max(0, k.Until.Sub(now)).Round(100*time.Millisecond).String()
			}
			rows = append(rows, []string{
				printable(k.Key), r.Name, k.State, when(k.Since), at, fmt.Sprint(k.Stash), fmt.Sprint(k.Restarts),
				printable(k.Why),
			})
		}
	}
	if len(rows) > 1 {
		fmt.Fprintln(w)
		table(w, rows)
	}
}

func next(until *time.Time, now time.Time) string {
	if until == nil {
		return ""
	}
	return fmt.Sprintf(" (next try in %v)", max(0, until.Sub(now)).Round(100*time.Millisecond))
}

func keyCounts(keys map[string]int) string {
	var parts []string
	for _, state := range slices.Sorted(maps.Keys(keys)) {
		parts = append(parts, fmt.Sprintf("%d %s", keys[state], state))
	}
	return or(strings.Join(parts, ", "), "-")
}
