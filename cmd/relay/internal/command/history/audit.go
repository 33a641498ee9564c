package history

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/retry"
)

// auditPatience is how long an audit looks again while a ledger does not balance: an instance writes what it counted every five
// seconds.
const auditPatience = 8 * time.Second

func newAudit(o *cli.Options) *cobra.Command {
	var asJSON, accept bool
	var consent cli.Consent
	c := &cobra.Command{
		Use: "audit [ROUTE]", Short: "compare what came in with what became of it, and both with what the server says", Args: cli.Args(cobra.MaximumNArgs(1)),
		Long: `Each durable has a ledger: how many messages were delivered for the first time, came back from the dead letters, were handled,
dead-lettered, dropped, and so on, counted by all instances since the ledger began. Audit compares it with what the server says waits:

  came = through + waits

Audit exits with 1 when the two differ, and says how large a difference crashes of instances can explain. It also exits with 1 when
somebody other than relay and its operators removed dead letters. While messages come and go the two cannot be compared exactly:
audit looks again for some seconds, then says so, and exits with 0. Once you know why dead letters are lost, --accept-lost sets their
count to zero.`,
		Example: "  relay audit\n  relay audit billing --json\n  relay audit --accept-lost",
		RunE: func(c *cobra.Command, a []string) error {
			if accept {
				return acceptLost(c, o, consent)
			}
			var list []audit.Balance
			var bad map[string]error
			err := o.WithClient(c, func(ctx context.Context, cl *cli.Client) (err error) {
				list, bad, err = auditAll(ctx, cl, a)
				return err
			})
			switch {
			case err != nil:
				return err
			case asJSON:
				if list == nil {
					list = []audit.Balance{}
				}
				err = cli.PrintJSON(c.OutOrStdout(), list)
			default:
				printAudit(c.OutOrStdout(), list)
			}
			if err != nil {
				return err
			}
			return auditError(list, bad)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&accept, "accept-lost", false, "count anew the dead letters that somebody else took out")
	consent.Flag(c, "do not ask, with --accept-lost")
	return c
}

// acceptLost begins the counting of lost dead letters anew.
func acceptLost(c *cobra.Command, o *cli.Options, consent cli.Consent) error {
	return o.WithDeadLetters(c, func(ctx context.Context, _ *cli.Client, store *dlq.Store) error {
		lost, err := store.Lost(ctx)
		if errors.Is(err, dlq.ErrNotFound) || err == nil && lost.AtMost == 0 {
			fmt.Fprintln(c.OutOrStdout(), "no dead letter is lost")
			return nil
		}
		if err != nil {
			return err
		}
		if err := consent.Confirm(ctx, c, fmt.Sprintf("Count lost dead letters anew? %v were lost since %s.", lost, cli.When(lost.Since))); err != nil {
			return err
		}
		if lost, err = store.AcceptLost(ctx); err == nil {
			fmt.Fprintf(c.OutOrStdout(), "%v dead letters were lost since %s; the counting begins anew\n", lost, cli.When(lost.Since))
		}
		return err
	})
}

// auditAll compares all ledgers, or those that have the route.
func auditAll(ctx context.Context, cl *cli.Client, routes []string) (list []audit.Balance, bad map[string]error, err error) {
	service := cl.Config.Service
	book, err := audit.Attach(ctx, cl.JS, service)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil, nil, fmt.Errorf("there is no ledger yet: no instance of service %s that keeps a ledger has run", cli.Printable(service))
	}
	if err != nil {
		return nil, nil, err
	}
	records, bad, err := book.List(ctx)
	if err != nil {
		return nil, nil, err
	}
	names := map[string]bool{}
	if answer, err := control.Ask(ctx, cl.Conn.Conn, service, control.StatusRequest{}); err == nil {
		for _, i := range answer.Instances {
			names[i.Instance] = true
		}
	}
	api := jetstream.DefaultAPIPrefix
	if d := cl.Config.NATS.Domain; d != "" {
		api = "$JS." + d + ".API."
	}
	a := audit.Auditor{
		JS: cl.JS, API: api, Service: service, Retry: retry.StreamName(service), Book: book,
		Lives: func(name string) bool { return names[name] },
		Operated: func(ctx context.Context, stream string, since time.Time) (map[string]audit.Counts, error) {
			jobs, err := dlq.AttachJobs(ctx, cl.JS, service)
			if errors.Is(err, jetstream.ErrBucketNotFound) {
				return nil, nil
			}
			if err != nil {
				return nil, err
			}
			list, err := jobs.List(ctx)
			return dlq.OperatedSince(list, stream, since), err
		},
	}
	slices.SortFunc(records, func(a, b *audit.Record) int {
		return cmp.Or(cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Durable, b.Durable))
	})
	streams := map[string]int{}
	for _, r := range records {
		streams[r.Stream]++
	}
	until := time.Now().Add(auditPatience)
	for _, r := range records {
		if _, has := r.Routes[strings.Join(routes, "")]; len(routes) > 0 && !has {
			continue
		}
		of := audit.OwnRoutes
		if streams[r.Stream] == 1 {
			of = audit.AllRoutes
		}
		b, err := a.Audit(ctx, r.Stream, r.Durable, of, max(0, time.Until(until)))
		if err != nil {
			return nil, nil, fmt.Errorf("durable %s on stream %s: %w", cli.Printable(r.Durable), cli.Printable(r.Stream), err)
		}
		list = append(list, b)
	}
	if err := addLosses(ctx, cl, list); err != nil {
		return nil, nil, err
	}
	if len(routes) > 0 && len(list) == 0 {
		return nil, nil, fmt.Errorf("no ledger has a route %s: relay writes the ledger of a route some seconds after the route began", cli.Printable(routes[0]))
	}
	return list, bad, nil
}

