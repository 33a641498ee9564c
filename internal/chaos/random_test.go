package chaos

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/chaos/ledger"
)

var soakFlag = flag.Duration("chaos.soak", 0, "length of TestF105_soak; 0 leaves it out")

// nemesis does what the seed says to a running system, one thing at a time, and nothing for a quarter of the time.
type nemesis struct {
	w       *World
	h       *Handler
	relays  []*Relay
	proxies []*Proxy
	watch   *Watch
	count   map[string]int
	kinds   []kind
}

// kind is a fault, with its weight.
type kind struct {
	name   string
	weight int
	do     func(n *nemesis)
}

// kinds of faults. Short pauses are within the lease, long ones beyond it.
var kinds = []kind{
	{"kill relay", 5, func(n *nemesis) {
		r := n.relay()
		n.w.KillRelay(r) // Keep starts it again
		n.quiet(0, 500*ms)
	}},
	{"drain relay", 2, func(n *nemesis) {
		r := n.relay()
		n.w.Cut("TERM " + r.Name)
		at := time.Now()
		r.Signal(syscall.SIGTERM)
		if code, ok := r.Wait(7 * time.Second); !ok || time.Since(at) > 6*time.Second {
			n.w.T.Errorf("I-13: %s took %v to drain (exit %d, ended %v)", r.Name, time.Since(at), code, ok)
			r.Signal(syscall.SIGQUIT) // its log says what it waits for
			r.Wait(time.Second)
			r.Kill()
		}
	}},
	{"pause relay", 3, func(n *nemesis) { n.w.Pause(n.relay().Proc, n.w.Between(200*ms, 5*time.Second)) }},
	{"kill nats", 3, func(n *nemesis) {
		s := n.node()
		n.w.KillNATS(s)
		n.quiet(0, time.Second)
		s.Start()
		s.Up()
	}},
	{"restart nats", 1, func(n *nemesis) {
		s := n.node()
		n.w.Cut("TERM " + s.Name)
		s.Signal(syscall.SIGTERM)
		if _, ok := s.Wait(10 * time.Second); !ok {
			s.Kill()
		}
		s.Start()
		s.Up()
	}},
	{"pause nats", 2, func(n *nemesis) { n.w.Pause(n.node().Proc, n.w.Between(100*ms, 3*time.Second)) }},
	{"stall link", 2, func(n *nemesis) {
		p := n.proxies[n.w.Rand.IntN(len(n.proxies))]
		which := n.w.Rand.IntN(3)
		f := n.w.Cut(fmt.Sprintf("stall link (%d)", which))
		p.Stall([]Ways{Up, Down, Up | Down}[which])
		// Deliveries may go on where acks do not: what is handled then comes again, too, once in an ack wait.
		for end := time.Now().Add(n.w.Between(100*ms, 4*time.Second)); time.Now().Before(end); {
			time.Sleep(min(time.Second, time.Until(end)))
			n.w.More(f)
		}
		p.Resume()
	}},
	{"cut link", 3, func(n *nemesis) {
		n.w.Cut("cut link")
		n.proxies[n.w.Rand.IntN(len(n.proxies))].Cut()
	}},
	{"slow handlers", 1, func(n *nemesis) { n.mode("slow") }},
	{"hanging handlers", 1, func(n *nemesis) { n.mode("hang") }},
	{"handlers down", 1, func(n *nemesis) { n.mode("down") }},
	{"step-down", 2, func(n *nemesis) {
		if len(n.w.nats.Nodes) > 1 {
			n.w.StepDown("T", []string{"", "work"}[n.w.Rand.IntN(2)])
		}
	}},
}

func (n *nemesis) relay() *Relay { return n.relays[n.w.Rand.IntN(len(n.relays))] }
func (n *nemesis) node() *Node   { return n.w.nats.Nodes[n.w.Rand.IntN(len(n.w.nats.Nodes))] }

func (n *nemesis) quiet(lo, hi time.Duration) { time.Sleep(n.w.Between(lo, hi)) }

