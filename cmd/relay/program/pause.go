package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/access"
	"github.com/relaymq/relay/cmd/relay/internal/config"
	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/subject"
)

// act is what an operator wants of a route, or of one of its keys.
type act struct {
	state, why, as string
	json, trial    bool
}

func newPause(o *options) *cobra.Command {
	a := act{state: consumer.OrderPaused}
	c := &cobra.Command{
		Use: "pause ROUTE [KEY]", Short: "let nothing of a route, or of one of its keys, start until resume", Args: args(cobra.RangeArgs(1, 2)),
		Long: `Pause holds on every instance, and over restarts, until resume. Handlers that run finish. The messages of a paused route
go back to their stream; those of a paused key are given back for an hour, and asked for again by resume. It returns when all
instances that answer follow it, and says which do not.`,
		Example: `  relay pause billing --why 'database migration'
  relay pause billing orders.us.created`,
		RunE: func(c *cobra.Command, names []string) error { return a.do(o, c, names) },
	}
	a.flags(c)
	return c
}

func newResume(o *options) *cobra.Command {
	a := act{state: consumer.OrderRunning}
	c := &cobra.Command{
		Use: "resume ROUTE [KEY]", Short: "end a pause and every wait, and try again now", Args: args(cobra.RangeArgs(1, 2)),
		Long: `Resume ends at once whatever keeps the messages of a route, or of one of its keys, from starting: a pause, the wait after
failures, a Retry-After, what RateLimit headers asked for, the suspension of keys that gave up, the stop of a route that failed. It says what it ended on each
instance. What waited is tried with one message first; if that fails, it waits again. With a ROUTE alone, keys that operators
paused are resumed, too, and named. The delays of single messages go on.

A route that was suspended because nearly all was answered with dead (dead_trip) flows at once, and believes it again. With --trial it asks
one message now: when that is dead, too, the message stays, and so does the suspension.`,
		Example: `  relay resume billing
  relay resume billing --trial
  relay resume billing orders.us.created`,
		RunE: func(c *cobra.Command, names []string) error {
			if a.trial && len(names) == 2 {
				return fmt.Errorf("%w: --trial is for a route: name no key", errUsage)
			}
			return a.do(o, c, names)
		},
	}
	a.flags(c)
	c.Flags().BoolVar(&a.trial, "trial", false, "start one message of a suspended route first")
	return c
}

func (a *act) flags(c *cobra.Command) {
	c.Flags().StringVar(&a.why, "why", "", "a reason, shown in the log and by status")
	c.Flags().StringVar(&a.as, "as", "", "who you are, for the log and status (default user@host)")
	c.Flags().BoolVar(&a.json, "json", false, "print JSON")
}

// outcome is what became of an act.
type outcome struct {
	Order    consumer.Order   `json:"order"`
	Key      string           `json:"key,omitempty"`
	Revision uint64           `json:"revision"`
	Follow   []string         `json:"follow"`                 // instances
	Behind   []string         `json:"behind"`                 // instances, with what they follow instead
	Ended    []consumer.Woken `json:"ended,omitempty"`        // by resume
	Keys     []consumer.Order `json:"resumed_keys,omitempty"` // that were paused by themselves, with their orders
	Notes    []string         `json:"notes,omitempty"`
}

// actTimeout bounds all of it, and followTimeout how long the instances may take to follow.
const (
	actTimeout    = 40 * time.Second
	followTimeout = 15 * time.Second
)

// do gives the order.
func (a act) do(o *options, c *cobra.Command, names []string) error {
	ctx, cancel := context.WithTimeout(c.Context(), actTimeout)
	defer cancel()
	cl, err := o.open(ctx, access.Operator)
	if err != nil {
		return err
	}
	defer cl.close()
	return cl.permitted(ctx, access.Operator, func(ctx context.Context) error { return a.on(ctx, cl, c, names) })
}

func (a act) on(ctx context.Context, cl *client, c *cobra.Command, names []string) error {
	order := consumer.Order{Route: names[0], State: a.state, Why: a.why, By: or(a.as, caller()), Trial: a.trial}
	if len(names) == 2 {
		order.Key = []byte(names[1])
	}
	out, err := cl.give(ctx, order, c.ErrOrStderr())
	if err != nil {
		return err
	}
	if a.json {
		err = printJSON(c.OutOrStdout(), out)
	} else {
		out.print(c.OutOrStdout())
	}
	if err == nil && len(out.Behind) > 0 {
		err = fmt.Errorf("the order is stored, but is not followed on %d %s; see relay status", len(out.Behind), plural(len(out.Behind), "instance"))
	}
	return err
}

