package chaos

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/chaos/ledger"
)

// What instances share: routes of one instance at a time, their order, and limits of the service. Several instances run beside a nemesis that
// kills, freezes and cuts off instances and servers, moves leaders, lets the fleet shrink and grow, and changes limits by reload.

// fleet is such a run.
type fleet struct {
	*nemesis
	route  M          // of all instances
	places []placesAt // of the limit, by time
}

// placesAt is a limit that holds from a moment on.
type placesAt struct {
	at     time.Time
	places int
}

// fleetLoad says how much of it.
type fleetLoad struct {
	instances, count, rate, faults int
	servers                        int // 0: three
	takes                          int // milliseconds that a handler takes at most
	route, top                     M
	kinds                          []kind                  // nil: all
	script                         func(int) ledger.Script // nil: one in 50 fails up to three times
}

// set adds a key to the route.
func (l *fleetLoad) set(key string, value any) {
	l.route = maps.Clone(l.route)
	if l.route == nil {
		l.route = M{}
	}
	l.route[key] = value
}

var fleetKinds = []kind{
	{"kill relay", 5, kindNamed("kill relay")},
	{"drain relay", 3, kindNamed("drain relay")},
	{"freeze relay", 4, func(n *nemesis) { n.w.Pause(n.relay().Proc, n.w.Between(time.Second, 5*time.Second)) }},
	{"stall link", 3, kindNamed("stall link")},
	{"cut link", 2, kindNamed("cut link")},
	{"away", 2, func(n *nemesis) { // the fleet shrinks, and grows
		r := n.relay()
		n.w.Cut("TERM " + r.Name + ", and it stays away")
		r.Leave()
		n.quiet(time.Second, 4*time.Second)
		r.Start()
		r.Keep()
	}},
	{"kill nats", 2, kindNamed("kill nats")},
	{"freeze nats", 2, func(n *nemesis) { n.w.Pause(n.node().Proc, n.w.Between(100*ms, 3*time.Second)) }},
	{"isolate nats", 2, func(n *nemesis) {
		s := n.node()
		f := n.w.Cut("isolate " + s.Name)
		s.Isolate()
		for end := time.Now().Add(n.w.Between(time.Second, 6*time.Second)); time.Now().Before(end); {
			time.Sleep(min(time.Second, time.Until(end)))
			n.w.More(f)
		}
		s.Rejoin()
		n.w.Note("%s is back", s.Name)
	}},
	{"step-down", 4, func(n *nemesis) {
		of := [][2]string{{"T", ""}, {"T", "work"}, {"KV_RELAY_FLEET", ""}, {"RELAY_RETRY", ""}}[n.w.Rand.IntN(4)]
		n.w.StepDown(of[0], of[1])
	}},
}

func kindNamed(name string) func(n *nemesis) {
	return func(n *nemesis) { kinds[slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })].do(n) }
}

// Leave ends an instance as an operator does, for longer than a moment.
func (r *Relay) Leave() {
	r.mu.Lock()
	r.keep = false
	r.mu.Unlock()
	r.Signal(syscall.SIGTERM)
	if _, ok := r.Wait(7 * time.Second); !ok {
		r.w.T.Errorf("I-13: %s does not end within 7s of SIGTERM", r.Name)
		r.Kill()
	}
}

