package chaos

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/chaos/ledger"
)

// Rows of docs/reliability.md: the NATS server and cluster.

func TestF15_natsKilled(t *testing.T) {
	w := begin(t)
	h := simple(w)
	r1 := w.StartRelay("r1", h, RelayConfig{})
	v := NewWatch(w)
	wait := background(func() { w.Produce(Load{Count: of(1500, 30_000), Rate: of(1000, 800), Script: mixed(10, 20)}) })
	var back time.Duration
	downs := of([]time.Duration{100 * ms}, []time.Duration{100 * ms, 5 * time.Second, 100 * ms, 100 * ms, 60 * time.Second})
	for _, down := range downs {
		time.Sleep(w.Between(400*ms, 700*ms))
		n := w.nats.Nodes[0]
		w.KillNATS(n)
		time.Sleep(down)
		n.Start()
		n.Up()
		at := time.Now()
		w.Note("n1 is up again after %v", down)
		w.Eventually(10*time.Second, "a handler starts after the restart", func() bool { return !w.FirstStart(at).IsZero() })
		back = max(back, w.FirstStart(at).Sub(at))
	}
	wait()
	r := w.Check(Expect{Within: time.Minute, Each: true})
	if back > 5*time.Second {
		t.Errorf("I-12: the first handler started %v after nats-server was back, want ≤ 5s", back)
	}
	if code, ended := r1.Wait(0); ended {
		t.Errorf("relay ended with %d", code)
	}
	w.Figure("%d kills of nats-server, down %v, %d messages: 0 lost, %d duplicates ≤ %s; first handling ≤ %v after it was back; longest standstill %v",
		len(downs), downs, r.Published, r.Duplicates, r.Arithmetic, back.Round(ms), v.End().Round(ms))
}

func TestF16_natsTerminated(t *testing.T) {
	w := begin(t)
	h := simple(w)
	w.StartRelay("r1", h, RelayConfig{})
	wait := background(func() { w.Produce(Load{Count: of(1000, 10_000), Rate: 1000, Script: sleeping(10)}) })
	for range of(1, 10) {
		time.Sleep(w.Between(300*ms, 600*ms))
		n := w.nats.Nodes[0]
		n.Signal(syscall.SIGTERM)
		if _, ok := n.Wait(10 * time.Second); !ok {
			t.Fatal("nats-server does not end")
		}
		w.Note("TERM n1")
		n.Start()
		n.Up()
	}
	wait()
	zero := 0
	r := w.Check(Expect{Bound: &zero, Each: true})
	w.Figure("%d restarts of nats-server by TERM, %d messages: %d duplicates", of(1, 10), r.Published, r.Duplicates)
}

func TestF17_natsPaused(t *testing.T) {
	w := begin(t)
	h := simple(w)
	r1 := w.StartRelay("r1", h, RelayConfig{Route: M{"ack_wait": "1s"}})
	wait := background(func() { w.Produce(Load{Count: of(800, 10_000), Rate: of(600, 300), Script: mixed(20, 20)}) })
	var back, unready time.Duration
	for _, d := range of([]time.Duration{2 * time.Second}, []time.Duration{time.Second, 5 * time.Second, 20 * time.Second, 60 * time.Second}) {
		time.Sleep(w.Between(300*ms, 500*ms))
		n := w.nats.Nodes[0]
		before := w.InFlight()
		n.Signal(syscall.SIGSTOP)
		w.fault(fmt.Sprintf("stop n1 for %v", d), time.Now(), before)
		at := time.Now()
		if d > 4*time.Second {
			took, ok := w.Within(d, func() bool { ready, _ := r1.Ready(); return !ready })
			if !ok {
				t.Errorf("I-30: still ready %v after NATS stopped", took)
			}
			unready = max(unready, took)
		}
		time.Sleep(time.Until(at.Add(d)))
		n.Signal(syscall.SIGCONT)
		up := time.Now()
		w.Note("continue n1")
		w.Eventually(15*time.Second, "a handler starts afterwards", func() bool { return !w.FirstStart(up).IsZero() })
		back = max(back, w.FirstStart(up).Sub(up))
	}
	wait()
	r := w.Check(Expect{Within: time.Minute, Each: true})
	if back > 5*time.Second {
		t.Errorf("I-12: the first handler started %v after nats-server went on, want ≤ 5s", back)
	}
	w.Figure("nats-server stopped: 0 lost of %d, %d duplicates ≤ %s; first handling ≤ %v after, unready ≤ %v", r.Published, r.Duplicates, r.Arithmetic, back.Round(ms), unready.Round(ms))
}

