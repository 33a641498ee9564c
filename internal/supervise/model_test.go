package supervise

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relaymq/relay/supervisor"

	"pgregory.net/rapid"
)

// The model: whatever handlers, operators and the clock do, no delivery is lost or settled twice, bounds hold, an ordered
// key keeps its order, and once handlers succeed everything is done.

// act is what a handler does with one attempt.
type act struct {
	kind  string
	after time.Duration
}

var actKinds = []string{
	"ack", "error", "error", "panic", "goexit", "snooze", "dead", "drop", "not started", "retry after", "retry in", "hang",
	"ignore", "clean stop", "lost", "nonsense",
}

func (a act) do(ctx context.Context) Verdict {
	if a.after > 0 {
		select {
		case <-ctx.Done():
			return Verdict{Kind: Retry, Err: ctx.Err()}
		case <-time.After(a.after):
		}
	}
	switch a.kind {
	case "ack":
		return ok
	case "panic":
		panic("boom")
	case "goexit":
		runtime.Goexit()
	case "snooze":
		return Verdict{Kind: Snooze, Delay: 3 * time.Second}
	case "dead":
		return Verdict{Kind: Dead, Err: errDown}
	case "drop":
		return Verdict{Kind: Drop, Err: errDown}
	case "not started":
		return Verdict{Kind: Retry, Err: errDown, NotStarted: true}
	case "retry after":
		return Verdict{Kind: Retry, Err: errDown, Delay: 2 * time.Second, Pause: true}
	case "retry in":
		return Verdict{Kind: Retry, Err: errDown, Delay: 4 * time.Second}
	case "hang":
		<-ctx.Done()
	case "ignore":
		time.Sleep(modelTimeout + 4*time.Second)
	case "clean stop":
		return Verdict{Kind: Ack, StopChild: true}
	case "lost":
		return Verdict{Kind: Lost}
	case "nonsense":
		return Verdict{Kind: 77}
	}
	return failed
}

const modelTimeout = 5 * time.Second

// op is a step from outside.
type op struct {
	kind string
	key  string
	n    int
	wait time.Duration
	to   Options // of a change
}

type modelCase struct {
	opts   Options
	own    bool // children of keys
	births []string
	ops    []op
	acts   []act
	// fallback is what the second handler does; nil: there is none.
	fallback []act
	calm     bool // nothing but the message's own policy delays it: trips, stops of others and operators are out
	maxKeys  int
}

func duration(t *rapid.T, name string, ds ...time.Duration) time.Duration {
	return rapid.SampledFrom(ds).Draw(t, name)
}

// drawConfig is any configuration.
func drawConfig(t *rapid.T) supervisor.Config {
	return supervisor.Config{
		TripAfter:          new(rapid.SampledFrom([]int{0, 1, 2, 5}).Draw(t, "trip_after")),
		RouteTrip:          supervisor.RouteTrip{Of: new(rapid.SampledFrom([]int{0, 3, 5}).Draw(t, "route_trip.of"))},
		DeadTrip:           supervisor.DeadTrip{Of: new(rapid.SampledFrom([]int{0, 4, 50}).Draw(t, "dead_trip"))},
		RetryAfter:         rapid.SampledFrom([]supervisor.Scope{scopeKey, supervisor.ScopeRoute}).Draw(t, "retry_after"),
		Trigger:            rapid.SampledFrom([]supervisor.Trigger{triggerAny, triggerAny, supervisor.TriggerFailure, supervisor.TriggerStop}).Draw(t, "trigger"),
		Reset:              rapid.SampledFrom([]supervisor.Reset{resetSuccess, supervisor.ResetMinStable, supervisor.ResetNever, "3s"}).Draw(t, "reset"),
		Forward:            rapid.SampledFrom([]supervisor.Forward{forwardStash, forwardStash, supervisor.ForwardGiveBack, supervisor.ForwardDrop}).Draw(t, "forward"),
		DrainGrace:         new(duration(t, "drain_grace", 0, 50*time.Millisecond, 2*time.Second)),
		ForwardDuringGrace: new(rapid.Bool().Draw(t, "forward_during_grace")),
		MaxRestarts:        rapid.SampledFrom([]int{0, 0, 1, 3}).Draw(t, "max_restarts"),
		Window:             duration(t, "window", time.Second, time.Minute),
		OnGiveUp:           rapid.SampledFrom([]supervisor.GiveUp{giveUpSuspend, supervisor.GiveUpDeadLetter, supervisor.GiveUpExit}).Draw(t, "on_give_up"),
		MaxStuck:           rapid.SampledFrom([]int{1, 100, 100}).Draw(t, "max_stuck"),
		MaxChildren:        rapid.IntRange(1, 4).Draw(t, "max_children"),
		ChildIdle:          duration(t, "child_idle", time.Second, 10*time.Second),
		Restart:            supervisor.Backoff{Min: 200 * time.Millisecond, Max: 5 * time.Second, Jitter: new(0.0)},
	}
}

