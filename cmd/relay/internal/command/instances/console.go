package instances

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/console"
	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/orders"
)

// Console is what the console shows of the running instances, and asks of them: the same as the commands.
type Console struct {
	cl  *cli.Client
	log *slog.Logger
}

// NewConsole works on the connection of the service.
func NewConsole(cl *cli.Client, log *slog.Logger) *Console {
	return &Console{cl: cl, log: log}
}

// Status asks all instances.
func (b *Console) Status(ctx context.Context) (control.Answers, error) {
	return control.Ask(ctx, b.cl.Conn.Conn, b.cl.Config.Service, control.StatusRequest{})
}

// Routes says of each route what it is on all instances, what is wrong first.
func (b *Console) Routes(instances []consumer.Status, now time.Time) (list []console.Route) {
	for _, o := range routesOver(instances) {
		r := console.Route{
			Name: o.name, State: o.states(), First: o.on[0], Keys: map[string]int{}, Backlog: o.latest(),
			Run: o.sum(func(r consumer.RouteStatus) int { return r.Running }), Stuck: o.sum(func(r consumer.RouteStatus) int { return r.Stuck }),
			Held: o.sum(func(r consumer.RouteStatus) int { return r.Window + r.Stash }),
		}
		for i, on := range o.on {
			r.On = append(r.On, console.On{Instance: o.instances[i], RouteStatus: on})
			r.Done, r.Retried = r.Done+on.Acked, r.Retried+on.Retried
			r.Dead, r.Pause = cmp.Or(r.Dead, on.Stored), cmp.Or(r.Pause, on.Pause)
			for state, n := range on.Keys {
				r.Keys[state] += n
			}
			for _, k := range on.Waiting {
				r.Waiting = append(r.Waiting, console.Key{Instance: o.instances[i], KeyStatus: k})
			}
			r.More += on.WaitingMore
		}
		slices.SortStableFunc(r.Waiting, func(x, y console.Key) int { return x.Since.Compare(y.Since) })
		for _, s := range o.stills(now) {
			t := console.Still{State: s.state, Since: cli.KnownTime(s.since), Until: cli.KnownTime(s.until), Why: s.why, By: s.by, Next: s.next, On: s.on}
			if s.state == control.StateWaiting && t.Until != nil {
				t.Next = "one message is tried; all flow when it succeeds" // the page counts down
			}
			r.Still = append(r.Still, t)
		}
		list = append(list, r)
	}
	wrong := func(r console.Route) int {
		switch waits := len(r.Waiting) > 0; {
		case !r.Flows() && waits:
			return 3
		case !r.Flows():
			return 2
		case waits:
			return 1
		}
		return 0
	}
	slices.SortStableFunc(list, func(x, y console.Route) int { return wrong(y) - wrong(x) })
	return list
}

// Order pauses or resumes, and says what came of it.
func (b *Console) Order(ctx context.Context, order orders.Order) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, cli.ActTimeout)
	defer cancel()
	var notes, said bytes.Buffer
	out, err := giveOrder(ctx, b.cl, order, &notes)
	if err != nil {
		return "", cli.ForConsole(err)
	}
	b.log.Info("an operator did something in the console", "by", order.By, "what", out.what()+" is "+order.State, "why", order.Why)
	out.print(&said)
	return strings.TrimSpace(said.String() + notes.String()), nil
}

// Handover gives a route to another instance, and says what came of it.
func (b *Console) Handover(ctx context.Context, order control.HandoverOrder) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	var notes bytes.Buffer
	done, err := handOver(ctx, b.cl, order, &notes)
	switch {
	case errors.Is(err, errStillDrains):
		notes.WriteString(err.Error())
	case err != nil:
		return "", cli.ForConsole(err)
	default:
		notes.WriteString(done.String())
	}
	b.log.Info("an operator did something in the console", "by", order.By, "what", "handover of route "+order.Route, "from", order.From, "to", order.To)
	return notes.String(), nil
}

// Grid is what the answers and the ledgers say of the instances.
func (b *Console) Grid(ctx context.Context, answers control.Answers) console.Grid {
	view := currentGrid(ctx, b.cl, answers.Instances)
	for _, bad := range answers.Bad {
		view.Notes = append(view.Notes, "an answer was left out: "+bad)
	}
	return view.Grid
}
