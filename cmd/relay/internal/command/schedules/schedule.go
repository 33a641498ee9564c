package schedules

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/access"
	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/internal/schedule"
)

// mostDelayed is how many delayed messages are listed.
const mostDelayed = 100

// Command is relay schedule.
func Command(o *cli.Options) *cobra.Command {
	c := &cobra.Command{
		Use: "schedule", Short: "delayed messages, and messages that are published at set times", Args: cli.Args(cli.KnownCommand),
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newScheduleLs(o), newScheduleShow(o), newScheduleRun(o), newSchedulePause(o), newScheduleResume(o), newScheduleRm(o))
	return c
}

// scheduled is a schedule with what the instances recorded of it.
type scheduled struct {
	schedule.Schedule
	State string `json:"state"` // waiting, publishing, paused, not begun, unreadable, other definition, or not in the configuration
	// Error says why the record cannot be read, and what to do.
	Error string `json:"error,omitempty"`
	// Next are the runs to come; none while it is paused.
	Next   []time.Time     `json:"next"`
	Record schedule.Record `json:"record"`
}

const (
	notConfigured = "not in the configuration"
	// otherDefinition: the instances run it at other times than this file says.
	otherDefinition = "other definition"
)

func (s *scheduled) judge(n int) (err error) {
	s.Next = []time.Time{}
	switch {
	case s.Subject == "":
		s.State = notConfigured
		return nil
	case s.Record.Paused != nil:
		s.State = "paused"
		return nil
	case s.Record.Timing != "" && s.Record.Timing != s.Timing():
		s.State = otherDefinition
	case s.Record.Claim != nil:
		s.State = "publishing"
	case s.Record.Next.IsZero():
		s.State = "not begun"
	default:
		s.State = "waiting"
	}
	s.Next, err = s.Upcoming(time.Now(), n)
	return err
}

func lastRun(r *schedule.Run) string {
	if r == nil {
		return "-"
	}
	return cli.When(r.Run) + " " + r.Result
}

func (s scheduled) timing() string {
	switch {
	case s.Every > 0:
		return "every " + s.Every.String()
	case s.Cron == "":
		return "-"
	}
	return strings.TrimSpace(s.Cron + " " + s.TZ)
}

func configured(cfg *config.Config, name string) (schedule.Schedule, error) {
	var known []string
	for _, s := range cfg.Schedules {
		if s.Name == name {
			return s, nil
		}
		known = append(known, s.Name)
	}
	if err := cli.Mistyped(name, known, "there is no schedule "+cli.Printable(name)); err != nil {
		return schedule.Schedule{}, err
	}
	return schedule.Schedule{}, fmt.Errorf("%w: the configuration has no schedules", cli.ErrUsage)
}

// withRecords calls f with the records of the service.
func withRecords(o *cli.Options, c *cobra.Command, f func(context.Context, *cli.Client, *schedule.Records) error) error {
	ctx, cancel := context.WithTimeout(c.Context(), cli.ActTimeout)
	defer cancel()
	cl, err := o.Open(ctx, access.Operator)
	if err != nil {
		return err
	}
	defer cl.Close()
	return cl.Permitted(ctx, access.Operator, func(ctx context.Context) error {
		records, err := schedule.OpenRecords(ctx, cl.JS, cl.Config.Service, cl.Config.NATS.Replicas)
		if err != nil {
			return err
		}
		return f(ctx, cl, records)
	})
}

