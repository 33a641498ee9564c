package retries

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/waiting"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/retry"
)

// chosenRetries are the messages that a command acts on: named, or all of a route that are parked.
type chosenRetries struct {
	route string
	named map[string]bool
	n     int // parked ones
}

// choose counts what is to be acted on. What waits in its durable cannot be: only its instances have the deliveries.
func choose(ctx context.Context, r *waiting.Reader, a []string, route string, notes func(string)) (chosenRetries, error) {
	c := chosenRetries{route: route, named: make(map[string]bool)}
	if len(a) == 0 && route == "" {
		return c, fmt.Errorf("%w: name the messages (ORDERS/17), or a route with --route", cli.ErrUsage)
	}
	for _, id := range a {
		if _, _, err := waiting.ParseID(id); err != nil {
			return c, err
		}
		c.named[id] = false
	}
	elsewhere, last := 0, waiting.Message{}
	err := r.Each(ctx, route, func(m waiting.Message) bool {
		if _, ok := c.named[m.ID]; len(a) > 0 && !ok || m.Fault != "" {
			return true
		}
		if len(a) > 0 {
			c.named[m.ID] = true
		}
		if m.Where == waiting.Parked {
			c.n++
		} else {
			elsewhere, last = elsewhere+1, m
		}
		return true
	})
	if err != nil {
		return c, err
	}
	for id, found := range c.named {
		if !found {
			return c, fmt.Errorf("%s does not wait for a retry (relay retries ls shows what does)", cli.Printable(id))
		}
	}
	if c.n+elsewhere == 0 {
		if err := r.Unknown(route); err != nil {
			return c, err
		}
	}
	if elsewhere > 0 {
		name := "ROUTE"
		if len(last.Routes) == 1 {
			name = last.Routes[0]
		}
		wait, it := "wait", "them"
		if elsewhere == 1 {
			wait, it = "waits", "it"
		}
		notes(fmt.Sprintf("%d %s in durable %s until due: only its instances can reach %s (relay resume %s ends the waits of a route and its keys)",
			elsewhere, wait, last.Durable, it, name))
	}
	return c, nil
}

// actOn calls f for each of the chosen messages that is parked still, and returns how many succeeded and how many were gone.
func actOn(ctx context.Context, r *waiting.Reader, c chosenRetries, f func(retry.Parked) error) (done, gone int, err error) {
	listed := r.EachParked(ctx, c.route, func(m waiting.Message) bool {
		if _, ok := c.named[m.ID]; len(c.named) > 0 && !ok || m.Fault != "" {
			return true
		}
		switch err = f(*m.Parked); {
		case err == nil:
			done++
		case errors.Is(err, retry.ErrFired):
			gone, err = gone+1, nil
		default:
			err = fmt.Errorf("%s: %w", m.ID, err)
		}
		return err == nil
	})
	return done, gone, errors.Join(err, listed)
}

func newRetriesNow(o *cli.Options) *cobra.Command {
	var route string
	var consent cli.Consent
	c := &cobra.Command{
		Use: "now [MESSAGE…]", Short: "make parked messages due now",
		Long: `Now makes parked messages due at once: those that are named, or all of a route. Each is replaced in one step, so that it
is neither lost nor comes twice; a message that came due meanwhile is not changed. The messages start unless their key or
route waits: see relay status, and relay resume, which ends such waits.`,
		Example: "  relay retries now ORDERS/17\n  relay retries now --route billing",
		RunE: func(c *cobra.Command, a []string) error {
			return withRetries(o, c, a, route, func(ctx context.Context, r *waiting.Reader, chosen chosenRetries) error {
				if len(a) == 0 {
					if err := consent.Confirm(ctx, c, fmt.Sprintf("Make %d parked %s of route %s due now?", chosen.n, cli.Plural(chosen.n, "message"), cli.Printable(route))); err != nil {
						return err
					}
				}
				done, gone, err := actOn(ctx, r, chosen, func(p retry.Parked) error {
					_, err := r.Stream.Hasten(ctx, p, time.Now())
					return err
				})
				fmt.Fprintf(c.OutOrStdout(), "%d due now\n", done)
				if gone > 0 {
					fmt.Fprintf(c.OutOrStdout(), "%d were due already\n", gone)
				}
				return err
			})
		},
	}
	c.Flags().StringVar(&route, "route", "", "all parked messages of this route")
	consent.Flag(c, "do not ask")
	return c
}

