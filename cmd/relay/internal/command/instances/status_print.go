package instances

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/orders"
)

// over is a route on all its instances.
type over struct {
	name      string
	on        []consumer.RouteStatus // one of each instance
	instances []string
}

func routesOver(list []consumer.Status) (routes []over) {
	for _, s := range list {
		for _, r := range s.Routes {
			i := slices.IndexFunc(routes, func(o over) bool { return o.name == r.Name })
			if i < 0 {
				i = len(routes)
				routes = append(routes, over{name: r.Name})
			}
			routes[i].on = append(routes[i].on, r)
			routes[i].instances = append(routes[i].instances, s.Instance)
		}
	}
	return routes
}

func (o over) sum(of func(consumer.RouteStatus) int) (n int) {
	for _, r := range o.on {
		n += of(r)
	}
	return n
}

// states says how many instances are in which state, if they differ.
func (o over) states() string {
	count := make(map[string]int)
	for _, r := range o.on {
		count[r.State]++
	}
	if len(count) == 1 {
		return o.on[0].State
	}
	return keyCounts(count)
}

// latest is the server's count that is the youngest; nil: no instance knows.
func (o over) latest() (b *control.Backlog) {
	if len(o.on) > 0 && o.on[0].Partitions != nil { // each knows of its partitions
		for _, r := range o.on {
			if r.Backlog == nil {
				continue
			}
			if b == nil {
				b = new(control.Backlog)
			}
			b.Stream, b.Outstanding = b.Stream+r.Backlog.Stream, b.Outstanding+r.Backlog.Outstanding
			if r.Backlog.Parked != nil {
				b.Parked = r.Backlog.Parked
			}
		}
		return b
	}
	for _, r := range o.on {
		if r.Backlog != nil && (b == nil || r.Backlog.At.After(b.At)) {
			b = r.Backlog
		}
	}
	return b
}

func (o over) row() []string {
	backlog, unacked, parked := "?", "?", "?"
	if b := o.latest(); b != nil {
		backlog, unacked = fmt.Sprint(b.Stream), fmt.Sprint(b.Outstanding)
		if b.Parked != nil {
			parked = fmt.Sprint(*b.Parked)
		}
	}
	run := fmt.Sprint(o.sum(func(r consumer.RouteStatus) int { return r.Running }))
	if n := o.sum(func(r consumer.RouteStatus) int { return r.Stuck }); n > 0 {
		run += fmt.Sprintf("+%d stuck", n)
	}
	keys := make(map[string]int)
	for _, r := range o.on {
		for state, n := range r.Keys {
			keys[state] += n
		}
	}
	return []string{
		o.name, o.states(), run, fmt.Sprint(o.sum(func(r consumer.RouteStatus) int { return r.Window + r.Stash })), backlog, unacked, parked,
		fmt.Sprint(o.sum(func(r consumer.RouteStatus) int { return int(r.Acked) })),
		fmt.Sprint(o.sum(func(r consumer.RouteStatus) int { return int(r.Retried) })), o.dead(), keyCounts(keys),
	}
}

func (o over) dead() string {
	stored := "?"
	for _, r := range o.on {
		if r.Stored != nil {
			stored = fmt.Sprint(*r.Stored)
		}
	}
	if n := o.sum(func(r consumer.RouteStatus) int { return int(r.Dead) }); n > 0 {
		stored += fmt.Sprintf(" (+%d)", n)
	}
	return stored
}

// printStatus prints instances as one: each, with its trouble, then the routes in total, then what stands still.
func printStatus(w io.Writer, list []consumer.Status, now time.Time) {
	printInstances(w, list, now)
	fmt.Fprintln(w)
	routes := routesOver(list)
	rows := [][]string{{"ROUTE", "STATE", "RUN", "HELD", "BACKLOG", "UNACKED", "PARKED", "DONE", "RETRIED", "DEAD", "KEYS"}}
	for _, o := range routes {
		rows = append(rows, o.row())
	}
	cli.Table(w, rows)
	for _, o := range routes {
		printStill(w, o, len(list), now)
	}
	for _, o := range routes {
		printCallers(w, o)
		printFallback(w, o, now)
	}
	printKeys(w, routes, now)
}