func (w *World) fleet(l fleetLoad) *fleet {
	w.T.Helper()
	servers := cmp.Or(l.servers, 3)
	w.StartNATS(NATSConfig{Replicas: servers, Links: servers > 1})
	w.Connect()
	w.Stream()
	f := &fleet{nemesis: &nemesis{w: w, h: w.StartHandler(""), count: make(map[string]int), kinds: fleetKinds}}
	if l.kinds != nil {
		f.kinds = l.kinds
	}
	route := M{
		"timeout": "3s", "concurrency": 32, "retry": M{"max_attempts": 50, "min": "100ms", "max": "300ms", "jitter": 0.2},
		"supervisor": M{"trip_after": 0, "route_trip": M{"of": 0}, "dead_trip": M{"of": 0}},
	}
	maps.Copy(route, l.route)
	f.route = route
	for i := range l.instances {
		p := NewProxy(w.T, strings.TrimPrefix(w.nats.Nodes[i%servers].url(), "nats://"))
		r := w.StartRelay(fmt.Sprintf("r%d", i+1), f.h, RelayConfig{URL: p.URL(), NoWait: true, Route: route, Top: l.top})
		r.Keep()
		f.proxies, f.relays = append(f.proxies, p), append(f.relays, r)
	}
	for _, r := range f.relays {
		r.WaitReady(time.Minute)
		if r.Restarts() > 0 { // all at once, on servers that have just begun
			w.T.Errorf("%s did not start at once:\n%s", r.Name, tail(r.LogText(), 10))
		}
	}
	f.watch = NewWatch(w)
	f.watch.Blind() // the checks at the end say how long it stood still
	return f
}

// run publishes beside so many faults.
func (f *fleet) run(l fleetLoad) {
	w := f.w
	stop := make(chan struct{})
	script := l.script
	if script == nil {
		script = func(i int) ledger.Script {
			if i%50 == 7 {
				return ledger.Script{Do: "fail", Until: 1 + i%3, Sleep: 5}
			}
			return ledger.Script{Sleep: i * 7 % l.takes}
		}
	}
	wait := background(func() {
		w.Produce(Load{Count: l.count, Rate: l.rate, Stop: stop, Subject: func(i int) string { return fmt.Sprintf("t.%d", i%40) }, Script: script})
	})
	for range l.faults {
		f.quiet(300*ms, 1500*ms)
		f.step()
	}
	wait()
	f.quiet(0, time.Millisecond)
	w.Note("the nemesis rests")
}

// onItsWay is how long a request that was begun may take to arrive.
const onItsWay = 100 * ms

// lateArrivals returns what tells whether a run is a request that was on its way when its instance was stopped, and arrived afterwards. No lease can keep
// it back: for that handlers compare fences. There is one for each time that an instance was stopped, and no more.
func (w *World) lateArrivals() func(run *ledger.Run) bool {
	w.mu.Lock()
	thaws := slices.Clone(w.thaws)
	w.mu.Unlock()
	return func(run *ledger.Run) bool {
		i := slices.IndexFunc(thaws, func(th thaw) bool {
			return th.name == run.Instance && !run.Start.Before(th.at) && run.Start.Sub(th.at) < onItsWay
		})
		if i >= 0 {
			thaws = slices.Delete(thaws, i, i+1)
		}
		return i >= 0
	}
}

func TestCheck_aRequestThatWasOnItsWayWhenItsInstanceWasStopped(t *testing.T) {
	at := time.Now()
	w := &World{thaws: []thaw{{"r1", at}}}
	run := func(instance string, after time.Duration) *ledger.Run {
		return &ledger.Run{Instance: instance, Start: at.Add(after)}
	}
	isLate := w.lateArrivals()
	for _, c := range []struct {
		run  *ledger.Run
		late bool
	}{
		{run("r2", ms), false}, {run("r1", -ms), false}, {run("r1", onItsWay), false}, {run("r1", 10*ms), true},
		{run("r1", 11*ms), false}, // a second one
	} {
		if got := isLate(c.run); got != c.late {
			t.Errorf("%s, %v after it went on: %v", c.run.Instance, c.run.Start.Sub(at), got)
		}
	}
}

