package consumer

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"

	"github.com/relaymq/relay/consumer/internal/catchup"
	"github.com/relaymq/relay/internal/orphans"
	"github.com/relaymq/relay/internal/provision"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/subject"
	"github.com/relaymq/relay/supervisor"
)

// Random sequences of configurations, with messages in between, against a model of docs/durables.md. The model knows of debts: a durable owes a
// message when it delivers it, or when it has passed it and hands it over. Each debt is paid once: by the route that wants the message, or it is
// known where it waits. Which of several places that is may depend on the moment; then the debt may be at any of them.

// nsRoute is a route of the model.
type nsRoute struct {
	name, durable string
	subjects      []string
	start         Start
	ordered       bool
}

func (r nsRoute) String() string {
	text := fmt.Sprintf("%s on %s %v start %v", r.name, r.durable, r.subjects, r.start)
	if r.ordered {
		text += " order key"
	}
	return text
}

type nsConfig []nsRoute

func (c nsConfig) has(name string) bool {
	return slices.ContainsFunc(c, func(r nsRoute) bool { return r.name == name })
}

func (c nsConfig) uses(durable string) bool {
	return slices.ContainsFunc(c, func(r nsRoute) bool { return r.durable == durable })
}

// routeOf is the route that gets a message of a durable; nil: none.
func (c nsConfig) routeOf(durable, literal string) *nsRoute {
	var best *nsRoute
	var by string
	for i := range c {
		for _, p := range c[i].subjects {
			if c[i].durable == durable && subject.Matches(p, literal) && (best == nil || subject.Compare(p, by) < 0) {
				best, by = &c[i], p
			}
		}
	}
	return best
}

// elsewhere are the durables from which a route gets the subject.
func (c nsConfig) elsewhere(durable, literal string) (list []string) {
	for _, r := range c {
		if r.durable != durable && c.routeOf(r.durable, literal) != nil && !slices.Contains(list, r.durable) {
			list = append(list, r.durable)
		}
	}
	return list
}

func (c nsConfig) legal() bool {
	for i, r := range c {
		for j, o := range c {
			if i == j {
				continue
			}
			if r.name == o.name || r.durable == o.durable && r.ordered != o.ordered {
				return false
			}
			for _, p := range r.subjects {
				for _, q := range o.subjects {
					if (r.durable != o.durable || subject.Compare(p, q) == 0) && subject.Overlaps(p, q) {
						return false
					}
				}
			}
		}
		for a, p := range r.subjects {
			for _, q := range r.subjects[:a] {
				if subject.Overlaps(p, q) {
					return false
				}
			}
		}
	}
	return len(c) > 0
}

// nsPlace is where a debt is.
type nsPlace struct {
	kind  string // handled, pending (on the durable), waits (in the retry stream), later (parked for a time that is not over), gone (another durable has it), merged (with another debt)
	route string // of all but pending and gone; "~": no route
}

type nsMessage struct {
	subject string
	seq     uint64
	at      time.Time
}

type nsDebt struct {
	durable string
	m       *nsMessage
	places  map[nsPlace]bool
	passed  bool // the durable hands it over
}

type nsDurable struct {
	ever map[string][]string // by route
}

func (d *nsDurable) wants(literal string) bool {
	for _, patterns := range d.ever {
		for _, p := range patterns {
			if subject.Matches(p, literal) {
				return true
			}
		}
	}
	return false
}

// keeper is for whom a message is kept that no route of a configuration wants from the durable.
func (d *nsDurable) keeper(c nsConfig, durable, literal string) string {
	type of struct{ pattern, to string }
	var gone []of
	for name, patterns := range d.ever {
		to := name
		if c.has(name) {
			to = retry.NoRoute
		}
		for _, p := range patterns {
			has := slices.ContainsFunc(c, func(r nsRoute) bool {
				return r.name == name && r.durable == durable && slices.ContainsFunc(r.subjects, func(q string) bool { return subject.Covers(q, p) })
			})
			if !has && subject.Matches(p, literal) {
				gone = append(gone, of{p, to})
			}
		}
	}
	if len(gone) == 0 {
		return retry.NoRoute
	}
	slices.SortFunc(gone, func(a, b of) int { return cmp.Or(subject.Compare(a.pattern, b.pattern), strings.Compare(a.to, b.to)) })
	return gone[0].to
}

// nsModel says what must become of messages.
type nsModel struct {
	queue    bool
	messages []*nsMessage
	durables map[string]*nsDurable
	debts    []*nsDebt
	flagged  map[uint64]bool // handlers fail for them
	sure     map[string]int  // by durable: the last message before a configuration that uses it
}

