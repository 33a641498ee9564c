package chaos

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/chaos/ledger"
)

// Partitions: an ordered route that several instances handle, under load. Instances are killed and started again, and the number of partitions
// grows and shrinks by reload, also both at once. Some messages fail a few times and some become dead letters, so that their attempts have to survive
// that. In the end nothing is lost, each key was handled in order and by one instance at a time, and all instances have their share.

// shape is what the seed says about a run.
type shape struct {
	partitions, keys, hot, slots int
	ackWait                      string
}

func (w *World) shape() shape {
	s := shape{partitions: w.Rand.IntN(11) + 2, keys: 10 + w.Rand.IntN(291), slots: 8 + w.Rand.IntN(57)}
	s.hot = 2 + s.keys/10
	// With two seconds nobody gives back what a dead instance had in hand. With 30 whatever waits for it is late.
	s.ackWait = []string{"2s", "5s", "30s"}[w.Rand.IntN(3)]
	return s
}

// shared is a run of such a route.
type shared struct {
	*fleet
	now   int // partitions
	kills []kill
	made  int // how often the number was changed
	slow  time.Duration
}

// kill of an instance: what it had started may run beside what another one starts.
type kill struct {
	instance string
	at       time.Time
}

func (s *shared) kill(r *Relay) {
	s.kills = append(s.kills, kill{r.Name, time.Now()})
	s.w.KillRelay(r)
}

// away kills an instance, which stays away for so long.
func (s *shared) away(r *Relay, d time.Duration) {
	r.mu.Lock()
	r.keep = false
	r.mu.Unlock()
	s.kill(r)
	time.Sleep(d)
	r.Start()
	r.Keep()
	s.w.Note("%s is started again", r.Name)
}

// another number of partitions.
func (s *shared) another() int {
	n := 2 + s.w.Rand.IntN(10)
	if n >= s.now {
		n++
	}
	return n
}

// write has the files of all instances say another number, and asks them once to read it.
func (s *shared) write(n int) {
	s.w.Note("%d partitions instead of %d", n, s.now)
	s.now = n
	s.made++
	if err := s.rewrite(func(conf M) { conf["routes"].([]any)[0].(M)["partitions"] = n }); err != nil {
		s.w.T.Errorf("chaos: %v", err)
	}
}

// resize changes the number on all instances, and returns when all have it.
func (s *shared) resize(n int) {
	began := time.Now()
	s.write(n)
	if !s.reload(began, time.Minute) {
		s.w.T.Errorf("%s: not all instances have %d partitions after a minute", Stalled, n)
	}
	s.slow = max(s.slow, time.Since(began))
	s.w.Note("all instances have %d partitions after %v", n, time.Since(began).Round(ms))
}

// kinds of the row.
func (s *shared) kinds() []kind {
	return []kind{
		{"kill relay", 4, func(n *nemesis) { s.kill(n.relay()) }},
		{"kill relay, away", 3, func(n *nemesis) { s.away(n.relay(), n.w.Between(0, 4*time.Second)) }},
		{"resize", 4, func(*nemesis) { s.resize(s.another()) }},
		{"kill in a resize", 5, func(n *nemesis) {
			to, r, after := s.another(), n.relay(), n.w.Between(0, 1500*ms)
			wait := background(func() { s.resize(to) })
			time.Sleep(after)
			s.kill(r)
			wait()
		}},
		{"resize twice", 2, func(n *nemesis) {
			began := time.Now()
			s.write(s.another())
			_ = s.reload(began, n.w.Between(0, 800*ms)) // perhaps
			s.resize(s.another())
		}},
		{"drain relay", 1, kindNamed("drain relay")},
	}
}

// load is what is published: a quarter of it on a few keys.
func (s *shared) load(l fleetLoad, of shape) Load {
	rnd := rand.New(rand.NewPCG(s.w.Seed, uint64(l.count))) // not the nemesis's, which runs beside
	return Load{
		Count: l.count, Rate: l.rate,
		Subject: func(int) string {
			if rnd.IntN(4) == 0 {
				return fmt.Sprintf("t.%d", rnd.IntN(of.hot))
			}
			return fmt.Sprintf("t.%d", rnd.IntN(of.keys))
		},
		Script: func(i int) ledger.Script {
			switch {
			case i%40 == 7:
				return ledger.Script{Do: "fail", Until: 1 + i/40%3, Sleep: 5}
			case i%150 == 20:
				return ledger.Script{Do: "dead", Sleep: 5}
			case i%150 == 90:
				return ledger.Script{Do: "fail", Sleep: 5}
			}
			return ledger.Script{Sleep: rnd.IntN(l.takes)}
		},
	}
}

const attemptsOfShared = 5

// run publishes beside so many faults: first one of each kind, in an order that the seed says.
func (s *shared) run(l fleetLoad, of shape) {
	load := s.load(l, of)
	wait := background(func() { s.w.Produce(load) })
	first := s.w.Rand.Perm(len(s.nemesis.kinds))
	for i := range l.faults {
		s.quiet(100*ms, 1200*ms)
		if i < len(first) {
			k := s.nemesis.kinds[first[i]]
			s.count[k.name]++
			k.do(s.nemesis)
		} else {
			s.step()
		}
	}
	wait()
	s.w.Note("the nemesis rests")
}

