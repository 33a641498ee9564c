package program

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/access"
	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/schedule"
)

// mostDelayed is how many delayed messages are listed.
const mostDelayed = 100

func newSchedule(o *options) *cobra.Command {
	c := &cobra.Command{
		Use: "schedule", Short: "messages that are published later, or again and again", Args: args(knownCommand),
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

// inZone shows a run in the time zone of its schedule.
func inZone(s schedule.Schedule, t time.Time) string {
	zone, err := time.LoadLocation(s.TZ)
	if err != nil || t.IsZero() {
		return "-"
	}
	return t.In(zone).Format("2006-01-02 15:04:05 MST")
}

func lastRun(r *schedule.Run) string {
	if r == nil {
		return "-"
	}
	return when(r.Run) + " " + r.Result
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
	if near := config.Nearest(name, known); near != "" {
		return schedule.Schedule{}, fmt.Errorf("%w: there is no schedule %s; did you mean %s?", errUsage, printable(name), printable(near))
	}
	return schedule.Schedule{}, fmt.Errorf("%w: the configuration has no schedule %s", errUsage, printable(name))
}

// withRecords calls f with the records of the service.
func (o *options) withRecords(c *cobra.Command, f func(context.Context, *client, *schedule.Records) error) error {
	ctx, cancel := context.WithTimeout(c.Context(), actTimeout)
	defer cancel()
	cl, err := o.open(ctx, access.Operator)
	if err != nil {
		return err
	}
	defer cl.close()
	return cl.permitted(ctx, access.Operator, func(ctx context.Context) error {
		records, err := schedule.OpenRecords(ctx, cl.js, cl.cfg.Service, cl.cfg.NATS.Replicas)
		if err != nil {
			return err
		}
		return f(ctx, cl, records)
	})
}

func newScheduleLs(o *options) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "ls", Short: "list schedules, and delayed messages that wait", Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			return o.withRecords(c, func(ctx context.Context, cl *client, records *schedule.Records) error {
				out := struct {
					Schedules []scheduled        `json:"schedules"`
					Delayed   []schedule.Delayed `json:"delayed"`
					More      bool               `json:"more_delayed"`
				}{[]scheduled{}, []schedule.Delayed{}, false}
				names, err := records.Names(ctx)
				if err != nil {
					return err
				}
				list := slices.Clone(cl.cfg.Schedules)
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
				waiting, more, err := schedule.AttachLater(cl.js, cl.cfg.Service).List(ctx, mostDelayed)
				if err != nil {
					return err
				}
				out.Delayed, out.More = append(out.Delayed, waiting...), more
				w := c.OutOrStdout()
				if asJSON {
					return printJSON(w, out)
				}
				if len(out.Schedules)+len(out.Delayed) == 0 {
					fmt.Fprintln(w, "no schedules, and no delayed messages")
				}
				if len(out.Schedules) > 0 {
					rows := [][]string{{"SCHEDULE", "WHEN", "STATE", "NEXT", "LAST", "SUBJECT"}}
					for _, s := range out.Schedules {
						next := "-"
						if len(s.Next) > 0 {
							next = inZone(s.Schedule, s.Next[0])
						}
						rows = append(rows, []string{s.Name, s.timing(), s.State, next, lastRun(s.Record.Last), or(s.Subject, "-")})
					}
					table(w, rows)
				}
				if len(out.Delayed) > 0 {
					rows := [][]string{{"DELAYED", "DUE", "BYTES", "SUBJECT"}}
					for _, d := range out.Delayed {
						due := when(d.Due)
						if d.Overdue {
							due += ", and no stream has taken it"
						}
						rows = append(rows, []string{d.ID, due, fmt.Sprint(d.Size), d.Subject})
					}
					table(w, rows)
				}
				for _, s := range out.Schedules {
					if s.Error != "" {
						fmt.Fprintln(w, printable(s.Error))
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

func newScheduleShow(o *options) *cobra.Command {
	var asJSON bool
	var n int
	c := &cobra.Command{
		Use: "show NAME|ID", Short: "show a schedule of the configuration, with its next runs, or a delayed message", Args: args(cobra.ExactArgs(1)),
		Long: `Show of a name that the configuration does not have looks for delayed messages of that id. Of a schedule it computes the next runs from the configuration alone, so that a schedule can be looked at before relay ever runs with it. It
writes nothing. What the instances recorded follows when the server can be reached.`,
		RunE: func(c *cobra.Command, a []string) error {
			cfg, err := o.read(true)
			if err != nil {
				return err
			}
			one := scheduled{}
			if one.Schedule, err = configured(cfg, a[0]); err != nil {
				if found, looked := o.showDelayed(c, a[0], asJSON); found || looked != nil {
					return looked
				}
				return err
			}
			known := o.recorded(c.Context(), &one.Record, a[0])
			if err := one.judge(min(max(n, 1), 100)); err != nil {
				return err
			}
			if known != nil {
				one.State = "unknown: " + known.Error()
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), one)
			}
			rows := [][]string{{"schedule", one.Name}, {"when", one.timing()}, {"subject", one.Subject}, {"catch up", one.CatchUp}, {"state", one.State}}
			if p := one.Record.Paused; p != nil {
				rows = append(rows, []string{"paused", fmt.Sprintf("by %s at %s %s", p.By, when(p.At), p.Why)})
			}
			rows = append(rows, []string{"last run", lastRun(one.Record.Last)})
			for _, t := range one.Next {
				rows = append(rows, []string{"next run", inZone(one.Schedule, t)})
			}
			fields(c.OutOrStdout(), rows)
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().IntVarP(&n, "runs", "n", 5, "how many runs to show, at most 100")
	return c
}

// showDelayed prints the delayed messages of an id, if there are any.
func (o *options) showDelayed(c *cobra.Command, id string, asJSON bool) (found bool, err error) {
	if schedule.ValidateID(id) != nil {
		return false, nil
	}
	var list []schedule.Delayed
	err = o.withClient(c, func(ctx context.Context, cl *client) (err error) {
		list, err = schedule.AttachLater(cl.js, cl.cfg.Service).Find(ctx, id)
		return err
	})
	if err != nil || len(list) == 0 {
		return false, nil // it is no schedule: that is what is said
	}
	if asJSON {
		return true, printJSON(c.OutOrStdout(), list)
	}
	for _, d := range list {
		state := "waits for its time"
		if d.Overdue {
			state = "is due, and no stream has taken it: it is tried again, a minute later at most (relay status says why)"
		}
		fields(c.OutOrStdout(), [][]string{{"delayed message", d.ID}, {"subject", d.Subject}, {"due", when(d.Due)}, {"bytes", fmt.Sprint(d.Size)}, {"stored", when(d.Stored)}, {"state", state}})
	}
	return true, nil
}

// recorded reads the record, and writes nothing.
func (o *options) recorded(ctx context.Context, rec *schedule.Record, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	cl, err := o.open(ctx, access.Operator)
	if err != nil {
		return err
	}
	defer cl.close()
	return cl.permitted(ctx, access.Operator, func(ctx context.Context) error {
		records, err := schedule.AttachRecords(ctx, cl.js, cl.cfg.Service)
		if errors.Is(err, jetstream.ErrBucketNotFound) {
			return nil
		}
		if err == nil {
			*rec, _, err = records.Get(ctx, name)
		}
		return err
	})
}

// order is a command that changes the record of a schedule, and prints what is recorded now.
func (o *options) order(use, short, long, said string, change func(*schedule.Record, *schedule.Order)) *cobra.Command {
	var a act
	c := &cobra.Command{
		Use: use + " NAME", Short: short, Long: long, Args: args(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, names []string) error {
			return o.withRecords(c, func(ctx context.Context, cl *client, records *schedule.Records) error {
				if _, err := configured(cl.cfg, names[0]); err != nil {
					return err
				}
				order := &schedule.Order{By: or(a.as, caller()), Why: a.why, At: time.Now().UTC()}
				rec, err := records.Change(ctx, names[0], func(r *schedule.Record) { change(r, order) })
				if err != nil {
					return err
				}
				if a.json {
					return printJSON(c.OutOrStdout(), rec)
				}
				_, err = fmt.Fprintf(c.OutOrStdout(), "schedule %s %s\n", names[0], said)
				return err
			})
		},
	}
	a.flags(c)
	return c
}

func newScheduleRun(o *options) *cobra.Command {
	return o.order("run", "have a schedule run once now, beside its other runs",
		`Run stores the order; an instance publishes the message within moments, also while the schedule is paused. Without an instance it waits
for one.`, "runs as soon as an instance sees it", func(r *schedule.Record, by *schedule.Order) { r.Asked = by })
}

func newSchedulePause(o *options) *cobra.Command {
	return o.order("pause", "let a schedule not run until resume",
		`Pause holds on every instance, and over restarts, until resume.`, "is paused", func(r *schedule.Record, by *schedule.Order) { r.Paused = by })
}

func newScheduleResume(o *options) *cobra.Command {
	return o.order("resume", "end the pause of a schedule",
		`Resume lets the schedule run again from its next time on. Runs that were due while it was paused are left out.`, "goes on with its next run",
		func(r *schedule.Record, _ *schedule.Order) {
			if r.Paused != nil {
				r.Paused, r.Claim, r.Next = nil, nil, time.Time{}
			}
		})
}

func newScheduleRm(o *options) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "rm ID|NAME", Short: "take back a delayed message, or forget a schedule that the configuration no longer has", Args: args(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, a []string) error {
			if err := schedule.ValidateID(a[0]); err != nil {
				return fmt.Errorf("%w: %w", errUsage, err)
			}
			return o.withRecords(c, func(ctx context.Context, cl *client, records *schedule.Records) error {
				_, _, unreadable := records.Get(ctx, a[0])
				if _, err := configured(cl.cfg, a[0]); err == nil && !errors.Is(unreadable, schedule.ErrUnreadable) {
					return fmt.Errorf("%w: schedule %s is in the configuration: take it out there, or pause it", errUsage, a[0])
				}
				removed, err := schedule.AttachLater(cl.js, cl.cfg.Service).Remove(ctx, a[0])
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
					return fmt.Errorf("nothing waits under %s", a[0])
				}
				if asJSON {
					return printJSON(c.OutOrStdout(), struct {
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