func nsCovers(s Start, m *nsMessage) bool {
	switch s.Policy {
	case "new":
		return false
	case "seq":
		return m.seq >= s.Seq
	case "since":
		return !m.at.Before(s.Since)
	}
	return true
}

func (md *nsModel) owes(durable string, m *nsMessage) *nsDebt {
	for _, d := range md.debts {
		if d.durable == durable && d.m == m {
			return d
		}
	}
	return nil
}

func (md *nsModel) owe(durable string, m *nsMessage, passed bool) {
	if md.owes(durable, m) == nil {
		md.debts = append(md.debts, &nsDebt{durable, m, map[nsPlace]bool{{kind: "pending"}: true}, passed})
	}
}

func (md *nsModel) publish(m *nsMessage) {
	md.messages = append(md.messages, m)
	for name, d := range md.durables {
		if d.wants(m.subject) {
			md.owe(name, m, false)
		}
	}
}

// configure is what a configuration does to the durables. twice are debts of messages that another durable has delivered, by that one.
func (md *nsModel) configure(c nsConfig, dry bool) (twice map[string]int) {
	twice = map[string]int{}
	owe := func(durable string, m *nsMessage, passed bool) {
		for _, d := range md.debts {
			if d.m == m && d.durable != durable && !d.places[nsPlace{kind: "pending"}] && !d.places[nsPlace{kind: "gone"}] {
				twice[d.durable]++
			}
		}
		if !dry {
			md.owe(durable, m, passed)
		}
	}
	was := map[string]*nsDurable{} // before this configuration
	for name, d := range md.durables {
		was[name] = &nsDurable{maps.Clone(d.ever)}
	}
	first := map[string]Start{}
	for _, r := range c {
		if _, there := first[r.durable]; !there {
			first[r.durable] = r.start
		}
		for _, m := range md.messages {
			for _, p := range r.subjects {
				if !subject.Matches(p, m.subject) {
					continue
				}
				d, there := was[r.durable]
				switch {
				case !there:
					if nsCovers(first[r.durable], m) && (!md.queue || !md.owed(m)) {
						owe(r.durable, m, false)
					}
				case !d.wants(m.subject) && nsCovers(r.start, m) && (!md.queue || !md.owed(m)):
					owe(r.durable, m, true)
				}
			}
		}
	}
	if dry {
		return twice
	}
	for _, r := range c {
		d := md.durables[r.durable]
		if d == nil {
			d = &nsDurable{map[string][]string{}}
			md.durables[r.durable] = d
		}
		md.sure[r.durable] = len(md.messages)
		for _, p := range r.subjects {
			if !slices.Contains(d.ever[r.name], p) {
				d.ever[r.name] = append(slices.Clone(d.ever[r.name]), p)
			}
		}
	}
	return twice
}

func (md *nsModel) owed(m *nsMessage) bool {
	return slices.ContainsFunc(md.debts, func(d *nsDebt) bool { return d.m == m })
}

// next are the places to which an instance with a configuration brings a debt.
func (md *nsModel) next(d *nsDebt, at nsPlace, c nsConfig) (list []nsPlace) {
	handled := func(r *nsRoute) {
		if md.flagged[d.m.seq] && !r.ordered {
			list = append(list, nsPlace{"later", r.name})
		} else {
			list = append(list, nsPlace{"handled", r.name})
		}
	}
	byName := func(name string) *nsRoute {
		for i := range c {
			if c[i].name == name {
				return &c[i]
			}
		}
		return nil
	}
	switch at.kind {
	case "pending":
		if !c.uses(d.durable) {
			break
		}
		if r := c.routeOf(d.durable, d.m.subject); r != nil {
			handled(r)
			if d.passed {
				list = append(list, nsPlace{"waits", r.name})
			}
			break
		}
		other, sure := false, false
		for _, e := range c.elsewhere(d.durable, d.m.subject) {
			other = other || md.owes(e, d.m) != nil
			// A route with one instance begins when it has the claim.
			sure = sure || d.m.seq > uint64(md.sure[e]) && !c.routeOf(e, d.m.subject).ordered
		}
		if other {
			list = append(list, nsPlace{kind: "gone"})
		}
		if sure {
			break
		}
		list = append(list, nsPlace{"waits", md.durables[d.durable].keeper(c, d.durable, d.m.subject)})
		if d.passed {
			list = append(list, nsPlace{"waits", retry.NoRoute})
		}
	case "waits":
		if at.route == retry.NoRoute {
			if r := c.routeOf(d.durable, d.m.subject); r != nil {
				list = append(list, nsPlace{"waits", r.name})
			}
			break
		}
		r := byName(at.route)
		if r == nil {
			break
		}
		if r.durable == d.durable && c.routeOf(d.durable, d.m.subject) == nil && md.durables[d.durable].keeper(c, d.durable, d.m.subject) == retry.NoRoute {
			list = append(list, nsPlace{"waits", retry.NoRoute})
			break
		}
		handled(r)
	}
	return list
}