// cluster starts three servers.
func cluster(w *World) *Handler {
	w.T.Helper()
	w.StartNATS(NATSConfig{Replicas: 3})
	w.Connect()
	w.Stream()
	return w.StartHandler("")
}

func TestF18_leaderKills(t *testing.T) {
	w := begin(t)
	h := cluster(w)
	w.StartRelay("r1", h, RelayConfig{})
	v := NewWatch(w)
	stop := make(chan struct{})
	wait := background(func() {
		w.Produce(Load{Count: of(1500, 1_000_000), Rate: of(400, 300), Script: mixed(10, 20), Stop: stop})
	})
	var back, election time.Duration
	kills := of(1, 20)
	for i := range kills {
		time.Sleep(w.Between(500*ms, time.Second))
		var n *Node
		if w.Rand.IntN(2) == 0 || i == 0 {
			n = w.Leader("T", "work")
		} else {
			n = w.Leader("T", "")
		}
		w.KillNATS(n)
		at := time.Now()
		// The election is the servers' own affair and takes them 4 to 10 s: relay's time begins when both have a leader.
		var elected time.Time
		w.Eventually(30*time.Second, "a handler starts under the new leader", func() bool {
			if elected.IsZero() && w.led("T", "work", n.Name) {
				elected = time.Now()
			}
			return !elected.IsZero() && !w.FirstStart(at.Add(50*ms)).IsZero()
		})
		election = max(election, elected.Sub(at))
		back = max(back, w.FirstStart(at.Add(50*ms)).Sub(elected))
		n.Start()
		n.Up()
		time.Sleep(of(0, 3*time.Second)) // the node catches up: two dead ones are another row
	}
	close(stop)
	wait()
	r := w.Check(Expect{Within: time.Minute})
	if back > 10*time.Second {
		t.Errorf("I-12: %v until the first handling under a new leader, want ≤ 10s", back)
	}
	w.Figure("R3, %d kills of the leader, %d messages: 0 lost, %d duplicates ≤ %s; elections ≤ %v, first handling ≤ %v after; longest standstill %v",
		kills, r.Published, r.Duplicates, r.Arithmetic, election.Round(ms), back.Round(ms), v.End().Round(ms))
}

func TestF19_stepDowns(t *testing.T) {
	w := begin(t)
	h := cluster(w)
	w.StartRelay("r1", h, RelayConfig{})
	v := NewWatch(w)
	stop := make(chan struct{})
	wait := background(func() {
		w.Produce(Load{Count: 1_000_000, Rate: of(400, 300), Script: mixed(10, 20), Stop: stop})
	})
	steps := of(4, 200)
	for i := range steps {
		time.Sleep(w.Between(300*ms, of(700*ms, 2*time.Second)))
		w.StepDown("T", []string{"work", "work", ""}[i%3])
	}
	close(stop)
	wait()
	r := w.Check(Expect{Within: time.Minute})
	w.Figure("R3, %d step-downs under load, %d messages: 0 lost, %d duplicates ≤ %s; longest standstill %v", steps, r.Published, r.Duplicates, r.Arithmetic, v.End().Round(ms))
}

