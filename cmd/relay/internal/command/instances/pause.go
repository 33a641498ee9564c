package instances

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/access"
	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/eventkind"
	"github.com/relaymq/relay/internal/orders"
	"github.com/relaymq/relay/internal/subject"
)

// act is what an operator wants of a route, or of one of its keys.
type act struct {
	cli.OrderFlags
	state string
	trial bool
}

func newPause(o *cli.Options) *cobra.Command {
	a := act{state: orders.Paused}
	c := &cobra.Command{
		Use: "pause ROUTE [KEY]", Short: "start no message of a route, or of one of its keys, until resume", Args: cli.Args(cobra.RangeArgs(1, 2)),
		Long: `A pause holds on every instance, and over restarts, until resume. Handlers that run finish. The messages of a paused route
go back to their stream; those of a paused key are given back for an hour, and asked for again by resume. The command returns when
all instances that answer follow the pause, and says which do not.`,
		Example: `  relay pause billing --why 'database migration'
  relay pause billing orders.us.created`,
		RunE: func(c *cobra.Command, names []string) error { return a.do(o, c, names) },
	}
	a.Flags(c)
	return c
}

func newResume(o *cli.Options) *cobra.Command {
	a := act{state: orders.Running}
	c := &cobra.Command{
		Use: "resume ROUTE [KEY]", Short: "end a pause and every wait, and try again now", Args: cli.Args(cobra.RangeArgs(1, 2)),
		Long: `Resume ends at once whatever keeps the messages of a route, or of one of its keys, from starting: a pause, the wait after
failures, a Retry-After, what RateLimit headers asked for, the suspension of keys that gave up, the stop of a route that failed. It says what it ended on each
instance. What waited is tried with one message first; if that fails, it waits again. With a ROUTE alone, keys that operators
paused are resumed, too, and named. The delays of single messages go on.

A route that was suspended because nearly all answers were dead (dead_trip) flows at once, and its messages can be dead-lettered
again. With --trial relay starts one message now: if the answer is dead again, the message stays, and the route stays suspended.`,
		Example: `  relay resume billing
  relay resume billing --trial
  relay resume billing orders.us.created`,
		RunE: func(c *cobra.Command, names []string) error {
			if a.trial && len(names) == 2 {
				return fmt.Errorf("%w: --trial is for a route: name no key", cli.ErrUsage)
			}
			return a.do(o, c, names)
		},
	}
	a.Flags(c)
	c.Flags().BoolVar(&a.trial, "trial", false, "start one message of a suspended route first")
	return c
}

// outcome is what became of an act.
type outcome struct {
	Order    orders.Order    `json:"order"`
	Key      string          `json:"key,omitempty"`
	Revision uint64          `json:"revision"`
	Follow   []string        `json:"follow"`                 // instances
	Behind   []string        `json:"behind"`                 // instances, with what they follow instead
	Ended    []control.Woken `json:"ended,omitempty"`        // by resume
	Keys     []orders.Order  `json:"resumed_keys,omitempty"` // that were paused by themselves, with their orders
	Notes    []string        `json:"notes,omitempty"`
}

// followTimeout is how long the instances may take to follow.
const followTimeout = 15 * time.Second

// do gives the order.
func (a act) do(o *cli.Options, c *cobra.Command, names []string) error {
	ctx, cancel := context.WithTimeout(c.Context(), cli.ActTimeout)
	defer cancel()
	cl, err := o.Open(ctx, access.Operator)
	if err != nil {
		return err
	}
	defer cl.Close()
	return cl.Permitted(ctx, access.Operator, func(ctx context.Context) error { return a.on(ctx, cl, c, names) })
}

func (a act) on(ctx context.Context, cl *cli.Client, c *cobra.Command, names []string) error {
	order := orders.Order{Route: names[0], State: a.state, Why: a.Why, By: cli.Or(a.As, cli.Caller()), Trial: a.trial}
	if len(names) == 2 {
		order.Key = []byte(names[1])
	}
	out, err := giveOrder(ctx, cl, order, c.ErrOrStderr())
	if err != nil {
		return err
	}
	if a.JSON {
		err = cli.PrintJSON(c.OutOrStdout(), out)
	} else {
		out.print(c.OutOrStdout())
	}
	if err == nil && len(out.Behind) > 0 {
		err = fmt.Errorf("the order is stored, but not followed yet by %d %s; see relay status", len(out.Behind), cli.Plural(len(out.Behind), "instance"))
	}
	return err
}

// giveOrder stores the order and waits until the running instances follow it. What they answer may be missing or wrong: the order
// is stored all the same.
func giveOrder(ctx context.Context, c *cli.Client, order orders.Order, notes io.Writer) (*outcome, error) {
	order.User, order.At = control.NATSUser(ctx, c.Conn.Conn), time.Now().UTC()
	out := &outcome{Order: order, Follow: []string{}, Behind: []string{}}
	q := control.StatusRequest{Keys: -1}
	if order.Key != nil {
		out.Key = string(order.Key)
		q.Key = &out.Key
	}
	answers, err := control.Ask(ctx, c.Conn.Conn, c.Config.Service, q)
	complain(notes, answers.Bad)
	if err != nil && ctx.Err() != nil {
		return nil, err
	}
	if err := knownRoute(c, answers.Instances, order.Route); err != nil {
		return nil, err
	}
	if order.Key != nil {
		note, err := knownKey(answers.Instances, order.Route, out.Key)
		if err != nil {
			return nil, err
		}
		if note != "" && order.State == orders.Paused {
			out.Notes = append(out.Notes, note)
		}
	}
	bucket, err := orders.Open(ctx, c.JS, c.Config.Service, c.Config.NATS.Replicas)
	if err != nil {
		return nil, err
	}
	if order.State == orders.Running && order.Key == nil {
		if out.Keys, err = bucket.GiveToPausedKeys(ctx, order); err != nil {
			return nil, err
		}
	}
	if out.Revision, err = bucket.Give(ctx, order); err != nil {
		return nil, err
	}
	c.Tell(eventkind.Audit, event.Data{Route: order.Route, Key: out.Key, Why: order.Why, By: order.By, Text: out.what() + " is " + order.State})
	out.follow(ctx, c, bucket)
	if order.State == orders.Running {
		woken, bad, err := control.Wake(ctx, c.Conn.Conn, c.Config.Service, order)
		complain(notes, bad)
		if err != nil && !errors.Is(err, control.ErrNobody) {
			return nil, fmt.Errorf("the order is stored, but waits could not be ended: %w", err)
		}
		out.Ended = woken
	}
	return out, nil
}