// move brings the debts to where instances with these configurations bring them, or may have brought them by now.
func (md *nsModel) move(rest bool, configs ...nsConfig) {
	passed := map[*nsDebt]map[nsPlace]bool{} // places where it is, or was
	for _, d := range md.debts {
		ends := map[nsPlace]bool{}
		seen := map[nsPlace]bool{}
		todo := slices.Collect(maps.Keys(d.places))
		for len(todo) > 0 {
			at := todo[0]
			todo = todo[1:]
			if seen[at] {
				continue
			}
			seen[at] = true
			stays := true
			for _, c := range configs {
				for _, to := range md.next(d, at, c) {
					stays = false
					todo = append(todo, to)
				}
			}
			if stays || !rest {
				ends[at] = true
			}
		}
		d.places, passed[d] = ends, seen
	}
	// The retry stream has one place for a message and a route: what two durables bring there is one.
	for _, d := range md.debts {
		for _, e := range md.debts {
			if d == e || d.m != e.m {
				continue
			}
			for p := range passed[d] {
				if (p.kind == "waits" || p.kind == "later") && passed[e][p] {
					d.places[nsPlace{kind: "merged"}] = true
				}
			}
		}
	}
}

// nsWorld is a server, and what instances of relay on it did.
type nsWorld struct {
	w       *world
	t       *rapid.T
	stream  string
	service string
	md      *nsModel
	mu      sync.Mutex
	handled map[uint64][]string // routes, by sequence
	broken  map[uint64]bool
	log     []string
}

func (n *nsWorld) say(format string, args ...any) {
	n.log = append(n.log, fmt.Sprintf(format, args...))
}

func (n *nsWorld) fail(format string, args ...any) {
	n.t.Helper()
	n.t.Fatalf("%s\n  %s", fmt.Sprintf(format, args...), strings.Join(n.log, "\n  "))
}

type nsRun struct {
	r    *Relay
	c    nsConfig
	stop func()
}

func (n *nsWorld) routes(c nsConfig) (list []Route) {
	for _, r := range c {
		rt := Route{
			Name: r.name, Durable: r.durable, Subjects: r.subjects, Start: r.start, Supervisor: supervisor.Config{TripAfter: new(0), RouteTrip: supervisor.RouteTrip{Of: new(0)}},
			Retry: Retry{ParkAfter: time.Millisecond, Backoff: supervisor.Backoff{Min: time.Hour, Max: time.Hour}},
			Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
				n.mu.Lock()
				defer n.mu.Unlock()
				if n.broken[m.Sequence] && !r.ordered {
					return errors.New("not yet")
				}
				n.handled[m.Sequence] = append(n.handled[m.Sequence], m.Route)
				return nil
			}),
		}
		if r.ordered {
			rt.Order = supervisor.OrderKey
		}
		list = append(list, rt)
	}
	return list
}

// start runs an instance; an error is why it does not run.
func (n *nsWorld) start(instance string, c nsConfig) (*nsRun, error) {
	nc := n.w.s.Conn(n.w.t, nats.ReconnectBufSize(-1))
	r, err := New(nc, Config{Logger: quiet, Instance: instance, Service: n.service}, n.routes(c)...)
	if err != nil {
		nc.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		<-done
		nc.Close()
	})
	for deadline := time.Now().Add(time.Minute); r.Ready() != nil || !r.engine.Phases.Serving.Load(); time.Sleep(2 * time.Millisecond) {
		if len(done) > 0 {
			err := <-done
			cancel()
			nc.Close()
			return nil, cmp.Or(err, errors.New("it ended"))
		}
		if time.Now().After(deadline) {
			why := r.Ready()
			stop()
			n.fail("an instance never gets ready: %v", why)
		}
	}
	return &nsRun{r, c, stop}, nil
}