// F20: two of three servers are gone for a while. What cannot be settled is not started.
func TestF20_majorityLost(t *testing.T) {
	w := begin(t)
	h := cluster(w)
	w.StartRelay("r1", h, RelayConfig{})
	stop := make(chan struct{})
	wait := background(func() { w.Produce(Load{Count: 1_000_000, Rate: of(300, 200), Script: mixed(10, 20), Stop: stop}) })
	time.Sleep(w.Between(500*ms, time.Second))
	nodes := w.nats.Nodes
	keep := w.Rand.IntN(3)
	before := w.InFlight()
	for i, n := range nodes {
		if i != keep {
			w.KillNATS(n)
		}
	}
	time.Sleep(2 * time.Second)
	started := w.Starts()
	time.Sleep(of(2*time.Second, 58*time.Second))
	storm := w.Starts() - started
	if storm > before {
		t.Errorf("F20: %d handlers started without a quorum, %d were in flight", storm, before)
	}
	for i, n := range nodes {
		if i != keep {
			n.Start()
			n.Up()
		}
	}
	at := time.Now()
	var elected time.Time
	w.Eventually(40*time.Second, "a handler starts once there is a quorum", func() bool {
		if elected.IsZero() && w.led("T", "work", "") {
			elected = time.Now()
		}
		return !elected.IsZero() && !w.FirstStart(at).IsZero()
	})
	back := w.FirstStart(at).Sub(elected)
	close(stop)
	wait()
	r := w.Check(Expect{Within: time.Minute})
	if back > 10*time.Second {
		t.Errorf("I-12: %v until the first handling with a quorum, want ≤ 10s", back)
	}
	w.Figure("R3, two of three servers away for %v: %d starts meanwhile, first handling ≤ %v after the election (%v), 0 lost of %d, %d duplicates ≤ %s",
		of(4*time.Second, time.Minute), storm, max(0, back).Round(ms), elected.Sub(at).Round(ms), r.Published, r.Duplicates, r.Arithmetic)
}

// F21: all three are restarted, one after the other.
func TestF21_rollingRestart(t *testing.T) {
	w := begin(t)
	h := cluster(w)
	w.StartRelay("r1", h, RelayConfig{})
	v := NewWatch(w)
	stop := make(chan struct{})
	wait := background(func() { w.Produce(Load{Count: 1_000_000, Rate: of(300, 200), Script: mixed(10, 20), Stop: stop}) })
	time.Sleep(500 * ms)
	rounds := of(1, 3)
	for range rounds {
		for _, n := range w.nats.Nodes {
			w.Cut("TERM " + n.Name)
			n.Signal(syscall.SIGTERM)
			if _, ok := n.Wait(20 * time.Second); !ok {
				t.Fatal("nats-server does not end")
			}
			n.Start()
			n.Up()
			w.Eventually(30*time.Second, "everything is led", func() bool { return w.led("T", "work", "") })
			time.Sleep(of(500*ms, 3*time.Second)) // the node catches up
		}
	}
	close(stop)
	wait()
	r := w.Check(Expect{Within: time.Minute})
	w.Figure("R3, %d rolling restarts of all three under load: 0 lost of %d, %d duplicates ≤ %s, longest standstill %v", rounds, r.Published, r.Duplicates, r.Arithmetic, v.End().Round(ms))
}

func TestF22_durableDeleted(t *testing.T) {
	w := begin(t)
	h := simple(w)
	r1 := w.StartRelay("r1", h, RelayConfig{})
	stop := make(chan struct{})
	wait := background(func() {
		w.Produce(Load{Count: 100_000, Rate: 500, Script: sleeping(10), Stop: stop})
	})
	time.Sleep(500 * ms)
	w.must("delete the durable", func(ctx context.Context) error { return w.js.DeleteConsumer(ctx, "T", "work") })
	w.Note("durable deleted")
	at := time.Now()
	var why string
	took, ok := w.Within(10*time.Second, func() bool {
		var ready bool
		ready, why = r1.Ready()
		return !ready && strings.Contains(why, "deleted")
	})
	if !ok || took > 5*time.Second {
		t.Errorf("F22: the route says that its durable was deleted after %v (%v): %q", took, ok, why)
	}
	time.Sleep(time.Until(at.Add(of(3*time.Second, 7*time.Second)))) // time to make it again
	close(stop)
	wait()
	_, err := w.js.Consumer(t.Context(), "T", "work")
	exists := err == nil
	if exists && !strings.Contains(r1.LogText(), "created again") && !strings.Contains(strings.ToLower(r1.LogText()), "recreat") {
		t.Error("F22: the durable was made again without a word")
	}
	if first := w.FirstStart(at.Add(of(2*time.Second, 6*time.Second))); !first.IsZero() && !exists {
		t.Error("handlers start without a durable")
	}
	w.Figure("durable deleted under load: said so after %v (%.60s)", took.Round(ms), why)
}