func (n *nemesis) mode(mode string) {
	n.watch.Blind()
	n.h.Mode(mode)
	n.quiet(200*ms, 2*time.Second)
	n.h.Mode("ok")
	n.watch.See()
}

// step does one thing.
func (n *nemesis) step() {
	total := 0
	for _, k := range n.kinds {
		total += k.weight
	}
	pick := n.w.Rand.IntN(total)
	for _, k := range n.kinds {
		if pick -= k.weight; pick < 0 {
			n.count[k.name]++
			k.do(n)
			return
		}
	}
}

func (n *nemesis) String() string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(n.count)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, n.count[k]))
	}
	return strings.Join(parts, ", ")
}

// random runs the nemesis while messages are published.
func random(t *testing.T, servers, count, rate int, length time.Duration) {
	w := begin(t)
	w.StartNATS(NATSConfig{Replicas: servers})
	w.Connect()
	w.Stream()
	n := &nemesis{w: w, h: w.StartHandler(""), count: make(map[string]int), kinds: kinds}
	n.relays, n.proxies = make([]*Relay, 3), make([]*Proxy, 3)
	for i := range 3 {
		n.proxies[i] = NewProxy(t, strings.TrimPrefix(w.nats.Nodes[i%servers].url(), "nats://"))
		n.relays[i] = w.StartRelay(fmt.Sprintf("r%d", i+1), n.h, RelayConfig{URL: n.proxies[i].URL(), NoWait: true, Route: M{
			"timeout": "3s", "concurrency": 32, "retry": M{"max_attempts": of(8, 20), "min": "100ms", "max": "1s", "jitter": 0.2},
			// Keys that trip spend no attempts on probes, so that messages which only fail would not come to an end in the
			// time of a run.
			"supervisor": M{"trip_after": 0, "route_trip": M{"of": 0}, "dead_trip": M{"of": 0}},
		}})
		n.relays[i].Keep() // what cannot start because NATS is away, or slow, ends and is started again
	}
	for _, r := range n.relays {
		r.WaitReady(time.Minute)
	}
	n.watch = NewWatch(w)
	stop := make(chan struct{})
	produced := make(chan struct{})
	wait := background(func() {
		defer close(produced)
		w.Produce(Load{Count: count, Rate: rate, Stop: stop, Subject: func(i int) string { return fmt.Sprintf("t.%d", i%100) }, Script: func(i int) ledger.Script {
			switch {
			case i%200 == 199:
				return ledger.Script{Do: "fail"}
			case i%50 == 7:
				return ledger.Script{Do: "fail", Until: 2, Sleep: 5}
			case i%50 == 8:
				return ledger.Script{Do: "dead"}
			}
			return ledger.Script{Sleep: i % 20}
		}})
	})
	began := time.Now()
	for !stopped(produced) && (length == 0 || time.Since(began) < length) {
		if w.Rand.IntN(4) == 0 {
			n.quiet(200*ms, time.Second) // quiet for a quarter of the time
		}
		n.step()
		n.quiet(0, 500*ms)
	}
	if length > 0 {
		close(stop)
	}
	wait()
	w.Note("the nemesis rests")
	r := w.Check(Expect{Within: of(time.Minute, 3*time.Minute), Moods: true, MaxAttempts: of(8, 20)})
	stall := n.watch.End()
	w.Figure("%d servers, 3 instances, %d messages, faults: %s: %d lost, %d duplicates ≤ %d, %d bystanders, longest standstill %v; at rest after %v",
		servers, r.Published, n, len(r.Wrong[Lost]), r.Duplicates, r.Bound, len(r.Wrong[Bystander]), stall.Round(ms), r.RestAfter.Round(ms))
}

func TestRandom_oneServer(t *testing.T) { random(t, 1, of(2000, 50_000), of(500, 600), 0) }

// F105 runs as long as it is told: make soak.
func TestF105_soak(t *testing.T) {
	if *soakFlag == 0 {
		Missing(t, "make soak SOAK=1h runs it")
	}
	random(t, 1, 1<<40, 300, *soakFlag)
}