// change is a reload.
func (n *nsWorld) change(run *nsRun, c nsConfig, again bool) error {
	change := Change{DeliverAgain: again}
	now := n.routes(c)
	for i, r := range c {
		j := slices.IndexFunc(run.c, func(o nsRoute) bool { return o.name == r.name })
		switch {
		case j < 0:
			change.Add = append(change.Add, now[i])
		case run.c[j].String() != r.String():
			change.Update = append(change.Update, now[i])
		}
	}
	for _, r := range run.c {
		if !c.has(r.name) {
			change.Remove = append(change.Remove, r.name)
		}
	}
	done, err := run.r.Change(n.w.t.Context(), change)
	if err == nil && len(done.Waiting) > 0 {
		n.fail("after a change routes wait: %v", done.Waiting)
	}
	if err == nil {
		run.c = c
	}
	return err
}

// seen is where messages are, as far as they can be told apart.
type nsSeen struct {
	handled map[uint64][]string            // routes
	kept    map[uint64]map[string][]string // by durable: places, as kind and route
	waiting map[string]int                 // by durable
	idle    bool
	why     string
}

func (n *nsWorld) look(runs ...*nsRun) nsSeen {
	ctx := n.w.t.Context()
	s := nsSeen{map[uint64][]string{}, map[uint64]map[string][]string{}, map[string]int{}, true, ""}
	busy := func(format string, args ...any) { s.idle, s.why = false, s.why+fmt.Sprintf(format, args...)+"; " }
	st, err := n.w.js.Stream(ctx, n.stream)
	if err != nil {
		n.fail("%v", err)
	}
	durables := st.ListConsumers(ctx)
	for info := range durables.Info() {
		if info.Config.Durable == "" {
			continue
		}
		s.waiting[info.Name] = int(info.NumPending) + info.NumAckPending
		for _, run := range runs {
			if run.c.uses(info.Name) && s.waiting[info.Name] > 0 {
				busy("%s has %d", info.Name, s.waiting[info.Name])
			}
			if run.c.uses(info.Name) {
				if rec, err := catchup.NewBook(run.r.engine.Stores.Ledgers).Get(ctx, n.stream, info.Name); err != nil || !rec.IsOver() {
					busy("%s catches up %v", info.Name, err)
				}
			}
		}
	}
	stream, err := n.w.js.Stream(ctx, retry.StreamName(n.service))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return s
	}
	dues := stream.ListConsumers(ctx)
	for info := range dues.Info() {
		for _, run := range runs {
			for _, r := range run.c {
				if info.Name == retry.DueDurable(r.name, n.stream) && info.NumPending+uint64(info.NumAckPending) > 0 {
					busy("%s has %d", info.Name, info.NumPending)
				}
			}
		}
	}
	for seq := uint64(1); ; {
		m, err := stream.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(">"))
		if err != nil {
			break
		}
		seq = m.Sequence + 1
		o, err := retry.UnwrapOrigin(m.Header)
		if err != nil {
			n.fail("in the retry stream: %v", err)
		}
		parts := strings.Split(m.Subject, ".") // service, park or due, route, stream, …
		kind := "waits"
		if parts[1] == "park" {
			kind = "later"
		}
		if s.kept[o.Sequence] == nil {
			s.kept[o.Sequence] = map[string][]string{}
		}
		s.kept[o.Sequence][o.Consumer] = append(s.kept[o.Sequence][o.Consumer], kind+" "+parts[2])
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for seq, by := range n.handled {
		s.handled[seq] = slices.Clone(by)
	}
	return s
}