func printInstances(w io.Writer, list []consumer.Status, now time.Time) {
	var parked int64
	stored := uint64(0)
	for _, s := range list {
		ready := "ready"
		switch {
		case s.Draining:
			ready = "DRAINING"
		case !s.Ready:
			ready = "NOT READY"
		}
		up := ""
		if !s.Started.IsZero() { // an answer that is not relay's has none
			up = fmt.Sprintf(", up %v", now.Sub(s.Started).Round(time.Second))
		}
		fmt.Fprintf(w, "%s  %s%s\n", cli.Printable(s.Instance), ready, up)
		for _, t := range slices.Concat(s.Trouble, s.Notices) {
			fmt.Fprintf(w, "  ! %s\n", cli.Printable(t))
		}
		printConfig(w, s, now)
		parked, stored = max(parked, s.Parked), max(stored, s.Stored)
	}
	printDrift(w, list)
	if parked > 0 {
		fmt.Fprintf(w, "%d %s of the service wait in the retry stream\n", parked, cli.Plural(int(parked), "message"))
	}
	if stored > 0 {
		fmt.Fprintf(w, "%d dead %s of the service %s stored: relay dlq ls --group-by error\n", stored, cli.Plural(int(stored), "letter"), areIs(stored))
	}
}

// printConfig says of an instance what its configuration wants and does not get.
func printConfig(w io.Writer, s consumer.Status, now time.Time) {
	c := s.Config
	if c == nil {
		return
	}
	if c.Failed != "" {
		fmt.Fprintf(w, "  ! the last reload changed nothing, %v ago: %s\n", now.Sub(c.FailedAt).Round(time.Second), cli.Printable(c.Failed))
	}
	if len(c.NeedsRestart) > 0 {
		fmt.Fprintf(w, "  ! these keys changed, and take effect after a restart of relay: %s\n", cli.Printable(strings.Join(c.NeedsRestart, ", ")))
	}
}

// printDrift says when instances run different configurations, and in what these differ.
func printDrift(w io.Writer, list []consumer.Status) {
	type group struct {
		all, hash string
		instances []string
	}
	var groups []group
	seen, told := make(map[string][]string), 0 // digests, by what they are of
	for _, s := range list {
		if s.Config == nil {
			continue
		}
		told++
		of := map[string]string{"keys that an earlier version does not report": s.Config.Hash}
		if s.Config.Rest.Anew != "" {
			of = map[string]string{"keys outside routes": s.Config.Rest.Live + s.Config.Rest.Anew}
			for _, rt := range s.Routes {
				if rt.Config != nil {
					of["route "+cli.Printable(rt.Name)] = rt.Config.Live + rt.Config.Anew
				}
			}
		}
		for what, digest := range of {
			seen[what] = append(seen[what], digest)
		}
		all := fmt.Sprint(of) // sorted
		i := slices.IndexFunc(groups, func(g group) bool { return g.all == all })
		if i < 0 {
			i = len(groups)
			groups = append(groups, group{all: all, hash: cli.Or(cli.Printable(s.Config.Hash), "no file")})
		}
		groups[i].instances = append(groups[i].instances, cli.Printable(s.Instance))
	}
	if len(groups) < 2 {
		return
	}
	var differ []string
	for what, digests := range seen {
		if slices.Sort(digests); len(digests) < told || digests[0] != digests[len(digests)-1] {
			differ = append(differ, what)
		}
	}
	slices.Sort(differ)
	fmt.Fprintf(w, "! instances run different configurations, or files with another content: %s\n", strings.Join(differ, ", "))
	for _, g := range groups {
		fmt.Fprintf(w, "    %s  %s\n", g.hash, strings.Join(g.instances, ", "))
	}
}

func areIs(n uint64) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// still says of a route that does not flow since when, why, and what happens next.
type still struct {
	state, why, by, next string
	since, until         time.Time
	on                   int // instances
}

// held tells whether an instance that answers has the route, for which the others stand by.
func (o over) held() bool {
	return slices.ContainsFunc(o.on, func(r consumer.RouteStatus) bool { return r.State != control.StateStandby })
}