// drawOptions are what may change of the options, but for the configuration and what is tried how often.
func drawOptions(t *rapid.T) Options {
	return Options{
		Retry:         supervisor.Backoff{Min: time.Second, Max: 8 * time.Second, Jitter: new(0.0)},
		Concurrency:   rapid.IntRange(1, 8).Draw(t, "concurrency"),
		StashMessages: rapid.SampledFrom([]int{1, 3, 1000}).Draw(t, "stash messages"),
		StashBytes:    rapid.SampledFrom([]int{150, 500, 1 << 20}).Draw(t, "stash bytes"),
		Timeout:       duration(t, "timeout", modelTimeout, modelTimeout, modelTimeout-2*time.Second),
	}
}

func calmConfig(cfg supervisor.Config) supervisor.Config {
	cfg.TripAfter, cfg.RouteTrip.Of, cfg.MaxRestarts, cfg.Trigger, cfg.Forward = new(0), new(0), 0, triggerAny, forwardStash
	cfg.MaxStuck = 100
	return cfg
}

func drawModel(t *rapid.T) modelCase {
	var c modelCase
	c.calm = rapid.IntRange(0, 3).Draw(t, "calm") == 0
	cfg := drawConfig(t)
	c.opts = drawOptions(t)
	c.opts.MaxAttempts, c.opts.Ordered = rapid.IntRange(1, 5).Draw(t, "max_attempts"), rapid.Bool().Draw(t, "ordered")
	kinds := actKinds
	ops := []string{"send", "send", "send", "sleep", "sleep", "change", "change handler", "suspend", "resume", "pause", "go on", "end waits", "trial", "lose", "late"}
	if c.calm {
		cfg = calmConfig(cfg)
		c.opts.Concurrency = 1
		kinds = []string{"ack", "error", "error", "error", "panic", "goexit", "not started", "hang", "ignore"}
		ops = ops[:7]
	}
	c.opts.Config = cfg
	c.own = rapid.Bool().Draw(t, "own children")
	c.births = rapid.SliceOfN(rapid.SampledFrom([]string{"", "", "", "error", "panic", "goexit", "slow", "hang"}), 1, 8).Draw(t, "births")
	c.maxKeys = rapid.IntRange(1, 6).Draw(t, "keys")
	c.acts = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) act {
		return act{
			rapid.SampledFrom(kinds).Draw(t, "act"),
			duration(t, "after", 0, 0, 100*time.Millisecond, 1500*time.Millisecond),
		}
	}), 1, 12).Draw(t, "acts")
	if rapid.Bool().Draw(t, "fallback") {
		c.opts.Fallback = &Fallback{
			Waiting: cfg.Forward == forwardStash && rapid.Bool().Draw(t, "waiting"), Exhausted: rapid.Bool().Draw(t, "exhausted"),
			Concurrency: rapid.IntRange(1, 4).Draw(t, "fallback concurrency"), Timeout: modelTimeout,
		}
		c.fallback = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) act {
			return act{rapid.SampledFrom(actKinds).Draw(t, "fallback act"), duration(t, "after", 0, 100*time.Millisecond, 1500*time.Millisecond)}
		}), 1, 8).Draw(t, "fallback acts")
	}
	c.ops = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) op {
		o := op{
			kind: rapid.SampledFrom(ops).Draw(t, "op"), key: fmt.Sprint("k", rapid.IntRange(1, c.maxKeys).Draw(t, "key")),
			n: rapid.IntRange(1, 6).Draw(t, "n"), wait: duration(t, "wait", time.Millisecond, time.Second, 20*time.Second, 10*time.Minute),
		}
		if strings.HasPrefix(o.kind, "change") {
			o.to = c.drawChange(t)
		}
		return o
	}), 1, 25).Draw(t, "ops")
	return c
}