// differs says how what is seen differs from the model; empty: it does not. When it does not, the model knows more afterwards.
func (md *nsModel) differs(s nsSeen) string {
	least, most := map[string]int{}, map[string]int{}
	var list []string
	narrow := map[*nsDebt]map[nsPlace]bool{}
	for _, m := range md.messages {
		var debts []*nsDebt
		for _, d := range md.debts {
			if d.m == m {
				debts = append(debts, d)
			}
		}
		found := false
		low, high := map[string]int{}, map[string]int{}
		var try func(i int, chosen []nsPlace)
		try = func(i int, chosen []nsPlace) {
			if i < len(debts) {
				for p := range debts[i].places {
					try(i+1, append(slices.Clone(chosen), p))
				}
				return
			}
			var handled []string
			kept := map[string][]string{}
			pending, sure := map[string]int{}, map[string]int{}
			for j, p := range chosen {
				switch p.kind {
				case "handled":
					handled = append(handled, p.route)
				case "waits", "later":
					kept[debts[j].durable] = append(kept[debts[j].durable], p.kind+" "+p.route)
				case "pending":
					pending[debts[j].durable]++
					if !debts[j].passed { // what is still to be handed over is in the account of the durable, and not counted by the server
						sure[debts[j].durable]++
					}
				}
			}
			if len(chosen) > 0 && !slices.ContainsFunc(chosen, func(p nsPlace) bool { return p.kind != "merged" }) {
				return
			}
			seen := slices.Sorted(slices.Values(s.handled[m.seq]))
			slices.Sort(handled)
			if !slices.Equal(seen, handled) || !maps.EqualFunc(kept, s.kept[m.seq], slices.Equal[[]string]) {
				return
			}
			for j, p := range chosen {
				if narrow[debts[j]] == nil {
					narrow[debts[j]] = map[nsPlace]bool{}
				}
				narrow[debts[j]][p] = true
				name := debts[j].durable
				if !found {
					low[name], high[name] = sure[name], pending[name]
				}
				low[name], high[name] = min(low[name], sure[name]), max(high[name], pending[name])
			}
			found = true
		}
		try(0, nil)
		if !found {
			var may []string
			for _, d := range debts {
				may = append(may, fmt.Sprintf("%s: %v", d.durable, slices.Collect(maps.Keys(d.places))))
			}
			list = append(list, fmt.Sprintf("message %d (%s): handled by %v, kept %v; may be %s", m.seq, m.subject, s.handled[m.seq], s.kept[m.seq], strings.Join(may, " and ")))
			continue
		}
		for name := range low {
			least[name] += low[name]
			most[name] += high[name]
		}
	}
	for name := range md.durables {
		if n, there := s.waiting[name]; !there || n < least[name] || n > most[name] {
			list = append(list, fmt.Sprintf("durable %s (there: %v) has %d, and must have %d to %d", name, there, n, least[name], most[name]))
		}
	}
	for name := range s.waiting {
		if md.durables[name] == nil {
			list = append(list, fmt.Sprintf("durable %s is there", name))
		}
	}
	if len(list) == 0 {
		for d, places := range narrow {
			d.places = places
		}
	}
	return strings.Join(list, "\n  ")
}

// rest waits until nothing moves, and compares.
func (n *nsWorld) rest(runs ...*nsRun) {
	n.t.Helper()
	var configs []nsConfig
	for _, run := range runs {
		configs = append(configs, run.c)
	}
	n.md.move(true, configs...)
	var idle time.Time
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		s := n.look(runs...)
		if s.idle {
			for _, run := range runs {
				run.r.engine.Orphans.Find(n.w.t.Context()) // as within an hour
			}
			s = n.look(runs...)
		}
		if !s.idle {
			idle = time.Time{}
			if time.Since(began) > 30*time.Second {
				n.fail("it does not come to rest: %s %s", s.why, n.md.differs(s))
			}
			continue
		}
		why := n.md.differs(s)
		if why == "" {
			return
		}
		if idle.IsZero() {
			idle = time.Now()
		}
		if time.Since(idle) > 4*time.Second {
			n.fail("%s", why)
		}
	}
}

var (
	nsPatterns = []string{"a.x", "a.y", "a.*", "b.x", "b.*", "c.x"}
	nsLiterals = []string{"a.x", "a.y", "b.x", "b.y", "c.x"}
)

func (n *nsWorld) drawRoute(name string) nsRoute {
	r := nsRoute{name: name}
	r.durable = rapid.SampledFrom([]string{name, "s", "t"}).Draw(n.t, "durable")
	r.subjects = rapid.SliceOfNDistinct(rapid.SampledFrom(nsPatterns), 1, 3, rapid.ID[string]).Draw(n.t, "subjects")
	r.start = n.drawStart()
	return r
}

func (n *nsWorld) drawStart() Start {
	if n.md.queue {
		return Start{Policy: "all"}
	}
	last := len(n.md.messages)
	switch policy := rapid.SampledFrom([]string{"all", "all", "new", "seq", "since"}).Draw(n.t, "start"); {
	case policy == "seq":
		return Start{Policy: policy, Seq: uint64(rapid.IntRange(1, last+1).Draw(n.t, "seq"))}
	case policy == "since" && last > 0:
		return Start{Policy: policy, Since: n.md.messages[rapid.IntRange(0, last-1).Draw(n.t, "since")].at}
	case policy == "new":
		return Start{Policy: policy}
	}
	return Start{Policy: "all"}
}

var nsNames = []string{"r1", "r2", "r3", "r4"}

