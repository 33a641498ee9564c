package chaos

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/chaos/ledger"
)

// Wedge: thousands of bad keys stand ahead of a few healthy messages, or around them, in whatever shape. The healthy ones must get
// past them in the time that relay promises, and the route beside must not notice.

// Spent is an attempt that a message paid for a question of a route in doubt.
const Spent Class = "attempts spent in doubt"

// wedge is one shape.
type wedge struct {
	slots, stash  int
	keys, perKey  int    // bad keys, and how many messages each of them has
	arrival       string // of the bad ones: ahead of the healthy ones, around them, or mixed with them
	backlog       bool   // relay starts when all is published
	fails, cuts   int    // of a hundred bad messages: answered 500, cut off without an answer
	dead, hangs   int    // likewise: answered 422, not answered before the timeout. The rest is answered 503
	timeout       time.Duration
	order         string
	forward       string
	of            int
	beside, kills bool // a second route; kill -9 in the middle
}

// healthyOnes is how many healthy messages a draw has, each of a key of its own.
const healthyOnes = 100

func drawWedge(r *rand.Rand) wedge {
	pick := func(list ...int) int { return list[r.IntN(len(list))] }
	word := func(list ...string) string { return list[r.IntN(len(list))] }
	most := of(2000, 20_000)
	c := wedge{
		slots: pick(1, 2, 8, 32, 64), stash: pick(10, 50, 300, 1000), keys: pick(10, 100, most/10, most/2, most),
		arrival: word("ahead", "around", "mixed"), backlog: r.IntN(2) == 0, timeout: time.Duration(pick(500, 1000)) * ms,
		order: word("none", "key"), forward: word("stash", "giveback", "drop"), of: pick(10, 20, 50),
		beside: r.IntN(2) == 0, kills: Full && r.IntN(3) == 0,
	}
	c.perKey = 1 + r.IntN(min(3, max(1, 2*most/c.keys)))
	switch r.IntN(4) { // one kind of trouble, or some of each
	case 0:
		c.fails = 100
	case 1: // all 503
	case 2:
		c.dead = 100
	default:
		c.fails, c.cuts, c.dead = r.IntN(60), r.IntN(20), r.IntN(20)
		// As many hang as the slots get rid of in a few seconds. More take the time that they take.
		c.hangs = min(r.IntN(20), int(100*of(6.0, 30)*float64(c.half())/(c.timeout.Seconds()*float64(c.keys*c.perKey))))
	}
	if c.forward == "drop" {
		c.kills = false // nobody counts what was dropped before a kill
	}
	return c
}

// half of the slots, which is what a route in doubt asks with.
func (c wedge) half() int { return max(1, c.slots/2) }

func (c wedge) String() string {
	return fmt.Sprintf("%d slots, stash %d, %d bad keys with %d messages each, %s (%d %% fail, %d %% dead, %d %% cut, %d %% hang for %v, the rest 503), order %s, forward %s, route_trip.of %d, backlog %v, a route beside %v, kill %v",
		c.slots, c.stash, c.keys, c.perKey, c.arrival, c.fails, c.dead, c.cuts, c.hangs, c.timeout, c.order, c.forward, c.of, c.backlog, c.beside, c.kills)
}

func (c wedge) script(r *rand.Rand) ledger.Script {
	n := r.IntN(100)
	for _, kind := range []struct {
		share int
		do    string
	}{{c.fails, "fail"}, {c.cuts, "cut"}, {c.dead, "dead"}, {c.hangs, "hang"}} {
		if n -= kind.share; n < 0 {
			return ledger.Script{Do: kind.do}
		}
	}
	return ledger.Script{Do: "status503"}
}

// asked is how many messages a route in doubt asks in so many seconds: 400 a second at first, half as many after each 25 seconds, 20 at
// least.
func asked(d time.Duration) float64 {
	const half, first, least = 25.0, 400.0, 20.0
	s := d.Seconds()
	falls := min(s, half*math.Log2(first/least))
	return first*half/math.Ln2*(1-math.Exp2(-falls/half)) + (s-falls)*least
}

// asking is the reverse: how long it takes to ask so many.
func asking(n float64) (d time.Duration) {
	for step := time.Hour; step > time.Millisecond; step /= 2 {
		for asked(d+step) < n {
			d += step
		}
	}
	return d + time.Millisecond
}