// drawChange are other options for the same group.
func (c *modelCase) drawChange(t *rapid.T) Options {
	o := drawOptions(t)
	o.Config, o.MaxAttempts, o.Ordered = drawConfig(t), c.opts.MaxAttempts, c.opts.Ordered
	if c.opts.Config.Reset == supervisor.ResetNever || o.Config.Reset == supervisor.ResetNever {
		o.Config.Reset = c.opts.Config.Reset // what it remembers for ever is looked for at the end
	}
	if c.calm {
		o.Config, o.Concurrency = calmConfig(o.Config), 1
	}
	if f := c.opts.Fallback; f != nil {
		o.Fallback = &Fallback{
			Waiting: o.Config.Forward == forwardStash && rapid.Bool().Draw(t, "waiting"), Exhausted: f.Exhausted,
			Concurrency: f.Concurrency + rapid.IntRange(0, 2).Draw(t, "more"), Timeout: modelTimeout,
		}
	}
	return o
}

// change is a step that changes the group.
func (m *model) change(o op, n int) {
	rev := Revision{Options: o.to}
	rev.New, rev.Stop = m.c.opts.New, m.c.opts.Stop
	rev.Shared = fmt.Sprint("handler ", m.handlers)
	if o.kind == "change handler" {
		m.handlers++
		rev.Shared = fmt.Sprint("handler ", m.handlers)
		rev.Ended = m.ends(n)
		if o.to.Fallback != nil {
			rev.FallbackEnded = m.ends(-n)
		}
	}
	child := fmt.Sprint(rev.Shared)
	if m.c.own {
		child = ""
	}
	m.b.change(rev, child)
}

// ends notes that a handler was changed, and is told when the former one has ended.
func (m *model) ends(n int) func() {
	m.left[n] = true
	return func() {
		m.b.mu.Lock()
		defer m.b.mu.Unlock()
		if !m.left[n] {
			m.b.fault("the handler before change %d ends twice", n)
		}
		delete(m.left, n)
	}
}

// model knows what must hold.
type model struct {
	c      modelCase
	b      *bench
	healed bool
	key    map[uint64]string
	done   map[uint64]bool      // by a verdict
	dead   map[uint64]bool      // of these, by one that is not believed when the route is suspended
	spent  map[uint64]int       // attempts that failed
	again  map[uint64]time.Time // calm: not before
	alone  map[string]*Message  // ordered: what runs of a key
	// How often the handler was changed, and those of which something runs, or did.
	handlers int
	left     map[int]bool
	// Under holding:
	holding sync.Mutex
	gaps    []uint64 // below the messages that were lost, and did not come again
}

// start is called when a handler begins.
func (m *model) start(msg *Message, number int) {
	b, seq, now := m.b, msg.Sequence, time.Now()
	if m.done[seq] {
		if os := b.outcomes[seq]; !m.dead[seq] || len(os) > 0 && os[len(os)-1].Action == DeadLetter {
			b.fault("message %d starts again after it was done", seq)
		}
		m.done[seq], m.dead[seq] = false, false // what said so is not believed
	}
	m.inOrder(msg, now)
	if !m.c.calm {
		return
	}
	if number != m.spent[seq]+1 {
		b.fault("message %d: attempt %d after %d failed ones", seq, number, m.spent[seq])
	}
	if now.Before(m.again[seq]) {
		b.fault("message %d starts %v too early", seq, m.again[seq].Sub(now))
	}
}

