package chaos

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/chaos/ledger"
)

// Recover: the endpoint of a route is down for a while, in one way or two, and messages of many keys wait. While it is down relay asks
// no more than it says that it does, and no message pays for that. When it is well again, all that waits is handled soon.

// Flooded is an endpoint that got more requests during an outage than relay promises.
const Flooded Class = "flooded"

// outagePart is a part of an outage.
type outagePart struct {
	kind string // down (503), dead (422), hang, or refused
	long time.Duration
}

func (p outagePart) String() string { return fmt.Sprintf("%s for %v", p.kind, p.long) }

// recovery is one shape.
type recovery struct {
	slots, stash  int
	keys, perKey  int
	parts         []outagePart
	takes         int // milliseconds of each handler, once it works
	timeout       time.Duration
	order         string
	forward       string
	of            int
	retryMax      time.Duration
	backlog       bool // relay starts when all is published
	kills, paused bool // in the middle of the outage: kill -9; an operator's pause, which ends with the outage
}

func drawRecovery(r *rand.Rand) recovery {
	pick := func(list ...int) int { return list[r.IntN(len(list))] }
	word := func(list ...string) string { return list[r.IntN(len(list))] }
	most := of(1000, 20_000)
	c := recovery{
		slots: pick(1, 2, 8, 32, 64), stash: pick(10, 50, 300, 1000), keys: pick(10, 100, most/10, most/2, most),
		takes: pick(0, 2, 10), timeout: time.Duration(pick(1, 2)) * time.Second, order: word("none", "key"), forward: word("stash", "giveback", "drop"),
		of: pick(10, 20, 50), retryMax: time.Duration(pick(2, 600)) * time.Second, backlog: r.IntN(2) == 0, paused: r.IntN(4) == 0,
		kills: Full && r.IntN(3) == 0,
	}
	c.perKey = 1 + r.IntN(min(3, max(1, most/c.keys)))
	for range 1 + r.IntN(2) {
		c.parts = append(c.parts, outagePart{word("down", "dead", "hang", "refused"), time.Duration(of(2000, 5000)+r.IntN(of(2000, 30_000))) * ms})
	}
	if c.forward == "drop" {
		c.kills = false // nobody counts what was dropped before a kill
	}
	if c.slots < 8 { // what the endpoint needs is not what the row is about
		c.takes = min(c.takes, 2)
	}
	return c
}

func (c recovery) String() string {
	return fmt.Sprintf("%d slots, stash %d, %d keys with %d messages each, %v, then %d ms each (timeout %v), order %s, forward %s, route_trip.of %d, retry.max %v, backlog %v, kill %v, paused %v",
		c.slots, c.stash, c.keys, c.perKey, c.parts, c.takes, c.timeout, c.order, c.forward, c.of, c.retryMax, c.backlog, c.kills, c.paused)
}

// lasts is how long the outage is, and has tells whether a part of it is such.
func (c recovery) lasts() (d time.Duration) {
	for _, p := range c.parts {
		d += p.long
	}
	return d
}

func (c recovery) has(kind string) bool {
	for _, p := range c.parts {
		if p.kind == kind {
			return true
		}
	}
	return false
}

const recoverAckWait = 2 * time.Second

// bound is how long after the outage all that waits must be handled: 10 s, and what the endpoint and the machine need for so many when
// all is well, which is measured. What a killed relay had in hand comes after ack_wait, and what it
// had put aside by itself.
func (c recovery) bound(well time.Duration) time.Duration {
	d := 10*time.Second + time.Duration(float64(well)*of(2.0, 1.5))
	if c.kills {
		d += recoverAckWait + byThemselves(c.keys*c.perKey)
	}
	return d
}

// well is how long as many messages as waited take when all is well, by a sample of them.
func (c recovery) well(w *World) time.Duration {
	w.T.Helper()
	n, all := of(200, 1000), c.keys*c.perKey
	began := time.Now()
	w.Produce(Load{
		Count: n, Subject: func(i int) string { return fmt.Sprintf("t.well.%d", i) },
		Script: func(int) ledger.Script { return ledger.Script{Sleep: c.takes} },
	})
	w.Eventually(time.Minute, "the sample is handled", func() bool { return w.rest().done() })
	return time.Since(began) * time.Duration(all) / time.Duration(n)
}