// judgeFences fails the run with each start by an instance after another one had got the route.
func (w *World) judgeFences() (holders int) {
	runs := slices.SortedStableFunc(slices.Values(w.ledgers.Runs), func(a, b *ledger.Run) int { return a.Start.Compare(b.Start) })
	var last *ledger.Run
	isLate := w.lateArrivals()
	for _, run := range runs {
		if last != nil && run.Fence < last.Fence && isLate(run) {
			continue
		}
		switch {
		case run.Fence == 0:
			w.Wrong(NotFenced, "%s started on %s without a fence", run.ID, run.Instance)
			return holders
		case last != nil && run.Fence < last.Fence:
			w.Wrong(NotFenced, "%s started on %s with fence %d at %s, after fence %d of %s", run.ID, run.Instance, run.Fence, run.Start.Format("05.000"), last.Fence, last.Instance)
			return holders
		case last == nil || run.Fence > last.Fence:
			holders++
		}
		last = run
	}
	return holders
}

// judgeKeys fails the run with each start of a message before all earlier ones of its key were handled.
func (w *World) judgeKeys() {
	w.mu.Lock()
	all := slices.Concat(w.pubs, w.unsure)
	w.mu.Unlock()
	runs := make(map[string][]*ledger.Run)
	for _, run := range w.ledgers.Runs {
		runs[run.ID] = append(runs[run.ID], run)
	}
	keys := make(map[string][]*Pub)
	for _, p := range all {
		if len(runs[p.Script.ID]) > 0 {
			keys[p.Subject] = append(keys[p.Subject], p)
		}
	}
	wrong := 0
	for _, list := range keys {
		slices.SortFunc(list, func(a, b *Pub) int { return cmp.Compare(a.Seq, b.Seq) })
		var done time.Time // all earlier ones are handled
		for _, p := range list {
			var ok time.Time
			for _, run := range runs[p.Script.ID] {
				if run.Start.Before(done) {
					if wrong++; wrong <= 5 {
						w.Wrong(Disordered, "%s started %v before the one before it was handled: %s", p, done.Sub(run.Start), describe(runs[p.Script.ID]))
					}
				}
				if run.OK && (ok.IsZero() || run.End.Before(ok)) {
					ok = run.End
				}
			}
			if ok.After(done) {
				done = ok
			}
		}
	}
	if wrong > 5 {
		w.Wrong(Disordered, "%d starts in all", wrong)
	}
}

// judgeLimit fails the run if more handlers ran at once than the limit allowed. A larger one counts at once, a smaller one after its lease.
func (f *fleet) judgeLimit() (most int) {
	const grace = 2500 * ms // the lease, and what a handler takes
	type change struct {
		at time.Time
		by int
	}
	var list []change
	for _, run := range f.w.ledgers.Runs {
		if !run.End.IsZero() {
			list = append(list, change{run.Start, 1}, change{run.End, -1})
		}
	}
	slices.SortFunc(list, func(a, b change) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.by, b.by)) })
	allowed := func(at time.Time) (n int) {
		for i, p := range f.places {
			if i+1 == len(f.places) || f.places[i+1].at.Add(grace).After(at) {
				n = max(n, p.places)
			}
			if i+1 < len(f.places) && f.places[i+1].at.After(at) {
				break
			}
		}
		return n
	}
	now, wrong := 0, 0
	for _, c := range list {
		now += c.by
		most = max(most, now)
		if n := allowed(c.at); now > n && c.by > 0 {
			if wrong++; wrong == 1 {
				f.w.Wrong(Above, "%d ran at once at %s, %d are allowed", now, c.at.Format("05.000"), n)
			}
		}
	}
	return most
}

// setLimit changes the limit of all instances by reload.
func (f *fleet) setLimit(places int) {
	w := f.w
	began := time.Now()
	if err := f.rewrite(func(conf M) { conf["limits"] = M{"gateway": M{"concurrency": places, "scope": "service"}} }); err != nil {
		w.T.Fatal(err)
	}
	if !f.reload(began, time.Minute) {
		w.T.Fatalf("not all instances have the limit after a minute")
	}
	w.Note("the limit is %d everywhere", places)
	at := time.Now()
	if last := f.places[len(f.places)-1].places; places > last {
		at = began
	}
	f.places = append(f.places, placesAt{at, places})
}

