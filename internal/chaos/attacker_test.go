package chaos

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/chaos/ledger"
)

// Attacker is a publisher who may publish to the subjects of a route and does its worst: 100 new keys a second whose messages
// fail, hang, are refused, are huge or have headers that nobody means. Whoever publishes beside it must not notice, and nothing
// of anybody's is lost, the attacker's own included.
//
// One thing it can take is slots: while a message hangs, it has one until its timeout. The route has more slots than the attacker
// begins messages within a timeout and their retries, or its neighbours would wait for the rest of that timeout.

const attackRate = 100

// attack is a shape of messages.
type attack struct {
	name   string
	script func(r *rand.Rand) ledger.Script
	header func(r *rand.Rand) nats.Header
}

func does(do string) func(*rand.Rand) ledger.Script {
	return func(*rand.Rand) ledger.Script { return ledger.Script{Do: do} }
}

var attacks = []attack{
	{name: "failing", script: does("fail")},
	{name: "refused", script: does("dead")},
	{name: "hanging", script: does("hang")},
	{name: "away", script: does("status503")},
	{name: "huge", script: func(r *rand.Rand) ledger.Script {
		return ledger.Script{Do: "fail", Pad: strings.Repeat("x", of(32<<10, 200<<10)+r.IntN(1000))}
	}},
	{name: "headers", script: does("fail"), header: garbage},
	{name: "random", script: func(r *rand.Rand) ledger.Script {
		return ledger.Script{Do: []string{"fail", "dead", "hang", "status503", "status429", "ok"}[r.IntN(6)], Pad: strings.Repeat("y", r.IntN(4096))}
	}, header: garbage},
}

// garbage are headers that mean something to relay, to the server or to HTTP, and do not mean it here. A deadline is not among
// them: a message whose publisher says that it is too late is not started, and that is right.
func garbage(r *rand.Rand) nats.Header {
	h := nats.Header{}
	for range r.IntN(20) {
		name := []string{
			"Relay-Attempt", "Relay-Id", "Relay-Due", "Relay-Format", "Relay-Replay", "Relay-Key", "relay-interest", "RELAY-REPLY-TO", "Relay-Route",
			"Nats-Stream", "Nats-Sequence", "Nats-Num-Pending", "Status", "Description", "Host", "Content-Length", "Transfer-Encoding", "webhook-id",
			fmt.Sprintf("X-%x", r.Uint64()),
		}[r.IntN(19)]
		h.Add(name, []string{"", "-1", "99999999999999999999", "chunked", "2001-01-01T00:00:00Z", "a\x1bb\xff", strings.Repeat("z", r.IntN(2000))}[r.IntN(7)])
	}
	return h
}

func attacker(t *testing.T, a attack) {
	w := begin(t)
	h := simple(w)
	w.StartRelay("r1", h, RelayConfig{Route: M{
		"concurrency": 256, "timeout": "500ms", "retry": M{"max_attempts": 3, "min": "200ms", "max": "1s"}, "supervisor": M{},
	}})
	length := of(1500*ms, 60*time.Second)
	healthy := func(name string, count int, stop <-chan struct{}) {
		w.Produce(Load{Count: count, Rate: attackRate, Stop: stop, Subject: func(i int) string { return fmt.Sprintf("t.%s.%d", name, i) }})
	}
	n := int(length.Seconds() * attackRate)
	healthy("alone", n, nil)
	base := w.delays("t.alone.")

	end := make(chan struct{})
	beside := background(func() { healthy("beside", 1<<30, end) })
	seeded := rand.New(rand.NewPCG(w.Seed, 17))
	load := Load{
		Count: 2 * n, Rate: attackRate, Subject: func(i int) string { return fmt.Sprintf("t.bad.%d", i) },
		Script: func(int) ledger.Script { return a.script(seeded) },
	}
	if a.header != nil {
		load.Header = func(int) nats.Header { return a.header(seeded) }
	}
	w.Produce(load)
	// Healthy messages go on until the attacker's are done with: alone, they would be an outage, in which nothing is charged.
	took, done := w.Within(of(40*time.Second, 60*time.Second), func() bool { r := w.rest(); return r.err == nil && r.parked == 0 && r.ackPending+r.pending < 10 })
	close(end)
	beside()
	if !done {
		t.Errorf("%s: what the attacker published is not done with after %v: %v", NotDrained, took, w.rest())
	}
	// The healthy start once. The attacker's have no bound: while the route or their key is in doubt they are asked without spending an attempt.
	r := w.Check(Expect{Within: 30 * time.Second, Each: true, Free: func(p *Pub) bool { return strings.HasPrefix(p.Subject, "t.bad.") }, Tolerate: tolerated(a)})
	got := w.delays("t.beside.")
	floor := of(probeInterval+roundPatience+4*time.Second, 100*ms)
	if most := max(floor, 2*base.p99+base.p50); got.p99 > most {
		w.Wrong(Stalled, "%s: p99 of healthy messages is %v beside the attacker and %v without, want ≤ %v", a.name, got.p99, base.p99, most)
	}
	w.Figure("%s, %d new keys/s for %v: %d healthy messages p50 %v, p99 %v, max %v; alone %v, %v, %v; %d dead letters, 0 lost",
		a.name, attackRate, 2*length, got.n, got.p50.Round(ms), got.p99.Round(ms), got.max.Round(ms), base.p50.Round(ms), base.p99.Round(ms), base.max.Round(ms), r.Dead)
}

// tolerated are classes that say nothing of a shape: a message whose headers set another deadline or attempt may end otherwise.
func tolerated(a attack) []Class {
	if a.header != nil {
		return []Class{Bystander}
	}
	return nil
}

type delays struct {
	n             int
	p50, p99, max time.Duration
}

// delays are those from publish to the first start, of the messages on these subjects that have started.
func (w *World) delays(prefix string) (d delays) {
	w.T.Helper()
	if err := w.ledgers.Refresh(); err != nil {
		w.T.Fatal(err)
	}
	first := make(map[string]time.Time)
	for _, run := range w.ledgers.Runs {
		if at, ok := first[run.ID]; !ok || run.Start.Before(at) {
			first[run.ID] = run.Start
		}
	}
	var all []time.Duration
	for _, p := range w.Pubs() {
		at, ok := first[p.Script.ID]
		if strings.HasPrefix(p.Subject, prefix) && ok {
			all = append(all, max(0, at.Sub(p.At)))
		}
	}
	if len(all) == 0 {
		w.T.Fatalf("nothing on %s has started", prefix)
	}
	slices.SortFunc(all, cmp.Compare)
	return delays{len(all), all[len(all)/2], all[len(all)*99/100], all[len(all)-1]}
}

func TestAttacker_nobodyNotices(t *testing.T) {
	t.Parallel()
	if !Full {
		w := *seedFlag
		if w == 0 {
			w = uint64(time.Now().UnixNano())
		}
		a := attacks[w%uint64(len(attacks))]
		t.Run(a.name, func(t *testing.T) { attacker(t, a) })
		return
	}
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) { attacker(t, a) })
	}
}