// inOrder checks that no message of an ordered key starts beside another one, or before an earlier one.
func (m *model) inOrder(msg *Message, now time.Time) {
	b, seq := m.b, msg.Sequence
	if !m.c.opts.Ordered {
		return
	}
	if other := m.alone[msg.Key]; other != nil && (now.Before(b.live[other]) || now.Before(b.substitute.live[other])) {
		b.fault("message %d starts while %d of its key runs", seq, other.Sequence)
	}
	m.alone[msg.Key] = msg
	for s, key := range m.key {
		if key == msg.Key && s < seq && !m.done[s] && m.spent[s] < m.c.opts.MaxAttempts && !m.ended(s) {
			b.fault("message %d overtakes %d", seq, s)
		}
	}
}

// startSubstitute is start for the fallback.
func (m *model) startSubstitute(msg *Message) {
	if m.done[msg.Sequence] && !m.dead[msg.Sequence] {
		m.b.fault("message %d starts in the fallback after it was done", msg.Sequence)
	}
	m.inOrder(msg, time.Now())
}

// endSubstitute is end for the fallback: what it fails is as if nothing had been.
func (m *model) endSubstitute(ctx context.Context, msg *Message, v Verdict, returned bool) {
	if deadline, _ := ctx.Deadline(); !time.Now().Before(deadline.Add(hangGrace)) {
		return // it was given up before
	}
	if m.alone[msg.Key] == msg {
		m.alone[msg.Key] = nil
	}
	if returned && (v.Kind == Ack || v.Kind == Drop) {
		m.done[msg.Sequence] = true
	}
}

func (m *model) substitute(ctx context.Context, msg *Message, n int) Verdict {
	m.b.mu.Lock()
	healed := m.healed
	m.b.mu.Unlock()
	if healed {
		return ok
	}
	return m.c.fallback[(int(msg.Sequence)*5+n)%len(m.c.fallback)].do(ctx)
}

// ended tells whether a message left for good without a verdict: it was dropped, or its key gave up.
func (m *model) ended(seq uint64) bool {
	os := m.b.outcomes[seq]
	if len(os) == 0 {
		return false
	}
	a := os[len(os)-1].Action
	return a == DropMessage || a == DeadLetter || a == AckMessage
}

// end is called when a handler returns.
func (m *model) end(ctx context.Context, msg *Message, v Verdict, returned bool) {
	seq := msg.Sequence
	if deadline, _ := ctx.Deadline(); !time.Now().Before(deadline.Add(hangGrace)) {
		return // it was given up before
	}
	if m.alone[msg.Key] == msg {
		m.alone[msg.Key] = nil
	}
	if returned && (v.Kind == Ack || v.Kind == Dead || v.Kind == Drop) {
		m.done[seq], m.dead[seq] = true, v.Kind == Dead
	} else {
		m.fail(msg, returned && v.NotStarted)
	}
}

// fail notes a failed attempt.
func (m *model) fail(msg *Message, free bool) {
	seq := msg.Sequence
	if !free {
		m.spent[seq]++
	}
	m.again[seq] = time.Now().Add(m.b.g.opts.Retry.Base(max(0, m.spent[seq]-1)))
}

func (m *model) handle(ctx context.Context, msg *Message, n int) Verdict {
	m.b.mu.Lock()
	healed := m.healed
	m.b.mu.Unlock()
	if healed {
		return ok
	}
	a := m.c.acts[(int(msg.Sequence)*7+n)%len(m.c.acts)]
	if a.kind == "ignore" {
		deadline, _ := ctx.Deadline()
		time.AfterFunc(time.Until(deadline.Add(hangGrace)), func() {
			m.b.mu.Lock()
			defer m.b.mu.Unlock()
			m.fail(msg, false)
		})
	}
	return a.do(ctx)
}