// drawConfig is what somebody makes of a configuration.
func (n *nsWorld) drawConfig(was nsConfig) nsConfig {
	for range 20 {
		c := slices.Clone(was)
		at := func() int { return rapid.IntRange(0, len(c)-1).Draw(n.t, "route") }
		name := rapid.SampledFrom(nsNames).Draw(n.t, "name")
		op := "join"
		if len(c) > 0 {
			op = rapid.SampledFrom([]string{"join", "leave", "rename", "durable", "subjects", "start", "swap", "order"}).Draw(n.t, "op")
		}
		switch op {
		case "join":
			c = append(c, n.drawRoute(name))
		case "leave":
			i := at()
			c = slices.Delete(c, i, i+1)
		case "rename": // with its durable, or without
			i := at()
			if c[i].durable == c[i].name && rapid.Bool().Draw(n.t, "and durable") {
				c[i].durable = name
			}
			c[i].name = name
		case "durable":
			i := at()
			c[i].durable = rapid.SampledFrom([]string{c[i].name, "s", "t", name}).Draw(n.t, "to")
		case "subjects":
			c[at()].subjects = n.drawRoute(name).subjects
		case "start":
			c[at()].start = n.drawStart()
		case "swap": // two routes exchange subjects
			i, j := at(), at()
			c[i].subjects, c[j].subjects = c[j].subjects, c[i].subjects
		case "order":
			i := at()
			to := !c[i].ordered
			for j := range c {
				if c[j].durable == c[i].durable {
					c[j].ordered = to
				}
			}
		}
		if c.legal() && fmt.Sprint(c) != fmt.Sprint(was) {
			return c
		}
	}
	return was
}

func (n *nsWorld) publish(k int) {
	for range k {
		s := rapid.SampledFrom(nsLiterals).Draw(n.t, "subject")
		flagged := rapid.IntRange(0, 3).Draw(n.t, "fails") == 0
		n.mu.Lock()
		seq := uint64(len(n.md.messages) + 1)
		n.broken[seq] = flagged
		n.mu.Unlock()
		a, err := n.w.js.Publish(n.w.t.Context(), s, fmt.Append(nil, seq))
		if err != nil || a.Sequence != seq {
			n.fail("publish: %v %v", a, err)
		}
		m := &nsMessage{subject: s, seq: seq}
		if n.md.queue {
			m.at = time.Now()
		} else {
			m.at = n.w.storedAt(n.stream, seq)
		}
		n.md.flagged[seq] = flagged
		n.md.publish(m)
		n.say("publish %d %s fails %v", seq, s, flagged)
	}
}

// mend has handlers fail no more, and what is parked come at once.
func (n *nsWorld) mend() {
	n.mu.Lock()
	clear(n.broken)
	n.mu.Unlock()
	clear(n.md.flagged)
	retries, err := retry.AttachStream(n.w.t.Context(), n.w.js, n.service, retry.StreamName(n.service))
	if err != nil {
		n.fail("%v", err)
	}
	var list []retry.Parked
	if err := retries.ListParked(n.w.t.Context(), "", func(p retry.Parked) bool { list = append(list, p); return true }); err != nil {
		n.fail("%v", err)
	}
	for _, p := range list {
		if _, err := retries.Hasten(n.w.t.Context(), p, time.Now()); err != nil && !errors.Is(err, retry.ErrFired) {
			n.fail("%v", err)
		}
	}
	for _, d := range n.md.debts {
		for p := range d.places {
			if p.kind == "later" {
				delete(d.places, p)
				d.places[nsPlace{"waits", p.route}] = true
			}
		}
	}
	n.say("mend")
}

// marks are the durables with what they are for.
func (n *nsWorld) marks() string {
	st, err := n.w.js.Stream(n.w.t.Context(), n.stream)
	if err != nil {
		n.fail("%v", err)
	}
	var list []string
	durables := st.ListConsumers(n.w.t.Context())
	for info := range durables.Info() {
		if info.Config.Durable != "" {
			list = append(list, fmt.Sprint(info.Name, provision.Filters(info.Config), provision.MarkOf(info.Config.Metadata)))
		}
	}
	slices.Sort(list)
	return strings.Join(list, "\n")
}

func (n *nsWorld) clean() {
	ctx := n.w.t.Context()
	for name := range n.w.js.StreamNames(ctx).Name() {
		_ = n.w.js.DeleteStream(ctx, name)
	}
}

// judged checks what was said of messages that come twice.
func (n *nsWorld) judged(r *Relay, twice map[string]int) {
	said := map[string]int{}
	for _, u := range r.engine.Routes.Units() {
		for _, a := range u.Main.Setup.Again {
			said[a.Durable] += int(a.Messages)
		}
	}
	for name, k := range twice {
		if said[name] < k {
			n.fail("%d messages that durable %s has delivered come again, and it was said of %d", k, name, said[name])
		}
	}
}