func TestF23_streamReplaced(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"purged", "deleted", "made anew"} {
		t.Run(what, func(t *testing.T) {
			w := begin(t)
			h := simple(w)
			r1 := w.StartRelay("r1", h, RelayConfig{Route: M{"ack_wait": "1s"}})
			w.Produce(Load{Count: 300, Script: sleeping(200)})
			w.Eventually(5*time.Second, "handlers run", func() bool { return w.Running() > 30 })
			s, err := w.js.Stream(t.Context(), "T")
			if err != nil {
				t.Fatal(err)
			}
			if what == "purged" {
				if err := s.Purge(t.Context()); err != nil {
					t.Fatal(err)
				}
				w.Note("purged")
				w.mu.Lock()
				old := len(w.pubs)
				w.mu.Unlock()
				w.Produce(Load{Count: 100})
				r := w.Check(Expect{GoneOK: func(p *Pub) bool { return slices.Contains(w.Pubs()[:old], p) }})
				if n := strings.Count(r1.LogText(), `"level":"ERROR"`); n > 0 {
					t.Errorf("%d errors in the log after a purge:\n%s", n, tail(r1.LogText(), 5))
				}
				w.Figure("stream purged under load: the %d messages after it are handled, %d duplicates, no errors in the log", 100, r.Duplicates)
				return
			}
			if err := w.js.DeleteStream(t.Context(), "T"); err != nil {
				t.Fatal(err)
			}
			w.Note("stream deleted")
			if what == "made anew" {
				w.Stream()
				// The same sequences once more: an old ack must not settle them.
				w.mu.Lock()
				w.pubs, w.unsure = nil, nil
				w.mu.Unlock()
				w.Produce(Load{Count: 300})
			}
			var why string
			took, ok := w.Within(15*time.Second, func() bool {
				ready, s := r1.Ready()
				why = s
				return !ready && strings.Contains(s, "work")
			})
			if !ok || took > 5*time.Second {
				t.Errorf("F23: relay says what became of the stream after %v (%v): %q", took, ok, why)
			}
			if what == "made anew" {
				// Whatever is left in flight of the old stream has ended by now, and was acked or not. A fresh relay must
				// find all of the new messages.
				r1.Signal(syscall.SIGTERM)
				r1.Wait(10 * time.Second)
				w.StartRelay("r2", h, RelayConfig{Route: M{"ack_wait": "1s"}})
				w.Check(Expect{Unbounded: true, Tolerate: []Class{Unexpected}})
			}
			w.Figure("stream %s under load: said so after %v (%.80s)", what, took.Round(ms), why)
		})
	}
}