// run plays the case and returns what went wrong.
func (m *model) run(t *testing.T) []string {
	c := &m.c // of which a change takes its New and Stop
	var births int
	if c.own {
		c.opts.New = func(ctx context.Context, key string) (any, error) {
			m.b.mu.Lock()
			kind := c.births[births%len(c.births)]
			if m.healed {
				kind = ""
			}
			births++
			m.b.mu.Unlock()
			switch kind {
			case "error":
				return nil, errDown
			case "panic":
				panic("no child")
			case "goexit":
				runtime.Goexit()
			case "slow":
				time.Sleep(2 * time.Second)
			case "hang":
				time.Sleep(modelTimeout + 3*time.Second)
			}
			return key, nil
		}
	}
	b := newBench(t, c.opts)
	m.b = b
	b.onStart, b.onEnd = m.start, m.end
	b.substitute.handle, b.substitute.onStart, b.substitute.onEnd = m.substitute, m.startSubstitute, m.endSubstitute
	next := uint64(1)
	for i, o := range c.ops {
		switch o.kind {
		case "change", "change handler":
			m.change(o, i+1)
		case "send":
			seqs := seq(next, next+uint64(o.n)-1)
			next += uint64(o.n)
			b.mu.Lock()
			for _, s := range seqs {
				m.key[s] = o.key
			}
			b.mu.Unlock()
			b.send(m.handle, o.key, seqs...)
		case "lose", "late": // with a connection, or by a link that stalled: they come again after AckWait
			seqs := seq(next, next+uint64(o.n)-1)
			next += uint64(o.n)
			m.lose(o, seqs)
		case "sleep":
			time.Sleep(o.wait)
		case "suspend":
			b.g.SuspendKey(o.key, "test")
		case "resume":
			b.g.ResumeKey(o.key)
		case "pause":
			b.g.Pause()
		case "go on":
			b.g.Resume()
		case "end waits":
			b.g.EndWaits(AtOnce)
		case "trial":
			b.g.EndWaits(Trial)
		}
		m.verify()
		b.g.Free()
	}
	m.heal(next)
	b.end()
	for n := range m.left {
		b.fault("the handler before change %d has not ended", n)
	}
	return b.faults
}

// lose has messages arrive after AckWait, while later ones arrive at once. The owner has noticed a gap in the numbers of the
// deliveries, or has let them go because they were too old.
func (m *model) lose(o op, seqs []uint64) {
	b := m.b
	b.mu.Lock()
	for _, s := range seqs {
		m.key[s] = o.key
	}
	b.mu.Unlock()
	if o.kind == "lose" {
		m.hold(func() { m.gaps = append(m.gaps, seqs[0]-1) })
	} else {
		for _, s := range seqs {
			b.g.Expect(o.key, s)
		}
	}
	time.AfterFunc(ackWait, func() {
		b.mu.Lock()
		closed := b.closed
		b.mu.Unlock()
		if closed {
			return
		}
		b.send(m.handle, o.key, seqs...)
		if o.kind == "lose" {
			// Several may end at the same moment, in any order.
			m.hold(func() { m.gaps = slices.DeleteFunc(m.gaps, func(gap uint64) bool { return gap == seqs[0]-1 }) })
		}
	})
}

// hold tells the group which messages have to wait.
func (m *model) hold(change func()) {
	m.holding.Lock()
	defer m.holding.Unlock()
	change()
	if len(m.gaps) == 0 {
		m.b.g.HoldBehind(0)
		m.b.g.HoldAbove(0, time.Time{})
		return
	}
	m.b.g.HoldAbove(m.gaps[0], time.Now().Add(ackWait+2*time.Second))
}

