package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/access"
	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/consumer"
)

// reloadFlags say who is asked.
type reloadFlags struct {
	all, json bool
	again     bool
	instance  string
	timeout   time.Duration
}

func newReload(o *cli.Options) *cobra.Command {
	var f reloadFlags
	c := &cobra.Command{
		Use: "reload", Short: "have running instances read their configuration again", Args: cli.Args(cobra.NoArgs),
		Long: `Reload has the instances on this host read their own configuration file again, waits, and prints what changed. Everything is
checked first, on the server too; when something is wrong, nothing changes and the instance goes on with what it has. Routes that
change begin anew by themselves, and others are not disturbed. Keys that take effect only when the process is started again are
listed. A route that was renamed, and whose new durable would deliver what was handled before, is refused without --deliver-again; relay
plan says that before. An invalid file does not stop the command: the instances read their own file, refuse an invalid one, and say so in log, events and metrics. The exit code is 0 when all instances did it, 1 when one refused or did not answer, 2 when a configuration is invalid.`,
		Example: `  relay reload
  relay reload --all`,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, invalid := o.LoadClient()
			if invalid != nil {
				// The instances are to hear of it, for they tell of it where somebody looks. Most often it is the file that they read.
				var there bool
				if cfg, there = config.Reach(o.FromClient()); !there {
					return fmt.Errorf("%w\n(the instances were not asked, because the file does not say where their server is: name it with --server, or reload one process with kill -HUP)", invalid)
				}
			}
			cl, err := cli.OpenWith(c.Context(), cfg, access.Operator)
			if err != nil {
				return errors.Join(invalid, err)
			}
			defer cl.Close()
			reports, err := f.ask(c.Context(), cl.Conn.Conn, cl.Config.Service)
			if err != nil {
				return errors.Join(invalid, err)
			}
			if err = f.print(c.OutOrStdout(), reports); invalid != nil {
				return fmt.Errorf("%w\n(the instances were asked all the same: each reads its own file)", invalid)
			}
			return err
		},
	}
	c.Flags().BoolVar(&f.all, "all", false, "all instances of the service, on any host: each reads its own file")
	c.Flags().StringVar(&f.instance, "instance", "", "only this instance, on any host")
	c.Flags().BoolVar(&f.again, "deliver-again", false, "permit routes whose new durables deliver what was handled before (relay plan says how much)")
	c.Flags().DurationVar(&f.timeout, "timeout", 2*time.Minute, "how long to wait for instances that have begun")
	c.Flags().BoolVar(&f.json, "json", false, "print JSON")
	return c
}

const (
	// reloadFirst is how long to wait for the first instance to say that it begins: a host may be busy.
	reloadFirst = 5 * time.Second
	// reloadOthers is how long to wait for others after that.
	reloadOthers = time.Second
)

// ask has instances reload, and waits for those that said that they begin. Who says nothing in the end has no outcome.
func (f reloadFlags) ask(ctx context.Context, nc *nats.Conn, service string) ([]reloadReport, error) {
	q := reloadRequest{Instance: f.instance, By: cli.Caller(), DeliverAgain: f.again}
	if !f.all && f.instance == "" {
		q.Host, _ = os.Hostname()
	}
	data, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := nc.PublishRequest(reloadSubject(service), inbox, data); err != nil {
		return nil, err
	}
	reports := make(map[string]reloadReport)
	heard, all := time.Now().Add(reloadFirst), time.Now().Add(f.timeout)
	for {
		waiting := false
		for _, rep := range reports {
			waiting = waiting || rep.Outcome == ""
		}
		until := heard
		if waiting {
			until = all
		} else if time.Now().After(heard) {
			break
		}
		next, cancel := context.WithDeadline(ctx, until)
		m, err := sub.NextMsgWithContext(next)
		cancel()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if errors.Is(err, nats.ErrNoResponders) || err != nil && !waiting || time.Now().After(all) {
			break
		}
		var rep reloadReport
		if err != nil || json.Unmarshal(m.Data, &rep) != nil || rep.Instance == "" || reports[rep.Instance].Outcome != "" {
			continue
		}
		if len(reports) == 0 {
			heard = time.Now().Add(reloadOthers)
		}
		reports[rep.Instance] = rep
	}
	if len(reports) == 0 {
		switch {
		case f.instance != "":
			return nil, fmt.Errorf("no instance %s of service %s answers: relay status names those that run", f.instance, service)
		case q.Host != "":
			return nil, fmt.Errorf("no instance of service %s on this host (%s) answers: relay status names those that run; --all asks those on other hosts", service, q.Host)
		}
		return nil, fmt.Errorf("no instance of service %s answers: is relay running?", service)
	}
	var list []reloadReport
	for _, name := range slices.Sorted(maps.Keys(reports)) {
		list = append(list, reports[name])
	}
	return list, nil
}