// judgeShare fails the run unless each instance has its share, and only the newest generation is left.
func (s *shared) judgeShare() (took time.Duration) {
	w := s.w
	most := (s.now + len(s.relays) - 1) / len(s.relays)
	var has []int
	var left []string
	took, ok := w.Within(20*time.Second, func() bool {
		has, left = nil, nil
		sum := 0
		for _, r := range s.relays {
			n := int(r.Metrics("relay_route_holder"))
			has, sum = append(has, n), sum+n
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		list, err := w.generations(ctx)
		if err != nil {
			left = append(left, err.Error())
		}
		for _, g := range list {
			left = append(left, fmt.Sprintf("%s with %d partitions", g.Name(), g.Count))
		}
		return sum == s.now && slices.Max(has) <= most && len(list) == 1 && list[0].Count == s.now
	})
	w.Note("shares %v of %d after %v; %v", has, s.now, took.Round(ms), left)
	if !ok {
		w.Wrong(Stalled, "the instances have %v of %d partitions, each is to have %d at most; streams: %v", has, s.now, most, left)
	}
	return took
}

// over is when a message was through at the earliest, by its own script; zero: it was not.
func (p *Pub) over(runs []*ledger.Run) (at time.Time) {
	for _, run := range runs {
		if run.OK && (at.IsZero() || run.End.Before(at)) {
			at = run.End
		}
	}
	last := attemptsOfShared
	if p.Script.Do == "dead" {
		last = 1
	}
	if at.IsZero() && len(runs) >= last {
		at = runs[last-1].End
	}
	return at
}

// judgeKeysOfShared fails the run with each message that began before an earlier one of its key was through, dead letters among them, and with each
// that ran beside another one of its key, or beside itself, if no kill explains that.
func (s *shared) judgeKeysOfShared() (beside int) {
	w := s.w
	runs, keys, of := make(map[string][]*ledger.Run), make(map[string][]*Pub), make(map[string][]*ledger.Run)
	for _, run := range slices.SortedStableFunc(slices.Values(w.ledgers.Runs), func(a, b *ledger.Run) int { return a.Start.Compare(b.Start) }) {
		runs[run.ID] = append(runs[run.ID], run)
	}
	for _, p := range w.Pubs() {
		keys[p.Subject] = append(keys[p.Subject], p)
		of[p.Subject] = append(of[p.Subject], runs[p.Script.ID]...)
	}
	for _, list := range keys {
		slices.SortFunc(list, func(a, b *Pub) int { return cmp.Compare(a.Seq, b.Seq) })
		var before *Pub
		var done time.Time
		for _, p := range list {
			mine := runs[p.Script.ID]
			if len(mine) > 0 && mine[0].Start.Before(done) {
				w.Wrong(Disordered, "%s started %v before %s was through: %s; that one: %s", p, done.Sub(mine[0].Start), before, describe(mine), describe(runs[before.Script.ID]))
			}
			if at := p.over(mine); at.After(done) {
				before, done = p, at
			}
		}
	}
	for key, list := range of {
		slices.SortStableFunc(list, func(a, b *ledger.Run) int { return a.Start.Compare(b.Start) })
		var longest *ledger.Run
		for _, run := range list {
			if longest != nil && run.Start.Before(longest.End) {
				cut := slices.ContainsFunc(s.kills, func(k kill) bool {
					return k.instance == longest.Instance && k.at.Before(longest.End) && k.at.After(longest.Start.Add(-100*ms))
				})
				if beside++; !cut {
					w.Wrong(Disordered, "key %s: %s ran beside %s: %s; %s", key, run.ID, longest.ID, describe([]*ledger.Run{run}), describe([]*ledger.Run{longest}))
				}
			}
			if longest == nil || run.End.After(longest.End) {
				longest = run
			}
		}
	}
	return beside
}

func partitions(w *World, l fleetLoad) {
	w.T.Helper()
	w.divided = true
	of := w.shape()
	w.Note("%+v", of)
	s := &shared{now: of.partitions}
	for key, value := range (M{
		"subjects": []string{"t.*"}, "key": "{2}", "order": "key", "partitions": of.partitions, "concurrency": of.slots, "ack_wait": of.ackWait,
		"retry": M{"max_attempts": attemptsOfShared, "min": "100ms", "max": "400ms", "jitter": 0.2},
	}) {
		l.set(key, value)
	}
	l.kinds = s.kinds()
	s.fleet = w.fleet(l)
	s.run(l, of)
	share := s.judgeShare()
	r := w.Check(Expect{Within: time.Minute, Each: true, MaxAttempts: attemptsOfShared})
	w.judgeKeys()
	beside := s.judgeKeysOfShared()
	w.Figure("partitions, %d instances on %d servers, %d messages on %d keys, ack_wait %s, %s; %d partitions at first, %d other numbers, each known to all within %v: 0 lost, 0 out of order, %d dead letters, %d duplicates ≤ %d, %d beside one of a killed instance; shares after %v, at rest after %v; longest standstill %v",
		l.instances, cmp.Or(l.servers, 3), r.Published, of.keys, of.ackWait, s.nemesis, of.partitions, s.made, s.slow.Round(ms), r.Dead, r.Duplicates, r.Bound, beside,
		share.Round(ms), r.RestAfter.Round(ms), w.standstill().Round(ms))
}

func TestPartitions_oneServer(t *testing.T) {
	partitions(begin(t), of(fleetLoad{servers: 1, instances: 3, count: 1500, rate: 120, faults: 6, takes: 25}, fleetLoad{servers: 1, instances: 3, count: 20_000, rate: 200, faults: 70, takes: 25}))
}

// A change of partitions on a cluster takes more than the rest of the slices leave of two cores: it is in make chaos only.
func TestPartitions_cluster(t *testing.T) {
	if !Full {
		t.Skip("run by make chaos only")
	}
	partitions(begin(t), fleetLoad{instances: 3, count: 15_000, rate: 150, faults: 60, takes: 25})
}
