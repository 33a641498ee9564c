package chaos

import (
	"fmt"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/chaos/ledger"
)

// Peers: several instances stand before one endpoint that is away. They tell each other what they learn of it, so that it gets about as many
// requests from all as it got from one of them, in as long. Beside that instances and the server are killed. When it is back, all know within a
// moment.

// before is such a run.
type before struct {
	instances int
	kind      string        // of the outage: down (503), or hang
	span      time.Duration // in which requests are counted
	fresh     int           // messages that wait for their first question
	kills     int
	of, slots int
	know      time.Duration // how long after the first instance the last one may handle a message again
	relays    []*Relay
	h         *Handler
}

// wait lasts until all instances are there, and the route asks on each of them.
func (b *before) wait(w *World) {
	w.T.Helper()
	w.Eventually(time.Minute, "the route is in doubt on all instances", func() bool {
		for _, r := range b.relays {
			if r.Metrics(`relay_route_state{route="work",state="waiting"}`)+r.Metrics(`relay_route_state{route="work",state="probing"}`) != 1 {
				return false
			}
		}
		return true
	})
}

// settles is how long instances that have just noticed an outage may take to find out whether anything answers.
var settles = of(3*time.Second, 4*time.Second)

// outage begins one, with fresh messages, and counts the requests of a span once all know of it.
func (b *before) outage(w *World) (requests int) {
	w.T.Helper()
	b.h.Mode(b.kind)
	w.Produce(Load{Count: b.fresh, Subject: func(i int) string { return fmt.Sprintf("t.%d", i%500) }})
	b.wait(w)
	time.Sleep(settles)
	at := b.h.count()
	time.Sleep(b.span)
	return b.h.count() - at
}

// begins is how many requests a kill may cost in so long: who begins anew has to notice the outage, and asks at the first pace.
func (b *before) begins(d time.Duration) int {
	n := trips(b.of, b.slots)
	if b.kind == "down" {
		n += int(asked(min(d, 2*time.Second)))
	}
	return n
}

func peers(w *World, b before) {
	w.T.Helper()
	b.of, b.slots = 10, 4
	w.Note("%d instances, %s", b.instances, b.kind)
	b.h = simple(w)
	start := func() {
		b.relays = append(b.relays, w.StartRelay(fmt.Sprintf("r%d", len(b.relays)+1), b.h, RelayConfig{Route: M{
			"concurrency": b.slots, "timeout": "1s", "retry": M{"max_attempts": -1, "min": "200ms", "max": "2s"},
			"supervisor": M{"route_trip": M{"of": b.of}},
		}}))
	}
	start()
	one := b.outage(w)
	b.h.Mode("ok")
	w.Eventually(2*time.Minute, "all of the first outage are handled", func() bool { return w.rest().done() })

	for range b.instances - 1 {
		start()
	}
	for _, r := range b.relays {
		r.Keep()
	}
	stop := make(chan struct{})
	trickle := background(func() { // for whoever begins anew, and has nothing in hand
		w.Produce(Load{Count: 1 << 30, Rate: 40, Stop: stop, Subject: func(i int) string { return fmt.Sprintf("t.%d", i%500) }, Script: func(int) ledger.Script { return ledger.Script{Sleep: 2} }})
	})
	all := b.outage(w)
	if most := one*3/2 + b.instances; all > most {
		w.Wrong(Flooded, "%d instances asked %d times in %v, one asked %d times: want ≤ %d", b.instances, all, b.span, one, most)
	}
	began, at := time.Now(), b.h.count()
	for range b.kills {
		time.Sleep(w.Between(500*ms, 3*time.Second))
		if w.Rand.IntN(3) == 0 {
			s := w.nats.Nodes[0]
			w.KillNATS(s)
			time.Sleep(w.Between(0, time.Second))
			s.Start()
			s.Up()
		} else {
			w.KillRelay(b.relays[w.Rand.IntN(len(b.relays))])
		}
	}
	b.wait(w) // they are not ready: all that starts fails
	beside, long := b.h.count()-at, time.Since(began)
	most := one*int(long/time.Millisecond)/int(b.span/time.Millisecond)*3/2 + b.instances + b.kills*b.begins(long)
	if beside > most {
		w.Wrong(Flooded, "%d instances asked %d times in %v beside %d kills, one asked %d times in %v: want ≤ %d", b.instances, beside, long.Round(ms), b.kills, one, b.span, most)
	}

	end := time.Now()
	b.h.Mode("ok")
	first := make(map[string]time.Time)
	w.Eventually(time.Minute, "all instances handle messages again", func() bool {
		if err := w.ledgers.Refresh(); err != nil {
			w.T.Fatal(err)
		}
		for _, run := range w.ledgers.Runs {
			if t, ok := first[run.Instance]; run.OK && run.Start.After(end) && (!ok || run.Start.Before(t)) {
				first[run.Instance] = run.Start
			}
		}
		return len(first) == b.instances
	})
	var earliest, latest time.Time
	for _, t := range first {
		if earliest.IsZero() || t.Before(earliest) {
			earliest = t
		}
		if t.After(latest) {
			latest = t
		}
	}
	known := latest.Sub(earliest)
	if known > b.know {
		w.Wrong(Stalled, "the last instance handled a message %v after the first one, want ≤ %v: %v", known, b.know, first)
	}
	close(stop)
	trickle()
	// A question in doubt spends no attempt, so that starts have no bound by message: how many there are in all is judged.
	r := w.Check(Expect{Within: of(time.Minute, 3*time.Minute), ExtraStarts: -1, MaxAttempts: -1})
	if r.Dead > 0 {
		w.Wrong(Bystander, "%d dead letters", r.Dead)
	}
	w.Figure("%d instances, the endpoint %s: %d requests in %v, of one instance %d; %d in %v beside %d kills ≤ %d; the first message %v after the end, the last instance %v after the first; %d messages, 0 lost, %d duplicates ≤ %d",
		b.instances, b.kind, all, b.span, one, beside, long.Round(ms), b.kills, most, earliest.Sub(end).Round(ms), known.Round(ms), r.Published, r.Duplicates, r.Bound)
}

func TestPeers_hang(t *testing.T) {
	peers(begin(t), of(before{instances: 3, kind: "hang", span: 6 * time.Second, fresh: 200, kills: 1, know: 5 * time.Second},
		before{instances: 5, kind: "hang", span: 25 * time.Second, fresh: 2000, kills: 8, know: 2 * time.Second}))
}

func TestTeeth_hints(t *testing.T) {
	bites(t, "hints", Flooded, func(w *World) {
		peers(w, before{instances: 5, kind: "hang", span: 10 * time.Second, fresh: 200, know: 5 * time.Second})
	})
}