// stills are the ways in which a route does not flow.
func (o over) stills(now time.Time) (list []still) {
	type way struct{ state, why, next string }
	at := make(map[way]int)
	for _, r := range o.on {
		if r.State == control.StateFlowing || r.State == control.StateStandby && o.held() {
			continue
		}
		w := way{r.State, r.Why, ""}
		if r.State != control.StateWaiting || len(o.on) == 1 || r.Holder != nil {
			w.next = nextOf(o.name, r, now)
		}
		i, known := at[w]
		if !known {
			i = len(list)
			at[w] = i
			list = append(list, still{state: w.state, why: w.why, next: cli.Or(w.next, "each instance tries one message when its own wait is over; all flow when it succeeds")})
		}
		s := &list[i]
		s.on++
		if r.Since != nil && (s.since.IsZero() || r.Since.Before(s.since)) {
			s.since = *r.Since
		}
		if r.Until != nil && (s.until.IsZero() || r.Until.Before(s.until)) {
			s.until = *r.Until
		}
		if r.Pause != nil && s.by == "" {
			s.by = whoPaused(*r.Pause)
		}
	}
	return list
}

func printStill(w io.Writer, o over, instances int, now time.Time) {
	for _, s := range o.stills(now) {
		fmt.Fprintf(w, "\n%s is %s", cli.Printable(o.name), cli.Printable(s.state))
		if !s.since.IsZero() {
			fmt.Fprintf(w, " since %s (%v)", cli.When(s.since), short(now.Sub(s.since)))
		}
		if instances > 1 {
			fmt.Fprintf(w, " on %d of %d instances", s.on, instances)
		}
		fmt.Fprintln(w)
		if s.why != "" {
			fmt.Fprintf(w, "  why   %s\n", cli.Printable(s.why))
		}
		if s.by != "" {
			fmt.Fprintf(w, "  by    %s\n", cli.Printable(s.by))
		}
		fmt.Fprintf(w, "  next  %s\n", cli.Printable(s.next))
	}
}

// whoPaused names the operator, and whom NATS took the operator for.
func whoPaused(order orders.Order) string {
	by := cli.Or(order.By, "an operator")
	if order.User != "" {
		by += ", NATS user " + order.User
	}
	return by + ", " + cli.When(order.At)
}

// nextOf is what happens next to a route that stands still.
func nextOf(name string, r consumer.RouteStatus, now time.Time) string {
	switch r.State {
	case control.StateWaiting:
		return fmt.Sprintf("one message is tried %s; all flow when it succeeds. To try now: relay resume %s", in(r.Until, now), name)
	case control.StateProbing:
		return "one message is tried; all flow when it succeeds; otherwise the route waits longer"
	case control.StatePaused:
		if r.Pause == nil { // by the server, which takes no order of relay's
			return fmt.Sprintf("messages come again %s, or now with: nats consumer resume %s %s", in(r.Until, now), r.Stream, r.Durable)
		}
		return fmt.Sprintf("nothing, until: relay resume %s", name)
	case control.StateSuspended:
		return fmt.Sprintf("messages are tried %s, and none of them is dead-lettered; all flow when one succeeds. To try one now: relay resume %s --trial; without --trial all flow, and messages can be dead-lettered again", in(r.Until, now), name)
	case control.StateStopped:
		return fmt.Sprintf("correct what the reason says; then the route goes on by itself, or at once with: relay resume %s", name)
	case control.StateDraining:
		return "handlers that run may finish; the other messages are back in the stream"
	case control.StateDisconnected:
		return "the route goes on when the connection is back"
	case control.StateStandby:
		return "this instance takes the route when the instance that has it ends, or does not answer within fleet.lease"
	case control.StateStarting:
		return "the route flows when its setup is complete"
	case control.StateLimited:
		if r.Until != nil {
			return fmt.Sprintf("messages start again %s, or now with: relay resume %s; they spend no attempt meanwhile", in(r.Until, now), name)
		}
		return "as many start as the limit allows; the others wait, and spend no attempt"
	}
	return ""
}

func in(until *time.Time, now time.Time) string {
	if until == nil {
		return "soon"
	}
	return "in " + short(max(0, until.Sub(now)))
}

// short is a duration as people say it.
func short(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	}
	return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
}

