package chaos

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// starts are the times at which one client handled something.
type starts struct {
	mu sync.Mutex
	at []time.Time
}

func (s *starts) add(at time.Time) {
	s.mu.Lock()
	s.at = append(s.at, at)
	s.mu.Unlock()
}

// pause is the time from the kill to the end of the last second without a start: what was on its way at the kill is handled before. ok is false while
// nothing was handled since.
func (s *starts) pause(kill time.Time) (back time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := kill
	for _, at := range s.at {
		if at.Before(kill) {
			continue
		}
		if d := at.Sub(last); d > time.Second {
			back, ok = at.Sub(kill), ok || d > 2*time.Second
		}
		last = at
	}
	return back, ok
}

// plainPull is what a program by hand does: it consumes with a heartbeat of a second, and its connection comes back as fast as relay's.
func plainPull(w *World, url, durable string, takes time.Duration) (*starts, func()) {
	w.T.Helper()
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(250*ms), nats.ReconnectJitter(750*ms, 750*ms))
	if err != nil {
		w.T.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		w.T.Fatal(err)
	}
	c, err := js.Consumer(w.T.Context(), "T", durable)
	if err != nil {
		w.T.Fatal(err)
	}
	s := new(starts)
	consuming, err := c.Consume(func(m jetstream.Msg) {
		s.add(time.Now())
		time.Sleep(takes)
		_ = m.Ack()
	}, jetstream.PullExpiry(5*time.Second), jetstream.PullHeartbeat(time.Second))
	if err != nil {
		w.T.Fatal(err)
	}
	return s, func() { consuming.Stop(); nc.Close() }
}

// F18 beside plain nats.go: the server of the durable's leader is killed. relay and programs by hand pull from one durable, so that they wait for the
// same election; each is once connected to the server that is killed, and once to another.
func TestF18_pauseBesidePlain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		rate         int
		relay, plain time.Duration // takes a handler
	}{
		{"parked pulls", 200, 0, 0},
		{"a backlog", 1000, 100 * ms, 5 * ms}, // no pull is parked, and the new leader has nobody to tell
	} {
		t.Run(c.name, func(t *testing.T) { pauseBesidePlain(t, c.rate, c.relay, c.plain) })
	}
}

func pauseBesidePlain(t *testing.T, rate int, relay, plain time.Duration) {
	w := begin(t)
	h := cluster(w)
	stop := make(chan struct{})
	first := w.StartRelay("r0", h, RelayConfig{}) // makes the durable
	wait := background(func() {
		w.Produce(Load{Count: 1_000_000, Rate: rate, Script: sleeping(int(relay / ms)), Stop: stop})
	})
	var killed, other []time.Duration
	for round := range of(1, 8) {
		leader := w.Leader("T", "work")
		stream := w.Leader("T", "")
		survivor := w.nats.Nodes[(slices.Index(w.nats.Nodes, leader)+1)%3]
		var relays []*Relay
		for i, n := range []*Node{leader, survivor} {
			relays = append(relays, w.StartRelay(fmt.Sprintf("k%d-%d", round, i), h, RelayConfig{URL: n.url(), Route: M{"concurrency": 16}}))
		}
		if round == 0 {
			w.Done(first.Proc)
		}
		var plains []*starts
		var ends []func()
		for _, n := range []*Node{leader, survivor} {
			s, end := plainPull(w, n.url(), "work", plain)
			plains, ends = append(plains, s), append(ends, end)
		}
		time.Sleep(4 * time.Second)
		ofRelay := func(i int) *starts {
			s := new(starts)
			_ = w.ledgers.Refresh()
			for _, run := range w.ledgers.Runs {
				if run.Instance == relays[i].Name {
					s.at = append(s.at, run.Start)
				}
			}
			return s
		}
		kill := time.Now()
		w.KillNATS(leader)
		all := func() (text []string, pauses []time.Duration, done bool) {
			done = true
			for i, s := range []*starts{plains[0], ofRelay(0), plains[1], ofRelay(1)} {
				d, ok := s.pause(kill)
				done = done && ok
				pauses = append(pauses, d)
				text = append(text, fmt.Sprintf("%s %v", []string{"killed: plain", "relay", "other: plain", "relay"}[i], d.Round(ms)))
			}
			return text, pauses, done
		}
		w.Within(45*time.Second, func() bool { _, _, done := all(); return done })
		time.Sleep(3 * time.Second)
		text, pauses, done := all()
		t.Logf("round %d, stream's leader killed too: %v: %s", round, stream == leader, strings.Join(text, ", "))
		for i := range 2 {
			if !done || pauses[2*i+1] > pauses[2*i]+2*time.Second { // the figure is about a quarter of a second
				t.Errorf("relay went on %v after the kill, plain nats.go %v after it", pauses[2*i+1], pauses[2*i])
			}
		}
		killed, other = append(killed, pauses[1]-pauses[0]), append(other, pauses[3]-pauses[2])
		for i, r := range relays {
			ends[i]()
			w.Done(r.Proc)
		}
		leader.Start()
		leader.Up()
		time.Sleep(3 * time.Second)
	}
	close(stop)
	wait()
	w.Figure("the pause beyond that of plain nats.go: on the killed server %v, on another %v", killed, other)
}

