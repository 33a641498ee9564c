package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/access"
	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/planned"
)

func newPlan(o *cli.Options) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "plan", Short: "what a configuration would change, before it runs", Args: cli.Args(cobra.NoArgs),
		Long: `Plan compares a configuration with the instances that run and with what is on the server: which routes are added, change while they
go on, begin anew, or end; which durables are made or changed, and how many messages they deliver; what is delivered again although it
was handled before; and what stays behind of routes that the configuration does not have. It changes nothing. Messages are counted as they are at
the moment. The exit code is 0, or 1 when relay would not start with the configuration or would refuse to reload it, or 2 when it is invalid.`,
		Example: `  relay plan -c new.yaml
  relay plan -c new.yaml --json`,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := o.Load()
			if err != nil {
				return err
			}
			cl, err := o.Open(c.Context(), access.Operator)
			if err != nil {
				return err
			}
			defer cl.Close()
			var p *preview
			err = cl.Permitted(c.Context(), access.Operator, func(ctx context.Context) (err error) {
				p, err = planOf(ctx, cl, cfg)
				return err
			})
			if err != nil {
				return err
			}
			if asJSON {
				err = cli.PrintJSON(c.OutOrStdout(), p)
			} else {
				p.print(c.OutOrStdout())
			}
			if err == nil && p.Refused() {
				return cli.ErrSaid
			}
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// preview is what relay plan says.
type preview struct {
	Service   string   `json:"service"`
	Instances []string `json:"instances"`
	// Routes are those that change, by how, beside those that do not. Without an instance that runs there are none.
	Routes []routeChange `json:"routes"`
	// Rest is how other keys differ from those of the instances.
	Rest []string `json:"rest"`
	*planned.Plan
}

// What a configuration changes of a route, the most first.
const (
	routeAdded   = "added"
	routeRemoved = "removed"
	routeAnew    = "begins anew"
	routeLive    = "changes live"
	routeSame    = "unchanged"
	routeUnknown = "unknown" // an instance of an earlier version does not say what it runs
)

// routeChange is what changes of a route, on these instances.
type routeChange struct {
	Route     string   `json:"route"`
	Does      string   `json:"does"`
	Instances []string `json:"instances"`
	// With are the routes because of which it begins anew: they share its durable.
	With []string `json:"with,omitempty"`
}

// stub stands for the handlers of routes that only say what they would do.
type stub struct{}

func (stub) Handle(context.Context, *consumer.Msg) error {
	return errors.New("this relay does not run")
}
func (stub) HandleBatch(context.Context, []*consumer.Msg) ([]error, error) {
	return nil, errors.New("this relay does not run")
}

func planOf(ctx context.Context, cl *cli.Client, cfg *config.Config) (*preview, error) {
	var list []consumer.Route
	for _, rc := range cfg.Routes {
		rt := rc.Route
		rt.Handler = stub{}
		if rc.Fallback != nil {
			f := rc.Fallback.Fallback
			f.Handler = stub{}
			rt.Fallback = &f
		}
		list = append(list, rt)
	}
	r, err := consumer.New(cl.Conn.Conn, consumerConfig(cfg, slog.New(slog.DiscardHandler)), list...)
	if err != nil {
		return nil, err
	}
	p := &preview{Service: cfg.Service, Instances: []string{}, Routes: []routeChange{}, Rest: []string{}}
	made, faults, err := missingStreams(ctx, cl.JS, cfg.Streams)
	if err != nil {
		return nil, err
	}
	if p.Plan, err = r.Plan(ctx, made...); err != nil {
		return nil, err
	}
	p.Faults = append(faults, p.Faults...)
	running, err := control.AskStatus(ctx, cl.Conn.Conn, cfg.Service)
	if err != nil && !errors.Is(err, control.ErrNobody) {
		return nil, err
	}
	for _, s := range running {
		p.Instances = append(p.Instances, s.Instance)
		p.compare(s, cfg)
	}
	slices.SortFunc(p.Routes, func(a, b routeChange) int { return cmp.Or(cmp.Compare(a.Route, b.Route), cmp.Compare(a.Does, b.Does)) })
	return p, nil
}