// give stores the order and waits until the running instances follow it. What they answer may be missing or wrong: the order
// is stored all the same.
func (c *client) give(ctx context.Context, order consumer.Order, notes io.Writer) (*outcome, error) {
	order.User, order.At = consumer.NATSUser(ctx, c.conn.Conn), time.Now().UTC()
	out := &outcome{Order: order, Follow: []string{}, Behind: []string{}}
	q := consumer.StatusRequest{Keys: -1}
	if order.Key != nil {
		out.Key = string(order.Key)
		q.Key = &out.Key
	}
	answers, err := consumer.Ask(ctx, c.conn.Conn, c.cfg.Service, q)
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
		if note != "" && order.State == consumer.OrderPaused {
			out.Notes = append(out.Notes, note)
		}
	}
	orders, err := consumer.OpenOrders(ctx, c.js, c.cfg.Service, c.cfg.NATS.Replicas)
	if err != nil {
		return nil, err
	}
	if order.State == consumer.OrderRunning && order.Key == nil {
		if out.Keys, err = orders.GiveToPausedKeys(ctx, order); err != nil {
			return nil, err
		}
	}
	if out.Revision, err = orders.Give(ctx, order); err != nil {
		return nil, err
	}
	c.tell(event.Audit, event.Data{Route: order.Route, Key: out.Key, Why: order.Why, By: order.By, Text: out.what() + " is " + order.State})
	out.follow(ctx, c, orders)
	if order.State == consumer.OrderRunning {
		woken, bad, err := consumer.Wake(ctx, c.conn.Conn, c.cfg.Service, order)
		complain(notes, bad)
		if err != nil && !errors.Is(err, consumer.ErrNobody) {
			return nil, fmt.Errorf("the order is stored, but waits could not be ended: %w", err)
		}
		out.Ended = woken
	}
	return out, nil
}

// follow waits until every instance that answers follows the order: by its revision, in the same bucket.
func (out *outcome) follow(ctx context.Context, cl *client, orders *consumer.Orders) {
	ctx, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	for ctx.Err() == nil {
		answers, err := consumer.Ask(ctx, cl.conn.Conn, cl.cfg.Service, consumer.StatusRequest{Keys: -1, Route: out.Order.Route})
		if err != nil && len(answers.Instances) == 0 {
			return // nobody: whoever starts later reads the order first
		}
		follow, behind := []string{}, []string{}
		for _, s := range answers.Instances {
			switch {
			case !s.OrdersBucket.Equal(orders.Created()):
				behind = append(behind, fmt.Sprintf("%s (it follows a bucket of orders that was made %s, and this one was made %s)",
					s.Instance, when(s.OrdersBucket), when(orders.Created())))
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
	what := printable(out.what())
	if n := len(out.Follow); n > 0 || len(out.Behind) > 0 {
		fmt.Fprintf(w, "%s is %s on %d running %s\n", what, out.Order.State, n, plural(n, "instance"))
	} else {
		fmt.Fprintf(w, "%s will be %s: the order is stored, and no instance answers now\n", what, out.Order.State)
	}
	for _, b := range out.Behind {
		fmt.Fprintf(w, "  not on %s\n", printable(b))
	}
	for _, o := range out.Keys {
		fmt.Fprintf(w, "  key %s was paused by %s\n", printable(keyName(string(o.Key))), printable(whoPaused(o)))
	}
	for _, in := range out.Ended {
		if text := ended(in); text != "" {
			fmt.Fprintf(w, "  %s: %s\n", printable(in.Instance), printable(text))
		}
	}
	for _, n := range out.Notes {
		fmt.Fprintf(w, "note: %s\n", printable(n))
	}
}

// ended says what an instance ended; nothing when there was nothing to end.
func ended(in consumer.Woken) string {
	var parts []string
	if in.Since != nil || in.State != "" && in.State != consumer.RouteFlowing && in.State != consumer.RoutePaused {
		text := "it was " + in.State
		if in.Since != nil {
			text += " since " + when(*in.Since)
		}
		if in.Why != "" {
			text += ": " + in.Why
		}
		parts = append(parts, text)
	}
	if in.Waiting > 0 {
		parts = append(parts, fmt.Sprintf("%d waiting %s tried now", in.Waiting, plural(in.Waiting, "key")))
	}
	if in.Suspended > 0 {
		parts = append(parts, fmt.Sprintf("%d suspended %s tried now", in.Suspended, plural(in.Suspended, "key")))
	}
	return strings.Join(parts, "; ")
}

// knownRoute refuses a name that neither the configuration nor a running instance knows.
func knownRoute(cl *client, running []consumer.Status, name string) error {
	var known []string
	for _, rt := range cl.cfg.Routes {
		known = append(known, rt.Name)
	}
	for _, s := range running {
		for _, r := range s.Routes {
			known = append(known, r.Name)
		}
	}
	slices.Sort(known)
	known = slices.Compact(known)
	if len(known) == 0 || slices.Contains(known, name) {
		return nil
	}
	if near := config.Nearest(name, known); near != "" {
		return fmt.Errorf("%w: there is no route %s; did you mean %s?", errUsage, printable(name), printable(near))
	}
	return fmt.Errorf("%w: there is no route %s; there are %s", errUsage, printable(name), printable(strings.Join(known, ", ")))
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
			return "", fmt.Errorf("%w: route %s has one key for all its messages: name the route alone", errUsage, route)
		case r.Key == "subject" && len(r.Subjects) > 0 && !slices.ContainsFunc(r.Subjects, func(p string) bool { return subject.Matches(p, key) }):
			return "", fmt.Errorf("%w: no message of route %s can have the key %s: its key is the subject, and its subjects are %s",
				errUsage, route, printable(key), printable(strings.Join(r.Subjects, ", ")))
		}
	}
	if seen && !known {
		note = "no instance has messages of this key now; the order holds for when they come"
	}
	return note, nil
}

func caller() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}

func plural[N int | uint64](n N, noun string) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}