// follow waits until every instance that answers follows the order: by its revision, in the same bucket.
func (out *outcome) follow(ctx context.Context, cl *cli.Client, bucket *orders.Bucket) {
	ctx, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	for ctx.Err() == nil {
		answers, err := control.Ask(ctx, cl.Conn.Conn, cl.Config.Service, control.StatusRequest{Keys: -1, Route: out.Order.Route})
		if err != nil && len(answers.Instances) == 0 {
			return // nobody: whoever starts later reads the order first
		}
		follow, behind := []string{}, []string{}
		for _, s := range answers.Instances {
			switch {
			case !s.OrdersBucket.Equal(bucket.Created):
				behind = append(behind, fmt.Sprintf("%s (it follows a bucket of orders that was made %s, and this one was made %s)",
					s.Instance, cli.When(s.OrdersBucket), cli.When(bucket.Created)))
			case s.Orders < out.Revision:
				behind = append(behind, fmt.Sprintf("%s (it follows order %d, and this is %d)", s.Instance, s.Orders, out.Revision))
			default:
				follow = append(follow, s.Instance)
			}
		}
		if out.Follow, out.Behind = follow, behind; len(behind) == 0 {
			return
		}
	}
}

// what names what the order is about.
func (out *outcome) what() string {
	what := "route " + out.Order.Route
	if out.Order.Key != nil {
		what = "key " + out.Key + " of " + what
	}
	return what
}

func (out *outcome) print(w io.Writer) {
	what := cli.Printable(out.what())
	if n := len(out.Follow); n > 0 || len(out.Behind) > 0 {
		fmt.Fprintf(w, "%s is %s on %d running %s\n", what, out.Order.State, n, cli.Plural(n, "instance"))
	} else {
		fmt.Fprintf(w, "%s will be %s: the order is stored, and no instance answers now\n", what, out.Order.State)
	}
	for _, b := range out.Behind {
		fmt.Fprintf(w, "  not on %s\n", cli.Printable(b))
	}
	for _, o := range out.Keys {
		fmt.Fprintf(w, "  key %s was paused by %s\n", cli.Printable(keyName(string(o.Key))), cli.Printable(whoPaused(o)))
	}
	for _, in := range out.Ended {
		if text := ended(in); text != "" {
			fmt.Fprintf(w, "  %s: %s\n", cli.Printable(in.Instance), cli.Printable(text))
		}
	}
	for _, n := range out.Notes {
		fmt.Fprintf(w, "note: %s\n", cli.Printable(n))
	}
}

// ended says what an instance ended; nothing when there was nothing to end.
func ended(in control.Woken) string {
	var parts []string
	if in.Since != nil || in.State != "" && in.State != control.StateFlowing && in.State != control.StatePaused {
		text := "the route was " + in.State
		if in.Since != nil {
			text += " since " + cli.When(*in.Since)
		}
		if in.Why != "" {
			text += ": " + in.Why
		}
		parts = append(parts, text)
	}
	if in.Waiting > 0 {
		parts = append(parts, fmt.Sprintf("%d waiting %s tried now", in.Waiting, cli.Plural(in.Waiting, "key")))
	}
	if in.Suspended > 0 {
		parts = append(parts, fmt.Sprintf("%d suspended %s tried now", in.Suspended, cli.Plural(in.Suspended, "key")))
	}
	return strings.Join(parts, "; ")
}

// knownRoute refuses a name that neither the configuration nor a running instance knows.
func knownRoute(cl *cli.Client, running []consumer.Status, name string) error {
	var known []string
	for _, rt := range cl.Config.Routes {
		known = append(known, rt.Name)
	}
	for _, s := range running {
		for _, r := range s.Routes {
			known = append(known, r.Name)
		}
	}
	return cli.Mistyped(name, known, "there is no route "+cli.Printable(name))
}

// knownKey refuses a key that no message of the route can have, and notes one that no instance knows now.
func knownKey(running []consumer.Status, route, key string) (note string, err error) {
	seen, known := false, false
	for _, s := range running {
		r, ok := routeOf(s, route)
		if !ok {
			continue
		}
		seen, known = true, known || r.KeyKnown
		switch {
		case r.Key == "route":
			return "", fmt.Errorf("%w: route %s has one key for all its messages: name the route alone", cli.ErrUsage, route)
		case r.Key == "subject" && len(r.Subjects) > 0 && !slices.ContainsFunc(r.Subjects, func(p string) bool { return subject.Matches(p, key) }):
			return "", fmt.Errorf("%w: no message of route %s can have the key %s: its key is the subject, and its subjects are %s",
				cli.ErrUsage, route, cli.Printable(key), cli.Printable(strings.Join(r.Subjects, ", ")))
		}
	}
	if seen && !known {
		note = "no instance has messages of this key now; the order applies when they come"
	}
	return note, nil
}