func (n *nsWorld) run(queue bool) {
	n.md = &nsModel{queue: queue, durables: map[string]*nsDurable{}, flagged: map[uint64]bool{}, sure: map[string]int{}}
	n.handled, n.broken = map[uint64][]string{}, map[uint64]bool{}
	retention := jetstream.LimitsPolicy
	if queue {
		retention = jetstream.WorkQueuePolicy
	}
	defer n.clean()
	for i := 0; ; i++ {
		_, err := n.w.js.CreateStream(n.w.t.Context(), jetstream.StreamConfig{Name: n.stream, Subjects: []string{"a.*", "b.*", "c.*"}, Retention: retention})
		if err == nil {
			break
		}
		if i > 5 {
			n.fail("%v", err)
		}
	}
	var run *nsRun
	defer func() {
		if run != nil {
			run.stop()
		}
	}()
	c := n.drawConfig(nil)
	begin := func(c nsConfig) error {
		next, err := n.start("i", c)
		n.say("start %v: %v", c, err)
		if err != nil {
			return err
		}
		twice := n.md.configure(c, false)
		run = next
		n.judged(run.r, twice)
		return nil
	}
	if err := begin(c); err != nil {
		n.fail("%v", err)
	}
	var atRest bool
	for range rapid.IntRange(1, 6).Draw(n.t, "steps") {
		n.publish(rapid.IntRange(0, 3).Draw(n.t, "publish"))
		if atRest = rapid.IntRange(0, 2).Draw(n.t, "rest") > 0; atRest {
			n.rest(run)
		} else {
			n.md.move(false, run.c)
		}
		was := run.c
		switch rapid.SampledFrom([]string{"restart", "reload", "rolling", "mend"}).Draw(n.t, "step") {
		case "mend":
			n.rest(run)
			n.mend()
			n.rest(run)
		case "restart":
			next := n.drawConfig(was)
			run.stop()
			run = nil
			n.say("stop")
			n.publish(rapid.IntRange(0, 2).Draw(n.t, "while nothing runs"))
			marks := n.marks()
			if err := begin(next); err != nil {
				if now := n.marks(); marks != now {
					n.fail("a start that was refused changed %s\n to %s", marks, now)
				}
				if err := begin(was); err != nil {
					n.fail("the old configuration does not start any more: %v", err)
				}
			}
		case "reload":
			next := n.drawConfig(was)
			again := rapid.Bool().Draw(n.t, "deliver again")
			marks := n.marks()
			twice := n.md.configure(next, true)
			err := n.change(run, next, again)
			n.say("reload %v again %v: %v", next, again, err)
			if err != nil {
				if now := n.marks(); marks != now {
					n.fail("a change that was refused changed %s\n to %s", marks, now)
				}
				break
			}
			n.md.configure(next, false)
			n.judged(run.r, twice)
			if all := !slices.ContainsFunc(next, func(r nsRoute) bool { return r.start.Policy != "all" }); len(twice) > 0 && !again && all {
				n.fail("messages come twice, %v, and the change was not refused", twice)
			}
		case "rolling":
			next := n.drawConfig(was)
			if slices.ContainsFunc(slices.Concat(was, next), func(r nsRoute) bool { return r.ordered }) {
				break // which instance has it does not matter here
			}
			second, err := n.start("j", next)
			n.say("rolling %v: %v", next, err)
			if err != nil {
				break
			}
			twice := n.md.configure(next, false)
			n.md.move(false, was, next)
			func() {
				defer func() {
					run.stop()
					run = second
				}()
				n.judged(second.r, twice)
				n.publish(rapid.IntRange(0, 3).Draw(n.t, "while both run"))
				if rapid.Bool().Draw(n.t, "both rest") {
					n.rest(run, second)
				} else {
					n.md.move(false, was, next)
				}
			}()
			n.md.move(false, next)
			n.say("the first stops")
		}
	}
	n.rest(run)
	n.mend()
	n.rest(run)
	n.named(run)
}