// bound is how long a healthy message may wait that has so many bad ones before it, of all there are.
//
//   - 7 s are relay's to notice what is wrong.
//   - The oldest and the newest are asked in turn. So it is asked when twice as many were asked as are before it, and when all were
//     at the latest.
//   - Those that hang hold one of half of the slots for their timeout.
//   - Once the route flows, what stands before it in the stream is pulled and fails, 1,000 a second.
//   - A kill -9 takes ack_wait to be noticed. What was aside comes by itself: see byThemselves.
func (c wedge) bound(before, all int) time.Duration {
	questions := float64(min(2*before, all))
	hung := questions * float64(c.hangs) / 100 * c.timeout.Seconds() / float64(c.half())
	d := 7*time.Second + asking(questions) + time.Duration((hung+float64(before)/1000)*float64(time.Second))
	if c.kills {
		d += wedgeAckWait + byThemselves(all) + 10*time.Second
	}
	return d + of(4*time.Second, time.Second) // a slice shares two cores with other rows
}

// byThemselves is how long so many messages that were aside take to come after a crash, when nobody calls them back: 30 s, or what 100 a
// second need, and half as much again.
func byThemselves(n int) time.Duration {
	return max(30*time.Second, time.Duration(n)*time.Second/100) * 3 / 2
}

// flowing is how long it may wait once the first message has succeeded, so many seconds after it was published: the route flows then, and
// what stands before it is pulled and fails. Where some answers are dead the route may be suspended anew, and after a kill it begins anew.
func (c wedge) flowing(before int, since time.Duration) time.Duration {
	if !Full || c.dead > 0 || c.kills {
		return time.Hour
	}
	hung := float64(before) * float64(c.hangs) / 100 * c.timeout.Seconds() / float64(c.half())
	return max(0, since) + 3*time.Second + time.Duration((hung+float64(before)/1000)*float64(time.Second))
}

const wedgeAckWait = 2 * time.Second

// isBad tells which of the messages are bad.
func (c wedge) isBad(r *rand.Rand) (bad []bool) {
	n := c.keys * c.perKey
	bad = slices.Repeat([]bool{true}, n+healthyOnes)
	ahead := n
	if c.arrival == "around" {
		ahead = n / 2
	}
	for i := range healthyOnes {
		bad[ahead+i] = false
	}
	if c.arrival == "mixed" {
		r.Shuffle(len(bad), func(i, j int) { bad[i], bad[j] = bad[j], bad[i] })
	}
	return bad
}

// route is the configuration of one route of the draw.
func (c wedge) route(w *World, h *Handler, name, subjects string) M {
	return M{
		"name": name, "stream": w.stream, "subjects": []string{subjects}, "start": "all", "concurrency": c.slots, "timeout": c.timeout.String(),
		"ack_wait": wedgeAckWait.String(), "order": c.order, "stash": M{"messages": c.stash}, "handler": M{"http": M{"url": h.URL(name)}},
		"retry": M{"max_attempts": -1, "min": "500ms", "max": "10s"}, "supervisor": M{"forward": c.forward, "route_trip": M{"of": c.of}},
	}
}

// wedged runs one draw.
func wedged(w *World, c wedge) {
	w.T.Helper()
	w.Note("%v", c)
	h := simple(w)
	routes := []M{c.route(w, h, "work", "t.work.>")}
	if c.beside {
		routes = append(routes, c.route(w, h, "beside", "t.beside.>"))
	}
	var r *Relay
	start := func() { r = w.StartRelay("r1", h, RelayConfig{Routes: routes}) }
	bad, n, good := c.isBad(w.Rand), 0, 0
	publish := func() {
		w.Produce(Load{
			Count: len(bad),
			Subject: func(i int) string {
				if i < len(bad) && !bad[i] {
					good++
					return fmt.Sprintf("t.work.good.%d", good)
				}
				n++
				return fmt.Sprintf("t.work.bad.%d", n%c.keys)
			},
			Script: func(i int) ledger.Script {
				if i < len(bad) && !bad[i] {
					return ledger.Script{}
				}
				return c.script(w.Rand)
			},
		})
	}
	if c.backlog {
		publish()
		start()
	} else {
		start()
	}
	began := time.Now()
	enough, produced := make(chan struct{}), func() {}
	if c.beside {
		produced = background(func() {
			w.Produce(Load{Count: 1_000_000, Rate: 50, Stop: enough, Subject: func(i int) string { return fmt.Sprintf("t.beside.%d", i) }})
		})
	}
	if !c.backlog {
		publish()
	}
	var killed time.Time
	if c.kills {
		time.Sleep(w.Between(200*ms, 3*time.Second))
		killed = w.KillRelay(r).At
		r.Start()
		r.WaitReady(20 * time.Second)
	}
	j := c.judge(w, r, began)
	time.Sleep(of(500*ms, 3*time.Second)) // for the route beside
	close(enough)
	produced()
	p99 := c.judgeBeside(w, killed)
	c.judgeRest(w, r, j)
	w.Figure("%v: %d healthy messages started, %d did not, the first after %v, half of them after %v, the last after %v, bound %v; %d attempts spent before; p99 beside %v",
		c, j.started, j.missing, j.first.Round(ms), j.half.Round(ms), j.slowest.Round(ms), j.bound.Round(ms), j.spent, p99.Round(ms))
}