func newScheduleLs(o *cli.Options) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "ls", Short: "list schedules, and delayed messages that wait", Args: cli.Args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			return withRecords(o, c, func(ctx context.Context, cl *cli.Client, records *schedule.Records) error {
				out := struct {
					Schedules []scheduled        `json:"schedules"`
					Delayed   []schedule.Delayed `json:"delayed"`
					More      bool               `json:"more_delayed"`
				}{[]scheduled{}, []schedule.Delayed{}, false}
				names, err := records.Names(ctx)
				if err != nil {
					return err
				}
				list := slices.Clone(cl.Config.Schedules)
				for _, name := range names {
					if !slices.ContainsFunc(list, func(s schedule.Schedule) bool { return s.Name == name }) {
						list = append(list, schedule.Schedule{Name: name})
					}
				}
				for _, s := range list {
					one := scheduled{Schedule: s}
					if one.Record, _, err = records.Get(ctx, s.Name); errors.Is(err, schedule.ErrUnreadable) {
						one.State, one.Error, one.Next = "unreadable", err.Error(), []time.Time{}
					} else if err != nil {
						return err
					} else if err := one.judge(1); err != nil {
						return err
					}
					out.Schedules = append(out.Schedules, one)
				}
				waiting, more, err := schedule.AttachLater(cl.JS, cl.Config.Service).List(ctx, mostDelayed)
				if err != nil {
					return err
				}
				out.Delayed, out.More = append(out.Delayed, waiting...), more
				w := c.OutOrStdout()
				if asJSON {
					return cli.PrintJSON(w, out)
				}
				if len(out.Schedules)+len(out.Delayed) == 0 {
					fmt.Fprintln(w, "no schedules, and no delayed messages")
				}
				if len(out.Schedules) > 0 {
					rows := [][]string{{"SCHEDULE", "WHEN", "STATE", "NEXT", "LAST", "SUBJECT"}}
					for _, s := range out.Schedules {
						next := "-"
						if len(s.Next) > 0 {
							next = cli.InZone(s.Schedule, s.Next[0])
						}
						rows = append(rows, []string{s.Name, s.timing(), s.State, next, lastRun(s.Record.Last), cli.Or(s.Subject, "-")})
					}
					cli.Table(w, rows)
				}
				if len(out.Delayed) > 0 {
					rows := [][]string{{"DELAYED", "DUE", "BYTES", "SUBJECT"}}
					for _, d := range out.Delayed {
						due := cli.When(d.Due)
						if d.Overdue {
							due += ", and no stream has stored it"
						}
						rows = append(rows, []string{d.ID, due, fmt.Sprint(d.Size), d.Subject})
					}
					cli.Table(w, rows)
				}
				for _, s := range out.Schedules {
					if s.Error != "" {
						fmt.Fprintln(w, cli.Printable(s.Error))
					}
				}
				if out.More {
					fmt.Fprintf(w, "more than %d delayed messages wait: these are the first\n", mostDelayed)
				}
				return nil
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func newScheduleShow(o *cli.Options) *cobra.Command {
	var asJSON bool
	var n int
	c := &cobra.Command{
		Use: "show NAME|ID", Short: "show a schedule of the configuration, with its next runs, or a delayed message", Args: cli.Args(cobra.ExactArgs(1)),
		Long: `Show computes the next runs of a schedule from the configuration alone, so that you can look at a schedule before relay runs with it.
It writes nothing. The records of the instances follow when the server can be reached. For a name that the configuration does not have,
show looks for delayed messages of that id.`,
		RunE: func(c *cobra.Command, a []string) error {
			cfg, err := o.LoadClient()
			if err != nil {
				return err
			}
			one := scheduled{}
			if one.Schedule, err = configured(cfg, a[0]); err != nil {
				list := delayedOf(o, c, a[0])
				switch {
				case len(list) == 0: // it is no schedule: that is what is said
					return err
				case asJSON:
					return cli.PrintJSON(c.OutOrStdout(), list)
				}
				printDelayed(c.OutOrStdout(), list)
				return nil
			}
			known := readRecord(c.Context(), o, &one.Record, a[0])
			if err := one.judge(min(max(n, 1), 100)); err != nil {
				return err
			}
			if known != nil {
				one.State = "unknown: " + known.Error()
			}
			if asJSON {
				return cli.PrintJSON(c.OutOrStdout(), one)
			}
			rows := [][]string{{"schedule", one.Name}, {"when", one.timing()}, {"subject", one.Subject}, {"catch up", one.CatchUp}, {"state", one.State}}
			if p := one.Record.Paused; p != nil {
				rows = append(rows, []string{"paused", fmt.Sprintf("by %s at %s %s", p.By, cli.When(p.At), p.Why)})
			}
			rows = append(rows, []string{"last run", lastRun(one.Record.Last)})
			for _, t := range one.Next {
				rows = append(rows, []string{"next run", cli.InZone(one.Schedule, t)})
			}
			cli.Fields(c.OutOrStdout(), rows)
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().IntVarP(&n, "runs", "n", 5, "how many runs to show, at most 100")
	return c
}

// delayedOf are the delayed messages of an id, as far as they can be found.
func delayedOf(o *cli.Options, c *cobra.Command, id string) (list []schedule.Delayed) {
	if schedule.ValidateID(id) != nil {
		return nil
	}
	err := o.WithClient(c, func(ctx context.Context, cl *cli.Client) (err error) {
		list, err = schedule.AttachLater(cl.JS, cl.Config.Service).Find(ctx, id)
		return err
	})
	if err != nil {
		return nil
	}
	return list
}

func printDelayed(w io.Writer, list []schedule.Delayed) {
	for _, d := range list {
		state := "waits for its time"
		if d.Overdue {
			state = "is due, but no stream has stored it: relay retries within a minute (relay status says why)"
		}
		cli.Fields(w, [][]string{{"delayed message", d.ID}, {"subject", d.Subject}, {"due", cli.When(d.Due)}, {"bytes", fmt.Sprint(d.Size)}, {"stored", cli.When(d.Stored)}, {"state", state}})
	}
}

// readRecord reads the record, and writes nothing.
func readRecord(ctx context.Context, o *cli.Options, rec *schedule.Record, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	cl, err := o.Open(ctx, access.Operator)
	if err != nil {
		return err
	}
	defer cl.Close()
	return cl.Permitted(ctx, access.Operator, func(ctx context.Context) error {
		records, err := schedule.AttachRecords(ctx, cl.JS, cl.Config.Service)
		if errors.Is(err, jetstream.ErrBucketNotFound) {
			return nil
		}
		if err == nil {
			*rec, _, err = records.Get(ctx, name)
		}
		return err
	})
}

// orderCommand is a command that changes the record of a schedule, and prints what is recorded now.
func orderCommand(o *cli.Options, use, short, long, said string, change func(*schedule.Record, *schedule.Order)) *cobra.Command {
	var a cli.OrderFlags
	c := &cobra.Command{
		Use: use + " NAME", Short: short, Long: long, Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, names []string) error {
			return withRecords(o, c, func(ctx context.Context, cl *cli.Client, records *schedule.Records) error {
				if _, err := configured(cl.Config, names[0]); err != nil {
					return err
				}
				order := &schedule.Order{By: cli.Or(a.As, cli.Caller()), Why: a.Why, At: time.Now().UTC()}
				rec, err := records.Change(ctx, names[0], func(r *schedule.Record) { change(r, order) })
				if err != nil {
					return err
				}
				if a.JSON {
					return cli.PrintJSON(c.OutOrStdout(), rec)
				}
				_, err = fmt.Fprintf(c.OutOrStdout(), "schedule %s %s\n", names[0], said)
				return err
			})
		},
	}
	a.Flags(c)
	return c
}

func newScheduleRun(o *cli.Options) *cobra.Command {
	return orderCommand(o, "run", "have a schedule run once now, beside its other runs",
		`Run stores the order; an instance publishes the message within moments, also while the schedule is paused. Without an instance it waits
for one.`, "runs as soon as an instance sees it", func(r *schedule.Record, by *schedule.Order) { r.Asked = by })
}

func newSchedulePause(o *cli.Options) *cobra.Command {
	return orderCommand(o, "pause", "stop the runs of a schedule until resume",
		`A pause holds on every instance, and over restarts, until resume.`, "is paused", func(r *schedule.Record, by *schedule.Order) { r.Paused = by })
}

func newScheduleResume(o *cli.Options) *cobra.Command {
	return orderCommand(o, "resume", "end the pause of a schedule",
		`Resume lets the schedule run again from its next time on. Runs that were due while it was paused are left out.`, "goes on with its next run",
		func(r *schedule.Record, _ *schedule.Order) {
			if r.Paused != nil {
				r.Paused, r.Claim, r.Next = nil, nil, time.Time{}
			}
		})
}

func newScheduleRm(o *cli.Options) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "rm ID|NAME", Short: "take back a delayed message, or forget a schedule that the configuration no longer has", Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, a []string) error {
			if err := schedule.ValidateID(a[0]); err != nil {
				return fmt.Errorf("%w: %w", cli.ErrUsage, err)
			}
			return withRecords(o, c, func(ctx context.Context, cl *cli.Client, records *schedule.Records) error {
				_, _, unreadable := records.Get(ctx, a[0])
				if _, err := configured(cl.Config, a[0]); err == nil && !errors.Is(unreadable, schedule.ErrUnreadable) {
					return fmt.Errorf("%w: schedule %s is in the configuration: take it out there, or pause it", cli.ErrUsage, a[0])
				}
				removed, err := schedule.AttachLater(cl.JS, cl.Config.Service).Remove(ctx, a[0])
				if err != nil {
					return err
				}
				names, err := records.Names(ctx)
				if err != nil {
					return err
				}
				if slices.Contains(names, a[0]) {
					if err := records.Remove(ctx, a[0]); err != nil {
						return err
					}
					removed++
				}
				if removed == 0 {
					return fmt.Errorf("no delayed message and no schedule has the name %s", a[0])
				}
				if asJSON {
					return cli.PrintJSON(c.OutOrStdout(), struct {
						Removed int `json:"removed"`
					}{removed})
				}
				_, err = fmt.Fprintf(c.OutOrStdout(), "%s is removed\n", a[0])
				return err
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