// heal has everything succeed, and waits until it has.
func (m *model) heal(next uint64) {
	b := m.b
	b.mu.Lock()
	m.healed = true
	b.mu.Unlock()
	b.g.Resume()
	for range 60 {
		for k := range m.c.maxKeys {
			b.g.ResumeKey(fmt.Sprint("k", k+1))
		}
		time.Sleep(time.Hour)
		m.verify()
	}
	if b.g.Status().Failed != nil {
		return
	}
	for s := uint64(1); s < next; s++ {
		if o, ended := b.final(s); !ended {
			b.mu.Lock()
			b.fault("message %d of %s is not done days after everything works: %+v", s, m.key[s], o)
			b.mu.Unlock()
		}
	}
	t := b.g.lock()
	defer t.unlock()
	if len(t.keys) > 0 && m.c.opts.Config.Reset != supervisor.ResetNever {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, k := range t.keys {
			b.fault("key %s is left: %v, %d failures, %d restarts", k.name, k.state.is(), k.failures, k.restarts)
		}
	}
}

// verify counts everything again.
func (m *model) verify() {
	synctest.Wait()
	m.b.check()
	m.b.settle()
	m.b.check()
	b := m.b
	t := b.g.lock()
	defer t.unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	window, stash, guests, failing, kids := usage{}, usage{}, usage{}, usage{}, 0
	probes, retries, lent, runs := 0, 0, 0, 0
	for _, b := range t.slots.births {
		if !b.former {
			kids++
		}
	}
	for _, l := range []*list[run]{&t.slots.running, &t.slots.overdue} {
		for r := range l.all() {
			if !t.nursery.former(r) {
				runs++
			}
			if r.round > 0 {
				probes++
			}
			if r.past == failedBefore {
				retries++
			}
		}
	}
	for _, k := range t.keys {
		lent += k.lent
		for _, l := range []*list[Message]{&k.fresh, &k.returned} {
			for m := range l.all() {
				window.add(m)
			}
		}
		for _, l := range []*list[Message]{&k.held, &k.later} {
			for m := range l.all() {
				if m.guest {
					guests.add(m)
				} else {
					stash.add(m)
				}
				if m.judged() {
					failing.add(m)
				}
			}
		}
		if k.child != nil && !k.child.shared {
			kids++
		}
		if k.held.n+k.later.n > 0 != t.stash.keys.has(&k.inStash) {
			b.fault("key %s: %d messages in the stash, listed: %v", k.name, k.held.n+k.later.n, t.stash.keys.has(&k.inStash))
		}
	}
	if failing != t.stash.failed || probes != t.route.probes || retries != t.slots.retries.runs {
		b.fault("counted %+v, %d, %d; the group says %+v, %d, %d", failing, probes, retries, t.stash.failed, t.route.probes, t.slots.retries.runs)
	}
	if runs != t.nursery.handler.runs {
		b.fault("%d runs of the handler, the group says %d", runs, t.nursery.handler.runs)
	}
	if lent > t.fallback.lent || t.fallback.lent > max(t.fallback.Concurrency, b.most.fallbackConcurrency()) {
		b.fault("keys have lent %d messages, the group %d, the fallback has %d slots", lent, t.fallback.lent, t.fallback.Concurrency)
	}
	if guests != t.stash.guests || guests.messages > firstPace {
		b.fault("counted %+v guests, the group says %+v", guests, t.stash.guests)
	}
	if window != t.window.usage || stash != t.stash.usage || kids > t.nursery.kids {
		b.fault("counted %+v, %+v, %d; the group says %+v, %+v, %d", window, stash, kids, t.window.usage, t.stash.usage, t.nursery.kids)
	}
}

func TestModel_nothingIsLost(t *testing.T) {
	for range 4 { // rapid has no setting for a number of cases but a flag
		checkModel(t)
	}
}

func checkModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{
			c: drawModel(rt), key: map[uint64]string{}, done: map[uint64]bool{}, dead: map[uint64]bool{}, spent: map[uint64]int{},
			again: map[uint64]time.Time{}, alone: map[string]*Message{}, left: map[int]bool{},
		}
		var faults []string
		synctest.Test(t, func(t *testing.T) { faults = m.run(t) })
		if len(faults) > 0 {
			rt.Fatal(strings.Join(faults, "\n"))
		}
	})
}