// I-23: a durable that somebody configured otherwise is never altered; relay says which field.
func TestF25_durableDiffers(t *testing.T) {
	w := begin(t)
	h := simple(w)
	base := jetstream.ConsumerConfig{
		Durable: "work", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 2 * time.Second, MaxDeliver: -1, MaxAckPending: 65536, MaxWaiting: 512,
	}
	type variant struct {
		field  string
		change func(*jetstream.ConsumerConfig)
	}
	cases := []variant{
		{"ack_wait", func(c *jetstream.ConsumerConfig) { c.AckWait = 9 * time.Second }},
		{"max_deliver", func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 5 }},
		{"filter", func(c *jetstream.ConsumerConfig) { c.FilterSubject = "t.1" }},
		{"ack_policy", func(c *jetstream.ConsumerConfig) { c.AckPolicy = jetstream.AckAllPolicy }},
		{"max_ack_pending", func(c *jetstream.ConsumerConfig) { c.MaxAckPending = 10 }},
		{"backoff", func(c *jetstream.ConsumerConfig) {
			c.BackOff = []time.Duration{2 * time.Second, 3 * time.Second}
			c.MaxDeliver = 3
		}},
		{"filter", func(c *jetstream.ConsumerConfig) { c.FilterSubjects = []string{"t.1", "t.2"} }},
		{"inactive", func(c *jetstream.ConsumerConfig) { c.InactiveThreshold = time.Hour }},
		{"headers_only", func(c *jetstream.ConsumerConfig) { c.HeadersOnly = true }},
		{"max_batch", func(c *jetstream.ConsumerConfig) { c.MaxRequestBatch = 5 }},
		{"max_expires", func(c *jetstream.ConsumerConfig) { c.MaxRequestExpires = 2 * time.Second }},
		{"max_bytes", func(c *jetstream.ConsumerConfig) { c.MaxRequestMaxBytes = 4096 }},
		{"mem_storage", func(c *jetstream.ConsumerConfig) { c.MemoryStorage = true }},
		{"replay_policy", func(c *jetstream.ConsumerConfig) { c.ReplayPolicy = jetstream.ReplayOriginalPolicy }},
		{"priority", func(c *jetstream.ConsumerConfig) {
			c.PriorityPolicy, c.PriorityGroups = jetstream.PriorityPolicyOverflow, []string{"a"}
		}},
		{"pause", func(c *jetstream.ConsumerConfig) { u := time.Now().Add(time.Hour); c.PauseUntil = &u }},
		{"max_waiting", func(c *jetstream.ConsumerConfig) { c.MaxWaiting = 3 }},
		{"deliver_policy", func(c *jetstream.ConsumerConfig) { c.DeliverPolicy = jetstream.DeliverNewPolicy }},
		{"ack_policy", func(c *jetstream.ConsumerConfig) { c.AckPolicy = jetstream.AckNonePolicy; c.MaxAckPending = 0 }},
	}
	n := of(3, len(cases))
	refused, started := 0, []string{}
	for i, c := range cases[:n] {
		cfg := base
		c.change(&cfg)
		_ = w.js.DeleteConsumer(t.Context(), "T", "work")
		before, err := w.js.CreateConsumer(t.Context(), "T", cfg)
		if err != nil {
			t.Errorf("%s: %v", c.field, err)
			continue
		}
		r := w.StartRelay(fmt.Sprintf("r%d", i), h, RelayConfig{NoWait: true})
		harmless := slices.Contains([]string{"pause", "max_waiting", "deliver_policy"}, c.field)
		patience := 10 * time.Second
		if harmless {
			patience = 1500 * ms
		}
		code, ended := r.Wait(patience)
		after, err := w.js.Consumer(t.Context(), "T", "work")
		if err != nil {
			t.Fatalf("%s: %v", c.field, err)
		}
		if a, b := fmt.Sprintf("%+v", before.CachedInfo().Config), fmt.Sprintf("%+v", after.CachedInfo().Config); a != b && c.field != "pause" {
			t.Errorf("I-23: %s was altered:\n%s\n%s", c.field, a, b)
		}
		switch {
		case !ended:
			started = append(started, c.field)
			if !harmless {
				t.Errorf("I-23: %s is not what relay needs, and was accepted", c.field)
			}
			r.Kill()
		case code != 2 || !strings.Contains(r.LogText(), c.field):
			t.Errorf("I-23: %s: exit code %d without naming it: %s", c.field, code, tail(r.LogText(), 3))
		default:
			refused++
		}
		w.Done(r.Proc)
	}
	w.Figure("%d durables with other settings: %d refused with the name of the field (exit 2), 0 altered; accepted as they are: %v", n, refused, started)
}

// F26: ten instances, two versions of the configuration, one new durable.
func TestF26_simultaneousStart(t *testing.T) {
	w := begin(t)
	h := simple(w)
	n := of(4, 10)
	relays := make([]*Relay, n)
	var wg sync.WaitGroup
	for i := range n {
		relays[i] = &Relay{}
		wg.Go(func() {
			relays[i] = w.StartRelay(fmt.Sprintf("r%d", i), h, RelayConfig{NoWait: true, Route: M{"ack_wait": []string{"2s", "3s"}[i%2]}})
		})
	}
	wg.Wait()
	var winners, losers, odd int
	w.Eventually(10*time.Second, "every instance is ready or gone", func() bool {
		winners, losers, odd = 0, 0, 0
		for _, r := range relays {
			if code, ended := r.Wait(0); ended {
				if code == 2 && strings.Contains(r.LogText(), "ack_wait") {
					losers++
				} else {
					odd++
					w.Note("%s ended with %d: %s", r.Name, code, tail(r.LogText(), 3))
				}
			} else if ready, why := r.Ready(); ready {
				winners++
			} else if strings.Contains(why, "ack_wait") { // it was not there when this one looked; it waits until that is mended
				losers++
			}
		}
		return winners+losers+odd == n
	})
	if winners != n/2 || losers != n/2 {
		t.Errorf("F26: %d run, %d stopped with the difference, %d otherwise: want %d, %d and 0\n%s", winners, losers, odd, n/2, n/2, strings.Join(w.Log(), "\n"))
	}
	w.Produce(Load{Count: 200, Script: func(int) ledger.Script { return ledger.Script{} }})
	r := w.Check(Expect{})
	w.Figure("%d instances at once, 2 configurations: %d run, %d stopped and named ack_wait; %d duplicates", n, winners, losers, r.Duplicates)
}