// requests is how many the endpoint may get during the outage, by how long it lasted. Each beginning, of relay or of the outage by an
// operator's resume, costs what a route needs to notice it, and has the first pace again. Where nobody ever answers two requests a second
// are left.
func (c recovery) requests(lasted ...time.Duration) int {
	total, answers := 0.0, c.has("down") || c.has("dead")
	for _, d := range lasted {
		total += float64(trips(c.of, c.slots)) + 2 + 2*d.Seconds()
		if answers {
			total += asked(d)
		}
	}
	return int(total)
}

// outageHandler is an http handler that may refuse connections: it is killed then, and its port is not one that the system gives away.
type outageHandler struct {
	*Handler
	gone bool
	came int // until it was killed
}

func (w *World) outageHandler() *outageHandler {
	w.T.Helper()
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 20_000+rand.IntN(10_000))
		if l, err := net.Listen("tcp", addr); err == nil {
			l.Close()
			h := &outageHandler{Handler: w.startHandlerAt("http", "", addr)}
			h.argv = append(h.argv[:len(h.argv):len(h.argv)], "-listen", addr)
			return h
		}
	}
	w.T.Fatal("no port is free")
	return nil
}

// be makes it down, dead, hang, refused or ok.
func (h *outageHandler) be(kind string) {
	h.w.T.Helper()
	switch {
	case kind == "refused":
		h.came += h.count()
		h.gone = true
		h.Kill()
		h.w.Note("handler is gone")
		return
	case h.gone:
		h.Start()
		h.gone = false
		h.w.Eventually(10*time.Second, "the handler is there again", func() bool {
			_, _, err := (&Relay{w: h.w, Admin: h.addr}).get("/count")
			return err == nil
		})
	}
	h.Mode(kind)
}

// count is how many requests came.
func (h *outageHandler) count() int {
	if h.gone {
		return 0
	}
	return h.Handler.count()
}

// operate runs relay's command line against the run's servers.
func (w *World) operate(r *Relay, args ...string) {
	w.T.Helper()
	w.Note("relay %s", strings.Join(args, " "))
	if text, err := exec.Command(w.Bin.Relay, append(args, "-c", r.conf)...).CombinedOutput(); err != nil {
		w.T.Errorf("relay %v: %v\n%s", args, err, text)
	}
}

// attempted is how many attempts of the route there were, by relay's own count: nobody else sees those that are refused.
func (r *Relay) attempted() int {
	return max(0, int(r.Metrics(`relay_handler_seconds_count{route="work"}`)))
}

// recovers runs one draw.
func recovers(w *World, c recovery) {
	w.T.Helper()
	w.Note("%v", c)
	w.StartNATS(NATSConfig{})
	w.Connect()
	w.Stream()
	h := w.outageHandler()
	h.be(c.parts[0].kind)
	var r *Relay
	start := func() {
		r = w.StartRelay("r1", h.Handler, RelayConfig{Route: M{
			"concurrency": c.slots, "timeout": c.timeout.String(), "ack_wait": recoverAckWait.String(), "order": c.order, "stash": M{"messages": c.stash},
			"retry":      M{"max_attempts": -1, "min": "200ms", "max": c.retryMax.String()},
			"supervisor": M{"forward": c.forward, "route_trip": M{"of": c.of}},
		}})
	}
	n := c.keys * c.perKey
	publish := func() {
		w.Produce(Load{
			Count: n, Subject: func(i int) string { return fmt.Sprintf("t.%d", i%c.keys) },
			Script: func(int) ledger.Script { return ledger.Script{Sleep: c.takes} },
		})
	}
	if c.backlog {
		publish()
		start()
	} else {
		start()
		publish()
	}
	began, attempts := time.Now(), 0
	var lasted []time.Duration
	half := w.Between(c.lasts()/4, c.lasts()*3/4)
	for i, p := range c.parts {
		if i > 0 {
			h.be(p.kind)
		}
		end := time.Now().Add(p.long)
		if half > 0 && half <= p.long {
			time.Sleep(half)
			switch {
			case c.kills:
				attempts += r.attempted()
				w.KillRelay(r)
				lasted = append(lasted, time.Since(began))
				began = time.Now()
				r.Start()
				r.WaitReady(20 * time.Second)
			case c.paused:
				w.operate(r, "pause", "work")
			}
		}
		half -= p.long
		time.Sleep(time.Until(end))
	}
	attempts += r.attempted()
	requests := h.came + h.count()
	lasted = append(lasted, time.Since(began))
	h.be("ok")
	if c.paused && !c.kills {
		w.operate(r, "resume", "work")
	}
	took, ok := w.Within(of(25*time.Second, 10*time.Minute), func() bool { return w.rest().done() })
	bound := 25 * time.Second
	if ok {
		bound = c.bound(c.well(w))
	}
	if !ok || took > bound {
		w.Wrong(Stalled, "after the outage %v passed until all was handled (%v), want ≤ %v: %s", took.Round(ms), ok, bound.Round(ms), w.rest())
	}
	if c.has("refused") { // by relay's count: it is more than what came
		requests = max(requests, attempts)
	}
	if most := c.requests(lasted...); requests > most {
		w.Wrong(Flooded, "%d requests during the outage, want ≤ %d", requests, most)
	}
	spent := c.judge(w, r, ok)
	w.Figure("%v: %d messages handled %v after the outage, bound %v; %d requests in it ≤ %d; %d attempts spent ≤ %d",
		c, n, took.Round(ms), bound.Round(ms), requests, c.requests(lasted...), spent, w.spendable(c.of, c.slots))
}