// compare says what the configuration changes of an instance.
func (p *preview) compare(s consumer.Status, cfg *config.Config) {
	note := func(route, does string, with ...string) {
		i := slices.IndexFunc(p.Routes, func(c routeChange) bool { return c.Route == route && c.Does == does && slices.Equal(c.With, with) })
		if i < 0 {
			i = len(p.Routes)
			p.Routes = append(p.Routes, routeChange{Route: route, Does: does, With: with})
		}
		p.Routes[i].Instances = append(p.Routes[i].Instances, s.Instance)
	}
	routes, rest := cfg.Digests()
	does, there := map[string]string{}, map[string]bool{}
	for _, rt := range s.Routes {
		there[rt.Name] = true
		next, stays := routes[rt.Name]
		switch {
		case !stays:
			does[rt.Name] = routeRemoved
		case rt.Config == nil:
			does[rt.Name] = routeUnknown
		case rt.Config.Anew != next.Anew:
			does[rt.Name] = routeAnew
		case rt.Config.Live != next.Live:
			does[rt.Name] = routeLive
		default:
			does[rt.Name] = routeSame
		}
	}
	for _, rt := range cfg.Routes {
		if !there[rt.Name] {
			does[rt.Name] = routeAdded
		}
	}
	// Routes that share a durable begin and end together.
	with := map[string][]string{}
	share := func(names []string) {
		for _, a := range names {
			for _, b := range names {
				if (does[a] == routeSame || does[a] == routeLive) && (does[b] == routeAnew || does[b] == routeAdded || does[b] == routeRemoved) && !slices.Contains(with[a], b) {
					with[a] = append(with[a], b)
				}
			}
		}
	}
	for _, d := range p.Durables {
		share(d.Routes)
	}
	durables := map[string][]string{}
	for _, rt := range s.Routes {
		durables[rt.Stream+"/"+rt.Durable] = append(durables[rt.Stream+"/"+rt.Durable], rt.Name)
	}
	for _, names := range durables {
		share(names)
	}
	for name, what := range does {
		if len(with[name]) > 0 {
			slices.Sort(with[name])
			what = routeAnew
		}
		note(name, what, with[name]...)
	}
	if s.Config == nil || s.Config.Rest == (control.ConfigDigest{}) {
		return
	}
	if s.Config.Rest.Live != rest.Live {
		p.Rest = append(p.Rest, s.Instance+": keys outside routes differ; relay reload applies them")
	}
	if s.Config.Rest.Anew != rest.Anew || s.Config.Rest.Own != "" && s.Config.Rest.Own != rest.Own {
		p.Rest = append(p.Rest, s.Instance+": keys outside routes differ; a restart of relay applies them")
	}
}

func (p *preview) print(w io.Writer) {
	if len(p.Instances) == 0 {
		fmt.Fprintf(w, "no instance of service %s runs\n", cli.Printable(p.Service))
	}
	unchanged := 0
	for _, c := range p.Routes {
		if c.Does == routeSame {
			unchanged++
			continue
		}
		line := fmt.Sprintf("route %s: %s", cli.Printable(c.Route), c.Does)
		if len(c.With) > 0 {
			line += ", as it shares its durable with " + strings.Join(c.With, ", ")
		}
		if len(c.Instances) < len(p.Instances) {
			line += " (on " + cli.Printable(strings.Join(c.Instances, ", ")) + ")"
		}
		if c.Does == routeUnknown {
			line += ": an instance of an earlier version does not say which settings it runs"
		}
		fmt.Fprintln(w, line)
	}
	if unchanged > 0 {
		fmt.Fprintf(w, "%d %s unchanged\n", unchanged, cli.Plural(unchanged, "route"))
	}
	for _, line := range p.Rest {
		fmt.Fprintln(w, cli.Printable(line))
	}
	for _, s := range p.Streams {
		fmt.Fprintf(w, "stream %s is created, for %s\n", cli.Printable(s.Stream), cli.Printable(strings.Join(s.Subjects, ", ")))
	}
	for _, d := range p.Durables {
		printDurable(w, d)
	}
	for _, d := range p.Divided {
		printDivided(w, d)
	}
	for _, o := range p.Left {
		fmt.Fprintf(w, "stays behind: %s\n", cli.Printable(o.String()))
	}
	for _, fault := range p.Faults {
		fmt.Fprintf(w, "! %s\n", cli.Printable(fault))
	}
	if p.Refused() {
		fmt.Fprintln(w, "relay would refuse this configuration, or needs another flag or key: see the lines with !")
	}
}