// holdFor is how long a message that is being discarded cannot come due. If this command ends in the middle of it, the message
// comes back after that time, as if nothing had happened but its dead letter.
const holdFor = time.Hour

func newRetriesDiscard(o *cli.Options) *cobra.Command {
	var route string
	var consent cli.Consent
	c := &cobra.Command{
		Use: "discard [MESSAGE…]", Short: "make parked messages dead letters, instead of trying them again",
		Long: `Discard takes parked messages out of their retries: those that are named, or all of a route. Each becomes a dead letter, with
the reason operator; relay dlq replays it or removes it for good. Who did so, and how many there were, is kept for 30 days: relay
replay ls.`,
		Example: "  relay retries discard ORDERS/17\n  relay retries discard --route billing",
		RunE: func(c *cobra.Command, a []string) error {
			return withRetries(o, c, a, route, func(ctx context.Context, r *waiting.Reader, chosen chosenRetries) error {
				if chosen.n == 0 {
					fmt.Fprintln(c.OutOrStdout(), "0 discarded")
					return nil
				}
				if err := consent.Confirm(ctx, c, fmt.Sprintf("Make dead letters of %d parked %s?", chosen.n, cli.Plural(chosen.n, "message"))); err != nil {
					return err
				}
				store, err := dlq.Attach(ctx, r.Client.JS, r.Client.Config.Service)
				if err != nil {
					return err
				}
				record := &dlq.Job{Kind: dlq.RetriesDiscard, Filter: dlq.Filter{Route: route}, Why: joined(a)}
				return cli.Record(ctx, r.Client, record, chosen.n, func() (int, error) {
					done, gone, err := actOn(ctx, r, chosen, func(p retry.Parked) error {
						err := discardParked(ctx, r, store, p)
						if err == nil {
							noteDiscarded(record, p)
						}
						return err
					})
					fmt.Fprintf(c.OutOrStdout(), "%d discarded: they are dead letters now\n", done)
					if gone > 0 {
						fmt.Fprintf(c.OutOrStdout(), "%d came due meanwhile\n", gone)
					}
					return done, err
				})
			})
		},
	}
	c.Flags().StringVar(&route, "route", "", "all parked messages of this route")
	consent.Flag(c, "do not ask")
	return c
}

// discardParked holds the message first, so that it does not come due between its dead letter and its removal.
func discardParked(ctx context.Context, r *waiting.Reader, store *dlq.Store, p retry.Parked) error {
	e := dlq.Entry{Origin: p.Origin, Reason: dlq.Operator, Instance: cli.Caller(), Header: p.Header, Data: p.Data}
	if dlq.BodyElsewhere(p.Wrapped()) {
		var err error
		if e.Header, e.Data, err = store.Body(ctx, p.Wrapped()); err != nil {
			return err
		}
	}
	number, err := r.Stream.Hasten(ctx, p, time.Now().Add(holdFor))
	if err != nil {
		return err
	}
	prefix := ""
	for _, rt := range r.Client.Config.Routes {
		if rt.Name == p.Route {
			prefix = rt.DeadLetter.Prefix
		}
	}
	if err := store.Put(ctx, prefix, e); err != nil {
		return err
	}
	return r.Stream.Unpark(ctx, number)
}

// noteDiscarded counts a message for the audit of its durable. A replay counts as one that came when it is delivered: what is still on the
// subject of its hand-over may never have been.
func noteDiscarded(record *dlq.Job, p retry.Parked) {
	if p.Handed() {
		return
	}
	if record.Discarded == nil {
		record.Discarded = make(map[string]int)
	}
	record.Discarded[p.Stream+"/"+p.Route]++
}

func joined(ids []string) string {
	text := ""
	for i, id := range ids {
		if i == 20 {
			return text + fmt.Sprintf(" and %d more", len(ids)-i)
		}
		text += " " + id
	}
	return text
}

func withRetries(o *cli.Options, c *cobra.Command, a []string, route string, f func(context.Context, *waiting.Reader, chosenRetries) error) error {
	return o.WithClient(c, func(ctx context.Context, cl *cli.Client) error {
		r, err := waiting.Open(ctx, cl)
		if err != nil {
			return err
		}
		chosen, err := choose(ctx, r, a, route, func(text string) { fmt.Fprintln(c.ErrOrStderr(), "relay: note: "+cli.Printable(text)) })
		if err != nil {
			return err
		}
		return f(ctx, r, chosen)
	})
}