// elected is when the last of these had a new leader after a kill, by the logs of the servers: "KV_RELAY_FLEET" is a stream, "T > work" a durable.
func (w *World) elected(kill time.Time, names ...string) (last time.Time) {
	for _, name := range names {
		var first time.Time
		for _, n := range w.nats.Nodes {
			for line := range strings.Lines(n.LogText()) {
				if !strings.Contains(line, " leader for '$G > "+name+"'") {
					continue
				}
				_, rest, _ := strings.Cut(line, "] ")
				if at, err := time.ParseInLocation("2006/01/02 15:04:05.000000", rest[:min(26, len(rest))], time.Local); err == nil && at.After(kill) && (first.IsZero() || at.Before(first)) {
					first = at
				}
			}
		}
		if first.After(last) {
			last = first
		}
	}
	return last
}

// The same of a route with `instances: one`: the server is killed that leads the bucket of leases, the route's durable and the durable of a program by
// hand. Nothing is lost, and nothing starts without a lease; the pause is told.
func TestF18_pauseOfALeasedRoute(t *testing.T) {
	if !Full {
		t.Skip("run by make chaos only")
	}
	w := begin(t)
	h := cluster(w)
	stop := make(chan struct{})
	config := RelayConfig{Route: M{"instances": "one", "concurrency": 16}}
	for i := range 2 {
		w.StartRelay(fmt.Sprintf("r%d", i), h, config)
	}
	if _, err := w.js.CreateConsumer(t.Context(), "T", jetstream.ConsumerConfig{Durable: "plain", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 5 * time.Second}); err != nil {
		t.Fatal(err)
	}
	wait := background(func() { w.Produce(Load{Count: 1_000_000, Rate: 200, Script: sleeping(0), Stop: stop}) })
	var pairs []string
	for range 6 {
		bucket := w.Leader("KV_RELAY_FLEET", "")
		for _, durable := range []string{"work", "plain"} {
			w.Within(time.Minute, func() bool {
				if w.Leader("T", durable) == bucket {
					return true
				}
				w.StepDown("T", durable)
				time.Sleep(time.Second)
				return false
			})
		}
		survivor := w.nats.Nodes[(slices.Index(w.nats.Nodes, bucket)+1)%3]
		plain, end := plainPull(w, survivor.url(), "plain", 0)
		time.Sleep(4 * time.Second)
		kill := time.Now()
		w.KillNATS(bucket)
		pauses := func() (byHand, leased time.Duration, done bool) {
			s := new(starts)
			_ = w.ledgers.Refresh()
			for _, run := range w.ledgers.Runs {
				s.at = append(s.at, run.Start)
			}
			byHand, first := plain.pause(kill)
			leased, second := s.pause(kill)
			return byHand, leased, first && second
		}
		if _, ok := w.Within(time.Minute, func() bool { _, _, done := pauses(); return done }); !ok {
			t.Error("the leased route, or the plain consumer, did not go on within a minute")
		}
		time.Sleep(3 * time.Second)
		byHand, leased, _ := pauses()
		after := leased - w.elected(kill, "KV_RELAY_FLEET", "T", "T > work").Sub(kill)
		if after > 3*time.Second { // the figure is about half a second
			t.Errorf("the leased route went on %v after the last election", after)
		}
		pairs = append(pairs, fmt.Sprintf("%v, %v after the last election (plain %v, %v)",
			leased.Round(ms), after.Round(ms),
			byHand.Round(ms), (byHand-w.elected(kill, "T", "T > plain").Sub(kill)).Round(ms)))
		t.Log(pairs[len(pairs)-1])
		end()
		bucket.Start()
		bucket.Up()
		time.Sleep(5 * time.Second)
	}
	close(stop)
	wait()
	r := w.Check(Expect{Within: 2 * time.Minute, MaxAttempts: 50})
	holders := w.judgeFences()
	w.Figure("the pause of a leased route when the server is killed that leads its bucket and its durable: %s; %d holders, 0 lost of %d", strings.Join(pairs, ", "), holders, r.Published)
}