// wedgeJudged is what became of the healthy messages.
type wedgeJudged struct {
	started, missing int
	first, half      time.Duration // after that, half of them had started
	slowest, bound   time.Duration
	spent            int
}

// judge waits until each healthy message has started, and fails the run with those that waited for longer than their bounds.
func (c wedge) judge(w *World, r *Relay, began time.Time) (j wedgeJudged) {
	w.T.Helper()
	all := c.keys * c.perKey
	var late []string
	look := func() (over bool) {
		first, success := w.firstStarts(), w.firstSuccess()
		j, late, over = wedgeJudged{first: time.Hour}, nil, true
		before := 0
		var took []time.Duration
		for _, p := range w.bySequence("t.work.") {
			if strings.HasPrefix(p.Subject, "t.work.bad.") {
				before++
				continue
			}
			from := p.At
			if from.Before(began) {
				from = began
			}
			at, ok := first[p.Script.ID]
			if !ok {
				at = time.Now()
				j.missing++
			} else {
				j.started++
				j.first = min(j.first, at.Sub(from))
			}
			d, most := at.Sub(from), c.bound(before, all)
			if !success.IsZero() {
				most = min(most, c.flowing(before, success.Sub(from)))
			}
			took = append(took, d)
			j.slowest, j.bound = max(j.slowest, d), max(j.bound, most)
			if d > most {
				late = append(late, fmt.Sprintf("%s: %v, bound %v, %d bad ones before it, started %v", p, d.Round(ms), most.Round(ms), before, ok))
			} else if !ok {
				over = false
			}
		}
		if j.started == 0 { // all were dropped
			j.first = 0
		}
		slices.Sort(took)
		j.half = took[len(took)/2]
		return over
	}
	dropped := func() bool { // what is dropped never starts
		return c.forward == "drop" && j.missing > 0 && time.Since(began) > 5*time.Second && w.rest().pending == 0 && r.dropped() >= j.missing
	}
	for !look() {
		if dropped() {
			if time.Sleep(3 * time.Second); look() || dropped() {
				late = nil
				break
			}
		}
		time.Sleep(50 * ms)
	}
	if c.forward == "drop" && len(late) == j.missing && r.dropped() >= j.missing {
		late = nil
	}
	if len(late) > 0 && Full { // how late they are is worth to know
		w.Within(3*time.Minute, func() bool { look(); return j.missing == 0 })
	}
	if len(late) > 0 {
		w.Wrong(Stalled, "%d healthy messages waited for too long, %d of them have not started after %v:\n  %s",
			len(late), j.missing, time.Since(began).Round(ms), strings.Join(late[:min(len(late), 10)], "\n  "))
	}
	j.spent = w.spentInDoubt(c.dead == 0)
	if most := w.spendable(c.of, c.slots); j.spent > most {
		w.Wrong(Spent, "%d attempts before the first success, want ≤ %d", j.spent, most)
	}
	return j
}

// trips is how many attempts a route needs to notice an outage: of messages that fail for the first time, of as many that fail again in
// the other half of the slots, and what runs at that moment.
func trips(of, slots int) int { return 2*of + 2*slots + 8 }

// spendable is how many attempts an outage may cost. A relay that was killed has to notice it again.
func (w *World) spendable(of, slots int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return trips(of, slots) * (1 + len(w.faults))
}

// spentInDoubt is how many attempts the messages had spent when the first one succeeded. Where some answers are dead, and so may let a
// route flow, it is not known.
func (w *World) spentInDoubt(known bool) (sum int) {
	if !known {
		return 0
	}
	end, most := w.firstSuccess(), make(map[string]int)
	for _, run := range w.ledgers.Runs {
		if end.IsZero() || run.Start.Before(end) {
			most[run.ID] = max(most[run.ID], run.Attempt-1)
		}
	}
	for _, n := range most {
		sum += n
	}
	return sum
}

// firstSuccess is when the first message of the route work had succeeded; zero when none has.
func (w *World) firstSuccess() (end time.Time) {
	for _, run := range w.ledgers.Runs {
		if run.OK && run.Instance == "work" && (end.IsZero() || run.End.Before(end)) {
			end = run.End
		}
	}
	return end
}

// firstStarts are the first starts of all messages.
func (w *World) firstStarts() map[string]time.Time {
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
	return first
}