// rewrite changes the configuration files of all instances.
func (f *fleet) rewrite(change func(conf M)) error {
	for _, r := range f.relays {
		text, err := os.ReadFile(r.conf)
		conf := M{}
		if err == nil {
			err = json.Unmarshal(text, &conf)
		}
		if err == nil {
			change(conf)
			text, err = json.Marshal(conf)
		}
		if err == nil { // in one step: an instance may be reading it
			err = os.WriteFile(r.conf+".new", text, 0o600)
		}
		if err == nil {
			err = os.Rename(r.conf+".new", r.conf)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// reload has all instances read their files again, until each has done so since began, for d at most.
func (f *fleet) reload(began time.Time, d time.Duration) bool {
	_, ok := f.w.Within(d, func() bool {
		all := true
		for _, r := range f.relays {
			if at := r.Metrics("relay_config_last_reload_success_timestamp_seconds"); at < float64(began.Unix())+float64(began.Nanosecond())/1e9 {
				all = false
				r.Signal(syscall.SIGHUP)
			}
		}
		if !all {
			time.Sleep(200 * ms)
		}
		return all
	})
	return ok
}

func singleton(w *World, l fleetLoad) {
	w.T.Helper()
	l.set("instances", "one")
	f := w.fleet(l)
	f.run(l)
	r := w.Check(Expect{Within: 2 * time.Minute, Each: true, MaxAttempts: 50})
	holders := w.judgeFences()
	w.Figure("instances: one, %d instances on 3 servers, %d messages, faults: %s: %d holders one after the other, 0 starts by an earlier one, 0 lost, %d duplicates ≤ %d; at rest after %v",
		l.instances, r.Published, f.nemesis, holders, r.Duplicates, r.Bound, r.RestAfter.Round(ms))
}

func order(w *World, l fleetLoad) {
	w.T.Helper()
	l.set("order", "key")
	f := w.fleet(l)
	f.run(l)
	r := w.Check(Expect{Within: 2 * time.Minute, Each: true, MaxAttempts: 50})
	w.judgeKeys()
	holders := w.judgeFences()
	w.Figure("order: key, %d instances on 3 servers, %d messages on 40 keys, faults: %s: %d holders, 0 out of order, 0 lost, %d duplicates ≤ %d; at rest after %v",
		l.instances, r.Published, f.nemesis, holders, r.Duplicates, r.Bound, r.RestAfter.Round(ms))
}

func limitOfTheService(w *World, l fleetLoad) {
	w.T.Helper()
	const places = 7
	l.set("limits", []string{"gateway"})
	l.top = M{"limits": M{"gateway": M{"concurrency": places, "scope": "service"}}}
	f := w.fleet(l)
	f.places = []placesAt{{time.Now(), places}}
	if l.kinds == nil {
		f.kinds = append(slices.Clone(f.kinds), kind{"reload", 4, func(*nemesis) { f.setLimit(3 + w.Rand.IntN(10)) }})
	}
	f.run(l)
	f.setLimit(20) // for what waits
	r := w.Check(Expect{Within: 2 * time.Minute, Each: true, MaxAttempts: 50})
	most := f.judgeLimit()
	w.Figure("a limit of the service, %d instances on 3 servers, %d messages, faults: %s: %d at once at most, never above the limit, 0 lost, %d duplicates ≤ %d; at rest after %v",
		l.instances, r.Published, f.nemesis, most, r.Duplicates, r.Bound, r.RestAfter.Round(ms))
}

func TestFleet_singleton(t *testing.T) {
	singleton(begin(t), of(fleetLoad{instances: 2, count: 1200, rate: 150, faults: 4, takes: 40}, fleetLoad{instances: 5, count: 30_000, rate: 200, faults: 60, takes: 60}))
}

func TestFleet_order(t *testing.T) {
	order(begin(t), of(fleetLoad{instances: 2, count: 1200, rate: 150, faults: 4, takes: 40}, fleetLoad{instances: 5, count: 30_000, rate: 200, faults: 60, takes: 60}))
}

func TestFleet_limit(t *testing.T) {
	limitOfTheService(begin(t), of(fleetLoad{instances: 3, count: 1000, rate: 120, faults: 4, takes: 80}, fleetLoad{instances: 5, count: 20_000, rate: 120, faults: 60, takes: 80}))
}

// frozen is a fault that needs the lease.
var frozen = []kind{{"freeze relay", 1, func(n *nemesis) {
	for _, r := range n.relays { // whoever has the route is among them
		n.w.Pause(r.Proc, 4*time.Second)
	}
}}}

// Instances are stopped and started again in turn, on servers that are some milliseconds from one another. No message waits for the ack wait: what
// the leader of the durable still sends to an instance that ends, goes back.
func TestFleet_rollingStops(t *testing.T) {
	w := begin(t)
	w.StartNATS(NATSConfig{Replicas: 3, Links: true})
	w.Connect()
	w.Stream()
	h := w.StartHandler("")
	var relays []*Relay
	for i := range 3 {
		relays = append(relays, w.StartRelay(fmt.Sprintf("r%d", i+1), h, RelayConfig{URL: w.nats.Nodes[i].url(), Route: M{"ack_wait": "20s"}}))
	}
	for _, n := range w.nats.Nodes {
		for _, p := range n.links {
			p.Delay(5 * time.Millisecond)
		}
	}
	stop := make(chan struct{})
	wait := background(func() {
		w.Produce(Load{Count: 1 << 30, Rate: 300, Stop: stop, Subject: func(i int) string { return fmt.Sprintf("t.%d", i%500) }, Script: func(i int) ledger.Script { return ledger.Script{Sleep: i % 10} }})
	})
	stops := of(4, 60)
	var longest time.Duration
	for i := range stops {
		time.Sleep(w.Between(200*ms, 600*ms))
		r := relays[i%3]
		at := time.Now()
		r.Signal(syscall.SIGTERM)
		if code, ok := r.Wait(7 * time.Second); !ok || code != 0 {
			t.Fatalf("%s ended with %d (ended %v)", r.Name, code, ok)
		}
		longest = max(longest, time.Since(at))
		w.Note("%s ended after %v", r.Name, time.Since(at).Round(ms))
		r.Start()
		r.WaitReady(20 * time.Second)
	}
	close(stop)
	wait()
	zero := 0
	r := w.Check(Expect{Bound: &zero, Within: 40 * time.Second})
	first := make(map[string]time.Time)
	for _, run := range w.ledgers.Runs {
		if at, ok := first[run.ID]; !ok || run.Start.Before(at) {
			first[run.ID] = run.Start
		}
	}
	var slowest time.Duration
	late := 0
	for _, p := range w.Pubs() {
		d := first[p.Script.ID].Sub(p.At)
		if slowest = max(slowest, d); d > 8*time.Second {
			late++
		}
	}
	if late > 0 {
		w.Wrong(Stalled, "%d of %d messages waited for the ack wait", late, r.Published)
	}
	w.Figure("%d stops in turn, servers 10 ms from one another, 300 messages a second: %d messages, the slowest started after %v; a stop took %v at most",
		stops, r.Published, slowest.Round(ms), longest.Round(ms))
}

// held is a load of which much waits in the instances, for longer than the freeze: only the lease keeps it from being started afterwards.
var held = fleetLoad{instances: 2, count: 800, rate: 100, faults: 1, takes: 200, kinds: frozen, route: M{"ack_wait": "30s", "concurrency": 4}}

func TestTeeth_lease(t *testing.T) {
	bites(t, "lease", NotFenced, func(w *World) { singleton(w, held) })
}

func TestTeeth_alone(t *testing.T) {
	bites(t, "alone", Disordered, func(w *World) {
		order(w, fleetLoad{instances: 2, count: 400, rate: 200, takes: 40})
	})
}

func TestTeeth_leaseLimit(t *testing.T) {
	l := held
	l.route = M{"ack_wait": "30s"}
	bites(t, "lease", Above, func(w *World) { limitOfTheService(w, l) })
}
