package instances

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/console"
	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/control"
)

// gridView is what is known of the instances, as --json prints it.
type gridView struct{ console.Grid }

// The states of an instance.
const (
	gridReady    = "ready"
	gridNotReady = "not ready"
	gridDraining = "draining"
	gridStopped  = "stopped"
	gridVanished = "vanished"
)

func newGridCmd(o *cli.Options) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "grid", Short: "show the instances of the service, those that vanished, and which routes each one has", Args: cli.Args(cobra.NoArgs),
		Long: `Grid shows the instances of the service side by side: version, configuration, how much each does, which routes with instances: one it has or
stands by for, and its part of limits of the service. Instances that ended within the last hour are named, too: stopped ones ended by themselves,
vanished ones were killed or cut off. The messages that a vanished instance was handling come again after ack_wait at most.

  RUN   handlers at work      HELD  messages in memory      DONE  since its start
  /S    DONE in a second      SHARE of what all do in a second`,
		RunE: func(c *cobra.Command, _ []string) error {
			var view gridView
			if err := o.WithClient(c, func(ctx context.Context, cl *cli.Client) error {
				answers, err := ask(ctx, c, cl, control.StatusRequest{Keys: -1})
				if err != nil && !errors.Is(err, control.ErrNobody) {
					return err
				}
				view = currentGrid(ctx, cl, answers.Instances)
				return nil
			}); err != nil {
				return err
			}
			if asJSON {
				return cli.PrintJSON(c.OutOrStdout(), view)
			}
			view.print(c.OutOrStdout(), time.Now())
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// currentGrid is what the instances say, and the ledgers of those that do not answer.
func currentGrid(ctx context.Context, c *cli.Client, list []consumer.Status) gridView {
	view := gridOf(list, time.Now())
	quiet, err := quietInstances(ctx, c, list)
	if err != nil {
		view.Notes = append(view.Notes, "the ledger cannot be read, so instances that vanished may be missing here: "+err.Error())
	}
	view.vanished(quiet)
	return view
}

// gridOf is what the instances say of themselves and of those that are gone.
func gridOf(list []consumer.Status, now time.Time) gridView {
	v := gridView{console.Grid{Instances: []console.GridInstance{}, Routes: []console.GridRoute{}, Limits: []console.GridLimit{}}}
	total := 0.0
	for _, s := range list {
		i := console.GridInstance{Instance: s.Instance, State: gridReady, Version: s.Version}
		switch {
		case s.Draining:
			i.State = gridDraining
		case !s.Ready:
			i.State = gridNotReady
		}
		if s.Config != nil {
			i.Config = s.Config.Hash
		}
		for _, rt := range s.Routes {
			i.Running, i.Held, i.Done = i.Running+rt.Running, i.Held+rt.Window+rt.Stash, i.Done+rt.Acked
			switch {
			case rt.Partitions != nil && len(rt.Partitions.Here) > 0:
				i.Holds = append(i.Holds, rt.Name+" "+console.Ranges(rt.Partitions.Here))
			case rt.Partitions != nil:
				i.StandsBy = append(i.StandsBy, rt.Name)
			case rt.Holder == nil:
			case rt.Holder.Here:
				i.Holds = append(i.Holds, rt.Name)
			default:
				i.StandsBy = append(i.StandsBy, rt.Name)
			}
		}
		if !s.Started.IsZero() {
			i.Started = &s.Started
			if up := now.Sub(s.Started).Seconds(); up > 0 {
				i.PerSecond = float64(i.Done) / up
			}
		}
		total += i.PerSecond
		v.Instances = append(v.Instances, i)
		for _, l := range s.Limits {
			if l.Scope == "service" {
				v.part(s.Instance, l)
			}
		}
	}
	for i := range v.Instances {
		if total > 0 {
			v.Instances[i].Share = v.Instances[i].PerSecond / total
		}
	}
	for _, s := range list {
		for _, m := range s.Gone {
			state := gridVanished
			if m.Clean {
				state = gridStopped
			}
			v.add(console.GridInstance{Instance: m.Instance, State: state, Version: m.Version, Gone: &m.Gone})
		}
	}
	for _, o := range routesOver(list) {
		if o.on[0].Partitions != nil {
			v.Routes = append(v.Routes, o.partitions())
			continue
		}
		if holder, fence, standbys, leased := holderOf(list, o.name); leased {
			v.Routes = append(v.Routes, console.GridRoute{Route: o.name, Holder: holder, Fence: fence, Standbys: standbys})
		}
	}
	v.note()
	return v
}

// partitions says which instances have which.
func (o over) partitions() console.GridRoute {
	r := console.GridRoute{Route: o.name, Partitions: map[string][]int{}}
	newest, had := 0, map[int]bool{}
	for i, on := range o.on {
		p := on.Partitions
		if p == nil || p.Generation < newest {
			continue
		}
		if p.Generation > newest {
			newest, r.Of, r.Partitions, had = p.Generation, p.Count, map[string][]int{}, map[int]bool{}
		}
		if len(p.Here) > 0 {
			r.Partitions[o.instances[i]] = p.Here
		}
		for _, n := range p.Here {
			had[n] = true
		}
	}
	for n := range r.Of {
		if !had[n] {
			r.Nobody = append(r.Nobody, n)
		}
	}
	return r
}

// add notes an instance that is gone, once, unless it is back. What says more of it wins.
func (v *gridView) add(i console.GridInstance) {
	at := slices.IndexFunc(v.Instances, func(o console.GridInstance) bool { return o.Instance == i.Instance })
	switch {
	case at < 0:
		v.Instances = append(v.Instances, i)
	case v.Instances[at].Gone != nil:
		v.Instances[at].InHand = max(v.Instances[at].InHand, i.InHand)
	}
}

func (v *gridView) part(instance string, l control.LimitStatus) {
	at := slices.IndexFunc(v.Limits, func(o console.GridLimit) bool { return o.Limit == l.Name })
	if at < 0 {
		at = len(v.Limits)
		v.Limits = append(v.Limits, console.GridLimit{Limit: l.Name, Concurrency: l.Concurrency, Rate: l.Rate})
	}
	v.Limits[at].Add(instance, l.Part, l.PartRate)
}

// note says what differs between the instances.
func (v *gridView) note() {
	versions := make(map[string][]string)
	configs := make(map[string][]string)
	for _, i := range v.Instances {
		if i.Gone == nil {
			versions[cli.Or(i.Version, "an earlier version")] = append(versions[cli.Or(i.Version, "an earlier version")], i.Instance)
			if i.Config != "" {
				configs[i.Config] = append(configs[i.Config], i.Instance)
			}
		}
	}
	if len(versions) > 1 {
		v.Notes = append(v.Notes, "instances run different versions: "+groups(versions))
	}
	if len(configs) > 1 {
		v.Notes = append(v.Notes, "instances run different configurations: "+groups(configs)+"; relay status shows the differences")
	}
	for _, r := range v.Routes {
		switch {
		case r.Of > 0 && len(r.Nobody) > 0:
			v.Notes = append(v.Notes, fmt.Sprintf("no instance has partitions %s of route %s now: see relay status %s", console.Ranges(r.Nobody), r.Route, r.Route))
		case r.Of > 0 && len(r.Partitions) == 1 && len(v.Instances) == 1:
			v.Notes = append(v.Notes, "one instance has all partitions of route "+r.Route+": when that instance ends, no message of the route is handled until another instance starts")
		case r.Of > 0:
		case r.Holder == "":
			v.Notes = append(v.Notes, "no instance has route "+r.Route+" now: see relay status "+r.Route)
		case len(r.Standbys) == 0:
			v.Notes = append(v.Notes, "no instance stands by for route "+r.Route+": when instance "+r.Holder+" ends, no message of the route is handled until another instance starts")
		}
	}
}

func groups(of map[string][]string) string {
	var list []string
	for what, who := range of {
		slices.Sort(who)
		list = append(list, what+" ("+strings.Join(who, ", ")+")")
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// vanishedAfter is for how long an instance that wrote nothing into the ledger counts as one that vanished, if it does not answer.
const vanishedAfter = 5 * time.Second

// rememberedFor is for how long one that vanished is named.
const rememberedFor = time.Hour

// quietInstances are those that the ledgers name, which did not end by themselves and do not answer.
func quietInstances(ctx context.Context, c *cli.Client, running []consumer.Status) (list []console.GridInstance, err error) {
	book, err := audit.Attach(ctx, c.JS, c.Config.Service)
	if errors.Is(err, jetstream.ErrBucketNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	records, _, err := book.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		for _, i := range r.Instances {
			quiet := time.Since(i.At)
			if quiet < vanishedAfter || quiet > rememberedFor || slices.ContainsFunc(running, func(s consumer.Status) bool { return s.Instance == i.Name }) {
				continue
			}
			at := slices.IndexFunc(list, func(o console.GridInstance) bool { return o.Instance == i.Name })
			if at < 0 {
				at = len(list)
				list = append(list, console.GridInstance{Instance: i.Name, State: gridVanished})
			}
			if of := &list[at]; of.Gone == nil || of.Gone.Before(i.At) {
				of.Gone = &i.At
			}
			list[at].InHand += max(0, i.Hand)
		}
	}
	return list, nil
}

func (v *gridView) vanished(list []console.GridInstance) {
	for _, i := range list {
		v.add(i)
	}
	slices.SortStableFunc(v.Instances, func(a, b console.GridInstance) int {
		switch {
		case (a.Gone == nil) != (b.Gone == nil):
			if a.Gone == nil {
				return -1
			}
			return 1
		case a.Gone != nil:
			return b.Gone.Compare(*a.Gone)
		}
		return strings.Compare(a.Instance, b.Instance)
	})
}

func (v gridView) print(w io.Writer, now time.Time) {
	rows := [][]string{{"INSTANCE", "STATE", "SINCE", "VERSION", "RUN", "HELD", "DONE", "/S", "SHARE", "HOLDS", "STANDS BY"}}
	for _, i := range v.Instances {
		row := []string{i.Instance, i.State, "-", cli.Or(i.Version, "-"), "-", "-", "-", "-", "-", "-", "-"}
		switch {
		case i.Gone != nil:
			row[2] = now.Sub(*i.Gone).Round(time.Second).String()
			if i.InHand > 0 {
				row[5] = fmt.Sprintf("%d in hand", i.InHand)
			}
		default:
			if i.Started != nil {
				row[2] = now.Sub(*i.Started).Round(time.Second).String()
			}
			row[4], row[5], row[6] = strconv.Itoa(i.Running), strconv.Itoa(i.Held), strconv.FormatUint(i.Done, 10)
			row[7], row[8] = fmt.Sprintf("%.1f", i.PerSecond), fmt.Sprintf("%.0f %%", 100*i.Share)
			row[9], row[10] = cli.Or(strings.Join(i.Holds, ", "), "-"), cli.Or(strings.Join(i.StandsBy, ", "), "-")
		}
		rows = append(rows, row)
	}
	if len(v.Instances) == 0 {
		fmt.Fprintln(w, "no instance answers, and none is remembered")
	} else {
		cli.Table(w, rows)
	}
	if len(v.Routes) > 0 {
		fmt.Fprintln(w)
		rows = [][]string{{"ROUTE", "HOLDER", "FENCE", "STANDBYS"}}
		for _, r := range v.Routes {
			if r.Of > 0 {
				rows = append(rows, []string{fmt.Sprintf("%s (%d partitions)", r.Route, r.Of), cli.Or(r.Shared(), "-"), "-", "-"})
				continue
			}
			rows = append(rows, []string{r.Route, cli.Or(r.Holder, "-"), strconv.FormatUint(r.Fence, 10), cli.Or(strings.Join(r.Standbys, ", "), "-")})
		}
		cli.Table(w, rows)
	}
	if len(v.Limits) > 0 {
		fmt.Fprintln(w)
		rows = [][]string{{"LIMIT", "OF", "PARTS"}}
		for _, l := range v.Limits {
			rows = append(rows, []string{l.Limit, l.Of(), l.Held()})
		}
		cli.Table(w, rows)
	}
	for _, n := range v.Notes {
		fmt.Fprintf(w, "note: %s\n", cli.Printable(n))
	}
}