// bySequence are the messages of such subjects, in the order of the stream.
func (w *World) bySequence(prefix string) []*Pub {
	pubs := slices.DeleteFunc(w.Pubs(), func(p *Pub) bool { return !strings.HasPrefix(p.Subject, prefix) })
	slices.SortFunc(pubs, func(a, b *Pub) int { return int(a.Seq) - int(b.Seq) })
	return pubs
}

// dropped is how many messages of the route work were dropped.
func (r *Relay) dropped() int {
	return int(r.Metrics(`relay_settlements_total{how="dropped",route="work"}`))
}

// judgeBeside holds the second route to what it has alone. What was published around a kill has to wait for its ack_wait.
func (c wedge) judgeBeside(w *World, killed time.Time) (p99 time.Duration) {
	w.T.Helper()
	if !c.beside {
		return 0
	}
	w.Within(5*time.Second, func() bool {
		first := w.firstStarts()
		return !slices.ContainsFunc(w.bySequence("t.beside."), func(p *Pub) bool { return first[p.Script.ID].IsZero() })
	})
	first := w.firstStarts()
	var took []time.Duration
	for _, p := range w.bySequence("t.beside.") {
		if !killed.IsZero() && p.At.After(killed.Add(-time.Second)) && p.At.Before(killed.Add(wedgeAckWait+3*time.Second)) {
			continue
		}
		at, ok := first[p.Script.ID]
		if !ok {
			w.Wrong(Stalled, "%s of the route beside has not started", p)
			return 0
		}
		took = append(took, at.Sub(p.At))
	}
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	p99 = took[len(took)*99/100]
	if most := of(1500*ms, 250*ms); p99 > most {
		w.Wrong(Stalled, "the p99 of %d messages of the route beside is %v, want ≤ %v", len(took), p99.Round(ms), most)
	}
	return p99
}

// judgeRest checks that nothing is lost of the bad ones, and that the order of keys was kept where nothing was dropped.
func (c wedge) judgeRest(w *World, r *Relay, j wedgeJudged) {
	w.T.Helper()
	if c.forward != "drop" && j.missing > 0 {
		w.Note("%d healthy messages are missing", j.missing)
	}
	letters := make(map[uint64]bool)
	ended := 0
	w.Within(10*time.Second, func() bool {
		for _, l := range w.Letters() {
			letters[l.Sequence] = true
		}
		left := w.rest()
		ended = left.pending + left.ackPending + left.parked + len(letters) + r.dropped()
		return left.err == nil && ended >= c.keys*c.perKey
	})
	if all := c.keys * c.perKey; ended < all {
		w.Wrong(Lost, "of %d bad messages %d are waiting, dead or dropped: %v, %d dead, %d dropped", all, ended, w.rest(), len(letters), r.dropped())
	}
	if c.order == "key" && !c.kills && c.forward != "drop" { // after a kill what was aside may come late: docs/design.md section 4
		w.judgeOrder("t.work.", letters)
	}
}

// Disorder is a message that started before an earlier one of its ordered key was through.
const Disorder Class = "order"

// judgeOrder checks that no message started before the earlier ones of its key were through.
func (w *World) judgeOrder(prefix string, letters map[uint64]bool) {
	w.T.Helper()
	first := w.firstStarts()
	done := make(map[string]time.Time)
	for _, run := range w.ledgers.Runs {
		if at, ok := done[run.ID]; run.OK && (!ok || run.End.Before(at)) {
			done[run.ID] = run.End
		}
	}
	before := make(map[string][]*Pub)
	var wrong []string
	for _, p := range w.bySequence(prefix) {
		at, ok := first[p.Script.ID]
		for _, earlier := range before[p.Subject] {
			if end := done[earlier.Script.ID]; ok && !letters[earlier.Seq] && (end.IsZero() || end.After(at)) {
				wrong = append(wrong, fmt.Sprintf("%s started before %s was through", p, earlier))
			}
		}
		before[p.Subject] = append(before[p.Subject], p)
	}
	if len(wrong) > 0 {
		w.Wrong(Disorder, "%d messages:\n  %s", len(wrong), strings.Join(wrong[:min(len(wrong), 10)], "\n  "))
	}
}

func TestWedge_badKeysAhead(t *testing.T) {
	t.Parallel()
	for i := range of(2, 4) {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			w := begin(t)
			wedged(w, drawWedge(w.Rand))
		})
	}
}

// Without anybody to call it back, what went aside comes when its time is over.
func TestTeeth_wedgeCall(t *testing.T) {
	bites(t, "call", Stalled, func(w *World) {
		wedged(w, wedge{slots: 8, stash: 10, keys: 300, perKey: 1, arrival: "ahead", fails: 100, timeout: time.Second, order: "none", forward: "stash", of: 20})
	})
}