// named compares what is said of that which nobody handles, and follows the advice.
func (n *nsWorld) named(run *nsRun) {
	ctx := n.w.t.Context()
	list, err := orphansOf(ctx, n.w.js, n.service, n.routes(run.c))
	if err != nil {
		n.fail("%v", err)
	}
	retries, durables := map[string][2]int{}, map[string][2]int{}
	note := func(m map[string][2]int, key string, d *nsDebt, p nsPlace) {
		k := m[key]
		if len(d.places) == 1 && !(p.kind == "pending" && d.passed) {
			k[0]++
		}
		k[1]++
		m[key] = k
	}
	for _, d := range n.md.debts {
		for p := range d.places {
			switch p.kind {
			case "waits":
				note(retries, p.route, d, p)
			case "pending":
				note(durables, d.durable, d, p)
			}
		}
	}
	for _, o := range list {
		key, of := o.Durable, durables
		if o.Kind == orphans.Retries {
			key, of = cmp.Or(o.Route, retry.NoRoute), retries
		}
		if k := int(o.Messages) + o.Outstanding; k < of[key][0] || k > of[key][1] {
			n.fail("%d of %s are named, and there are %v", k, o, of[key])
		}
		delete(of, key)
	}
	for key, k := range retries {
		if k[0] > 0 {
			n.fail("%v retries of %s are not named: %v", k, key, list)
		}
	}
	for key, k := range durables {
		if k[0] > 0 {
			n.fail("%v messages of durable %s are not named: %v", k, key, list)
		}
	}
	text := strings.Join(run.r.Status().Trouble, "\n")
	for _, o := range list {
		if k := strings.Count(text, o.String()); k != 1 {
			n.fail("status says %d times %q: %s", k, o, text)
		}
	}
	for _, o := range list {
		if o.Route == "" || strings.Contains(o.Route, " ") || o.Messages+uint64(o.Outstanding) == 0 || n.md.queue && o.Kind == orphans.Durable {
			continue
		}
		to := run.c[rapid.IntRange(0, len(run.c)-1).Draw(n.t, "move to")]
		moved, err := orphans.Move{Service: n.service, From: o.Route, To: to.name}.Do(ctx, n.w.js, []orphans.Orphan{o})
		n.say("move %v to %s: %+v %v", o, to.name, moved, err)
		if err != nil {
			n.fail("%v", err)
		}
		for _, d := range n.md.debts {
			for p := range d.places {
				switch {
				case o.Kind == orphans.Retries && p == nsPlace{"waits", o.Route}:
					delete(d.places, p)
					d.places[nsPlace{"handled", to.name}] = true
				case o.Kind == orphans.Durable && p.kind == "pending" && d.durable == o.Durable:
					delete(d.places, p)
					// Another durable of the route has it, be it one that the route had before.
					other := slices.ContainsFunc(n.md.debts, func(e *nsDebt) bool {
						return e.m == d.m && e != d && n.md.durables[e.durable] != nil && slices.ContainsFunc(n.md.durables[e.durable].ever[to.name], func(p string) bool { return subject.Matches(p, d.m.subject) })
					})
					if other {
						d.places[nsPlace{kind: "gone"}] = true
					} else {
						d.places[nsPlace{"handled", to.name}] = true
					}
				}
			}
		}
		if o.Kind == orphans.Durable {
			delete(n.md.durables, o.Durable)
		}
		n.rest(run)
	}
}

// nsSlice is after what time no more cases begin, unless -rapid.checks says how many there are.
const nsSlice = 7 * time.Second

// Whatever becomes of a configuration, each message is handled by the route that wants it, once, or it is said where it waits. Hundreds of cases:
// go test ./consumer -run TestConfigurations -parallel 8 -rapid.checks=50
func TestConfigurations_nothingIsSkipped(t *testing.T) {
	bounded := flag.Lookup("rapid.checks").Value.String() == flag.Lookup("rapid.checks").DefValue
	if bounded { // always the same cases
		for name, value := range map[string]string{"rapid.seed": "20261125", "rapid.shrinktime": "5s"} {
			if err := flag.Set(name, value); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() { _ = flag.Set("rapid.seed", "0") })
	}
	begin := sync.OnceValue(time.Now) // of the first case
	for i := range 8 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			world, failed, began := 0, false, begin()
			rapid.Check(t, func(rt *rapid.T) {
				if bounded && !failed && time.Since(began) > nsSlice {
					return
				}
				for range i {
					rapid.Uint64().Draw(rt, "another case than the other parts have")
				}
				world++
				n := &nsWorld{w: w, t: rt, stream: fmt.Sprint("JOBS", world), service: fmt.Sprint("relay", world)}
				defer func() { failed = failed || rt.Failed() }()
				n.run(rapid.IntRange(0, 3).Draw(rt, "queue") == 0)
			})
		})
	}
}
