package chaos

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/chaos/ledger"
)

// Killed: one of several instances is killed with messages in hand, and does not come back. The others start them soon, and not after ack_wait,
// and nothing that the others have in hand.

func killed(w *World, kills int) {
	w.T.Helper()
	const instances, slots = 3, 16
	w.StartNATS(NATSConfig{Replicas: 3})
	w.Connect()
	w.Stream()
	h := w.StartHandler("")
	start := func(i int) *Relay {
		return w.StartRelay(fmt.Sprintf("r%d", i+1), h, RelayConfig{URL: w.nats.Nodes[i%3].url(), Route: M{
			"concurrency": slots, "timeout": "20s", "ack_wait": "30s",
		}})
	}
	var relays []*Relay
	for i := range instances {
		relays = append(relays, start(i))
	}
	var took []time.Duration
	for i := range kills {
		dead := relays[len(relays)-1]
		// What the one has that is to die hangs there, for longer than the others take to get it. So it has its slots full, and more in hand.
		w.Produce(Load{Count: 600, Rate: 400, Script: func(int) ledger.Script { return ledger.Script{Do: "hang", On: dead.Name, Sleep: 5, SleepOK: 5} }})
		time.Sleep(w.Between(0, time.Second))
		w.KillRelay(dead)
		at := time.Now()
		var last time.Time
		w.Eventually(time.Minute, "what the dead instance had in hand is handled by others", func() bool {
			if err := w.ledgers.Refresh(); err != nil {
				w.T.Fatal(err)
			}
			open := make(map[string]bool)
			for _, run := range w.ledgers.Runs {
				if run.Instance == dead.Name && !run.OK {
					open[run.ID] = true
				}
			}
			if len(open) == 0 {
				w.T.Fatal("it had nothing in hand")
			}
			for _, run := range w.ledgers.Runs {
				if run.OK && open[run.ID] {
					delete(open, run.ID)
					if run.Start.After(last) {
						last = run.Start
					}
				}
			}
			return len(open) == 0
		})
		took = append(took, last.Sub(at))
		relays = append(relays[:len(relays)-1], start(instances+i))
	}
	r := w.Check(Expect{Within: time.Minute, Each: true})
	handled := make(map[string]int)
	for _, run := range w.ledgers.Runs {
		if run.OK {
			if handled[run.ID]++; handled[run.ID] > 1 {
				w.Wrong(Attempts, "%s was in hand of an instance that lived, and is handled again", run.ID)
			}
		}
	}
	slices.Sort(took)
	if most := took[len(took)-1]; most > 4*time.Second {
		w.Wrong(Stalled, "what a dead instance had in hand came after %v", most.Round(ms))
	}
	w.Figure("%d kills of one of %d instances on 3 servers, ack_wait 30s: what each had in hand was started elsewhere %v to %v after the kill; %d messages, 0 lost, %d duplicates ≤ %d",
		kills, instances, took[0].Round(ms), took[len(took)-1].Round(ms), r.Published, r.Duplicates, r.Bound)
}

func TestKilled_inHandComesSoon(t *testing.T) { killed(begin(t), of(2, 12)) }