// printKeys prints the keys that do not flow, those in trouble longest first.
func printKeys(w io.Writer, routes []over, now time.Time) {
	rows := [][]string{{"KEY", "ROUTE", "STATE", "FOR", "NEXT TRY", "HELD", "WHY"}}
	type row struct {
		since time.Time
		cells []string
	}
	var list []row
	more := 0
	for _, o := range routes {
		for _, r := range o.on {
			more += r.WaitingMore
			for _, k := range r.Waiting {
				at := "-"
				switch {
				case k.Until != nil:
					at = in(k.Until, now)
				case k.State == "suspended":
					at = "at resume"
				}
				list = append(list, row{k.Since, []string{
					keyName(k.Key), o.name, k.State, short(now.Sub(k.Since)), at, fmt.Sprint(k.Stash), k.Why,
				}})
			}
		}
	}
	if len(list) == 0 && more == 0 {
		return
	}
	slices.SortStableFunc(list, func(a, b row) int { return cmp.Compare(a.since.UnixNano(), b.since.UnixNano()) })
	fmt.Fprintln(w)
	for _, r := range list {
		rows = append(rows, r.cells)
	}
	if len(list) > 0 {
		cli.Table(w, rows)
	}
	if more > 0 {
		fmt.Fprintf(w, "… and %d more; --keys %d prints them\n", more, roundUp(more+len(list)))
	}
}

// keyName shows the key of a route that has one key for all.
func keyName(key string) string { return cli.Or(key, "(all)") }

func roundUp(n int) int {
	for _, step := range []int{100, 1000, 10_000} {
		if n <= step {
			return step
		}
	}
	return 10_000
}

func keyCounts(keys map[string]int) string {
	var parts []string
	for _, state := range slices.Sorted(maps.Keys(keys)) {
		parts = append(parts, fmt.Sprintf("%d %s", keys[state], state))
	}
	return cli.Or(strings.Join(parts, ", "), "-")
}

// printRoute tells all of one route.
func printRoute(w io.Writer, list []consumer.Status, name string, now time.Time) {
	for _, o := range routesOver(list) {
		if o.name != name {
			continue
		}
		r := o.on[0]
		if i := slices.IndexFunc(o.on, func(r consumer.RouteStatus) bool { return r.Stream != "" }); i >= 0 { // a standby may not know it yet
			r = o.on[i]
		}
		rows := [][]string{
			{"route", o.name}, {"state", o.states()}, {"durable", cli.Or(r.Durable, "?") + " on stream " + cli.Or(r.Stream, "?")},
			{"key, order", r.Key + ", " + r.Order},
		}
		if b := o.latest(); b != nil {
			parked := "?"
			if b.Parked != nil {
				parked = fmt.Sprint(*b.Parked)
			}
			rows = append(rows, []string{"waiting", fmt.Sprintf("%d in the stream, %d delivered and not settled, %s parked; counted %s ago",
				b.Stream, b.Outstanding, parked, short(now.Sub(b.At)))})
		}
		rows = append(rows, []string{"dead letters", o.dead()})
		for _, r := range o.on {
			if r.CatchUp != nil {
				rows = append(rows, []string{"catches up", r.CatchUp.String()})
				break
			}
		}
		for _, a := range again(o.on) {
			rows = append(rows, []string{"delivers again", cli.Printable(a.String())})
		}
		cli.Fields(w, rows)
		printStill(w, o, len(list), now)
		fmt.Fprintln(w)
		rows = [][]string{{"INSTANCE", "STATE", "RUN", "QUEUED", "STASH", "ASIDE", "DONE", "RETRIED", "DEAD", "KEYS"}}
		for i, r := range o.on {
			rows = append(rows, []string{
				o.instances[i], r.State, fmt.Sprint(r.Running), fmt.Sprint(r.Window), fmt.Sprint(r.Stash), fmt.Sprint(r.Aside),
				fmt.Sprint(r.Acked), fmt.Sprint(r.Retried), fmt.Sprint(r.Dead), keyCounts(r.Keys),
			})
		}
		cli.Table(w, rows)
		printKeys(w, []over{o}, now)
	}
}

// again is what the durable of a route delivers although it was handled before, as the first instance that made it says.
func again(on []consumer.RouteStatus) []control.Again {
	for _, r := range on {
		if len(r.Again) > 0 {
			return r.Again
		}
	}
	return nil
}