// judge looks at the messages.
func (c recovery) judge(w *World, r *Relay, ended bool) (spent int) {
	w.T.Helper()
	// Starts have no bound by message: a question in doubt spends no attempt. How many there are in all is judged, and how many attempts are spent.
	e := Expect{Within: 5 * time.Second, NoRest: !ended, ExtraStarts: -1, MaxAttempts: -1}
	if c.forward == "drop" {
		e.GoneOK = func(*Pub) bool { return true } // counted below
	}
	report := w.Check(e)
	dead, cycles := 0, 1+len(w.faults)
	if c.has("dead") {
		dead = (50 + c.slots) * cycles // dead_trip.of, and what runs
	}
	if report.Dead > dead {
		w.Wrong(Bystander, "%d dead letters, want ≤ %d", report.Dead, dead)
	}
	if gone := report.Published - report.Handled - report.Dead; c.forward == "drop" && gone > r.dropped() {
		w.Wrong(Lost, "%d messages were neither handled nor dead-lettered, and %d were dropped", gone, r.dropped())
	}
	for _, run := range w.ledgers.Runs {
		if run.OK {
			spent += run.Attempt - 1
		}
	}
	if most := w.spendable(c.of, c.slots); spent > most {
		w.Wrong(Spent, "%d attempts, want ≤ %d", spent, most)
	}
	if c.order == "key" && len(w.faults) == 0 && c.forward != "drop" { // after a kill what was aside may come late: docs/design.md section 4
		letters := make(map[uint64]bool)
		for _, l := range w.Letters() {
			letters[l.Sequence] = true
		}
		w.judgeOrder("t.", letters)
	}
	return spent
}

func TestRecover_outageOfAnyKind(t *testing.T) {
	t.Parallel()
	for i := range of(2, 4) {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			w := begin(t)
			recovers(w, drawRecovery(w.Rand))
		})
	}
}

// shortOutage is what the teeth of the row bite.
var shortOutage = recovery{
	slots: 8, stash: 10, keys: 500, perKey: 1, parts: []outagePart{{"down", 3 * time.Second}}, timeout: time.Second, order: "none", forward: "stash",
	of: 20, retryMax: 2 * time.Second,
}

// Without anybody to call it back, what went aside comes when its time is over.
func TestTeeth_recoverCall(t *testing.T) {
	bites(t, "call", Stalled, func(w *World) { recovers(w, shortOutage) })
}

// Without a pace all are asked as fast as they come.
func TestTeeth_recoverPace(t *testing.T) {
	bites(t, "pace", Flooded, func(w *World) {
		c := shortOutage
		c.keys, c.slots, c.stash = 4000, 32, 1000
		recovers(w, c)
	})
}