func (f reloadFlags) print(w io.Writer, reports []reloadReport) error {
	var refused, invalid int
	for i := range reports {
		rep := &reports[i]
		switch rep.Outcome {
		case reloadDone:
		case reloadInvalid:
			invalid++
		default:
			refused++
		}
	}
	if f.json {
		if err := cli.PrintJSON(w, reports); err != nil {
			return err
		}
	} else {
		for _, rep := range reports {
			rep.print(w)
		}
	}
	switch {
	case invalid > 0:
		return fmt.Errorf("%w%w", cli.ErrSaid, cli.ErrInvalid)
	case refused > 0:
		return cli.ErrSaid
	}
	return nil
}

func (rep reloadReport) print(w io.Writer) {
	name := cli.Printable(rep.Instance)
	switch rep.Outcome {
	case reloadDone:
		fmt.Fprintf(w, "%s  done in %s: generation %d, configuration %s\n", name, cli.Printable(rep.Took), rep.Generation, cli.Or(cli.Printable(rep.Hash), "without a file"))
	case "":
		fmt.Fprintf(w, "%s  began, and has not reported the result: see relay status and the log of the instance\n", name)
	default:
		fmt.Fprintf(w, "%s  %s; nothing changed, generation %d goes on\n", name, cli.Printable(rep.Outcome), rep.Generation)
	}
	for _, line := range slices.Concat(rep.Faults, rep.Warnings) {
		fmt.Fprintf(w, "  ! %s\n", cli.Printable(line))
	}
	said := false
	list := func(what string, names []string) {
		if len(names) > 0 {
			said = true
			fmt.Fprintf(w, "  %s: %s\n", what, cli.Printable(strings.Join(names, ", ")))
		}
	}
	would := ""
	if rep.Outcome != reloadDone {
		would = "to be "
	}
	list(would+"added", rep.Added)
	list("changed live", rep.Routes.Live)
	list(would+"changed", slices.DeleteFunc(slices.Clone(rep.Changed), func(name string) bool { return slices.Contains(rep.Routes.Live, name) }))
	list("restarted too, because they share a durable with changed routes", rep.Routes.Restarted)
	list(would+"removed", rep.Removed)
	for _, left := range rep.Routes.Removed {
		if left.Copies != "" {
			fmt.Fprintf(w, "    what stays of %s: stream %s, to which the server goes on copying: relay orphans ls\n", cli.Printable(left.Route), cli.Printable(left.Copies))
			continue
		}
		fmt.Fprintf(w, "    what stays of %s: durable %s on %s%s\n", cli.Printable(left.Route), cli.Printable(left.Durable), cli.Printable(left.Stream), remains(left))
	}
	list("in effect now", rep.Live)
	list("needs a restart of relay", rep.NeedsRestart)
	for _, route := range slices.Sorted(maps.Keys(rep.Routes.Waiting)) {
		fmt.Fprintf(w, "  %s waits, and goes on by itself: %s\n", cli.Printable(route), cli.Printable(rep.Routes.Waiting[route]))
	}
	if n := rep.Routes.Interrupted; n > 0 {
		fmt.Fprintf(w, "  %d %s did not end within the drain and spent no attempt\n", n, cli.Plural(n, "handler"))
	}
	if rep.Outcome == reloadDone && !said {
		fmt.Fprintln(w, "  nothing differs")
	}
}

// remains says how much is left of a route that was removed.
func remains(left consumer.Removed) string {
	var parts []string
	count := func(n uint64, what string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, what))
		}
	}
	if b := left.Backlog; b != nil {
		count(b.Stream, "not delivered")
		count(uint64(b.Outstanding), "outstanding")
		if b.Parked != nil {
			count(*b.Parked, "parked")
		}
	}
	if left.DeadLetters != nil {
		count(uint64(*left.DeadLetters), "dead letters")
	}
	if len(parts) == 0 {
		return ""
	}
	return ", " + strings.Join(parts, ", ")
}