// addLosses has the balances say what somebody took out of relay's own streams.
func addLosses(ctx context.Context, cl *cli.Client, list []audit.Balance) error {
	service := cl.Config.Service
	store, err := dlq.Attach(ctx, cl.JS, service)
	var lost dlq.Loss
	if err == nil {
		lost, err = store.Lost(ctx)
	}
	switch {
	case err == nil:
		for i := range list {
			list[i].SetDeadLetters(audit.DeadLetters{Stored: lost.Entries, Since: lost.Since, AtLeast: lost.AtLeast, AtMost: lost.AtMost}, lost.String())
		}
	case !errors.Is(err, dlq.ErrNotFound) && !errors.Is(err, dlq.ErrNoStream): // an earlier version keeps no book
		return fmt.Errorf("what became of the dead letters: %w", err)
	}
	jobs, err := dlq.AttachJobs(ctx, cl.JS, service)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	edits, err := jobs.Edits(ctx)
	if err != nil {
		return err
	}
	var texts []string
	for _, e := range edits {
		if e.Stream == retry.StreamName(service) {
			texts = append(texts, fmt.Sprintf("%s: stream %s: %s (at least %d and at most %d messages)", cli.When(e.At), e.Stream, cli.Printable(e.What), e.AtLeast, e.AtMost))
		}
	}
	for i := range list {
		list[i].SetEdits(texts)
	}
	return nil
}

// auditError is what the audit ends with.
func auditError(list []audit.Balance, bad map[string]error) error {
	var differ []string
	for _, b := range list {
		if b.Verdict == audit.Explained || b.Verdict == audit.Unexplained || b.Verdict == audit.Lost {
			differ = append(differ, fmt.Sprintf("%s (%s)", cli.Printable(b.Durable), b.Verdict))
		}
	}
	var errs []error
	if len(differ) > 0 {
		errs = append(errs, fmt.Errorf("the ledger and the server differ: %s", strings.Join(differ, ", ")))
	}
	for _, key := range slices.Sorted(maps.Keys(bad)) {
		errs = append(errs, fmt.Errorf("the ledger %s cannot be read: %w", cli.Printable(key), bad[key]))
	}
	return errors.Join(errs...)
}

func deadFields(b audit.Balance) [][]string {
	d := b.DeadLetters
	if d == nil || b.Total.Dead == 0 && d.AtLeast == 0 {
		return nil
	}
	return [][]string{{"dead letters", fmt.Sprintf("%d stored, of all durables; %v lost since %s", d.Stored, dlq.Loss{AtLeast: d.AtLeast, AtMost: d.AtMost}, cli.When(d.Since))}}
}

func printAudit(w io.Writer, list []audit.Balance) {
	if len(list) == 0 {
		fmt.Fprintln(w, "no durable has a ledger yet: relay writes a ledger some seconds after a route began")
	}
	for i, b := range list {
		if i > 0 {
			fmt.Fprintln(w)
		}
		since := cli.When(b.Since)
		if b.Whole {
			since += ", before the first delivery"
		}
		t := b.Total
		came := fmt.Sprintf("%d: %d received, %d replayed", b.Carried+t.In(), t.Received, t.Replayed)
		if b.Carried > 0 {
			came += fmt.Sprintf(", %d waited when the counting began", b.Carried)
		}
		if t.MovedHere > 0 {
			came += fmt.Sprintf(", %d moved here from another route", t.MovedHere)
		}
		operated := ""
		if t.Discarded > 0 {
			operated = fmt.Sprintf(", %d discarded by operators", t.Discarded)
		}
		if t.MovedAway > 0 {
			operated += fmt.Sprintf(", %d moved to another route", t.MovedAway)
		}
		cli.Fields(w, slices.Concat([][]string{
			{"durable", b.Durable + " on stream " + b.Stream},
			{"counted since", since},
			{"came", came},
			{"through", fmt.Sprintf("%d: %d done, %d by the fallback, %d dead, %d dropped, %d expired, %d forgotten%s", t.Ended(), t.Done, t.Fallback, t.Dead, t.Dropped, t.Expired, t.Forgotten, operated)},
			{"waits", fmt.Sprintf("%d: %d outstanding, %d parked, as the server says", uint64(b.Outstanding)+b.Parked, b.Outstanding, b.Parked)},
			{"not delivered", strconv.FormatUint(b.NotDelivered, 10)},
			{"difference", strconv.FormatInt(b.Difference, 10)},
		}, deadFields(b), [][]string{{b.Verdict, b.Text}}))
		if len(b.Routes) > 1 {
			rows := [][]string{{"ROUTE", "RECEIVED", "REPLAYED", "DONE", "FALLBACK", "DEAD", "DROPPED", "EXPIRED", "FORGOTTEN", "DISCARDED", "MOVED AWAY", "MOVED HERE"}}
			for _, name := range slices.Sorted(maps.Keys(b.Routes)) {
				c, row := b.Routes[name], []string{name}
				for _, n := range []uint64{c.Received, c.Replayed, c.Done, c.Fallback, c.Dead, c.Dropped, c.Expired, c.Forgotten, c.Discarded, c.MovedAway, c.MovedHere} {
					row = append(row, strconv.FormatUint(n, 10))
				}
				rows = append(rows, row)
			}
			cli.Table(w, rows)
		}
	}
}