func printDivided(w io.Writer, d planned.Divided) {
	name := fmt.Sprintf("route %s has %d partitions in stream %s", cli.Printable(d.Route), d.Partitions, cli.Printable(d.Stream))
	switch d.Does {
	case planned.Made:
		fmt.Fprintf(w, "%s, which is created: the copies begin %s\n", name, d.Start)
	case planned.Changed:
		fmt.Fprintf(w, "%s, which is created, in place of %d partitions: messages that wait are handed over to the new ones, in the order of their keys\n", name, d.Before)
	default:
		fmt.Fprintf(w, "%s, and goes on\n", name)
	}
}

func printDurable(w io.Writer, d planned.Durable) {
	name := fmt.Sprintf("durable %s on %s (%s %s)", cli.Printable(d.Durable), cli.Printable(d.Stream), cli.Plural(len(d.Routes), "route"), cli.Printable(strings.Join(d.Routes, ", ")))
	switch d.Does {
	case planned.Refused:
		for _, why := range d.Why {
			fmt.Fprintf(w, "%s\n  ! %s\n", name, cli.Printable(why))
		}
		return
	case planned.Made:
		fmt.Fprintf(w, "%s is created", name)
		if d.Start != "" {
			fmt.Fprintf(w, ", start: %s", d.Start)
		}
		fmt.Fprintf(w, ": it delivers %d %s that the stream holds\n", d.Waits, cli.Plural(d.Waits, "message"))
	case planned.Changed:
		fmt.Fprintf(w, "%s goes on, and is changed: %d wait, %d outstanding\n", name, d.Waits, d.Outstanding)
	default:
		fmt.Fprintf(w, "%s goes on: %d wait, %d outstanding\n", name, d.Waits, d.Outstanding)
	}
	if d.Service != "" {
		fmt.Fprintf(w, "  service %s made it: the retries and dead letters of that service stay there, and while an instance of it runs, each message goes to one of the two services\n", cli.Printable(d.Service))
	}
	for _, why := range d.Why {
		fmt.Fprintf(w, "  changed: %s\n", cli.Printable(why))
	}
	if d.Skipped > 0 {
		fmt.Fprintf(w, "  skipped: %d %s from before its start; no route gets them\n", d.Skipped, cli.Plural(d.Skipped, "message"))
	}
	for _, a := range d.Again {
		if d.Repeats() {
			fmt.Fprintf(w, "  ! delivered again: %s. A reload refuses this; to have them delivered again: relay reload --deliver-again, or start: {seq: 1}\n", cli.Printable(a.String()))
		} else {
			fmt.Fprintf(w, "  delivered again: %s\n", cli.Printable(a.String()))
		}
	}
	for _, c := range d.CatchUp {
		fmt.Fprintf(w, "  catches up: %d %s on %s, which it has passed, go to route %s", c.Messages, cli.Plural(c.Messages, "message"), cli.Printable(c.Subjects), cli.Printable(c.Route))
		if c.Skipped > 0 {
			fmt.Fprintf(w, "; %d from before its start are skipped", c.Skipped)
		}
		fmt.Fprintln(w)
	}
	if len(d.Unwanted) > 0 {
		fmt.Fprintf(w, "  goes on to deliver %s, which no route has here: such messages are kept in the retry stream; relay run --adopt ends that, once all instances have this configuration\n",
			cli.Printable(strings.Join(d.Unwanted, ", ")))
	}
}
