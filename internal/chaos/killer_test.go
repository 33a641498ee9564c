package chaos

import (
	"fmt"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/chaos/ledger"
)

// killers are the ends of a process that a handler can bring about.
var killers = []string{"exit", "mapwrite", "gopanic", "overflow", "exit0"}

// poison puts k process-killers among n messages, on i instances.
func poison(t *testing.T, k, n, instances int) {
	w := begin(t)
	every := n / k
	w.StartNATS(NATSConfig{})
	w.Connect()
	w.Stream()
	w.Produce(Load{Count: n, Script: func(i int) ledger.Script {
		if i%every == every/2 {
			return ledger.Script{Do: killers[i/every%len(killers)]}
		}
		return ledger.Script{}
	}})
	var list []*Embedded
	for i := range instances {
		// What a process has in hand that lost its leases and is not gone yet is not suspected: none may take longer to die.
		e := w.StartEmbedded(fmt.Sprintf("e%d", i+1), M{"AckWait": of(time.Second, 3*time.Second), "Concurrency": 128})
		e.Keep()
		list = append(list, e)
	}
	// Every death is a fault of its own, of which a process-killer has four at most: what was in flight may come twice. The starts of the
	// killers are held to that below.
	r := w.Check(Expect{Within: of(time.Minute, 5*time.Minute), Each: true, ExtraStarts: 4 * k, Unbounded: true})
	deaths := 0
	for _, e := range list {
		deaths += e.Restarts()
	}
	letters := w.Letters()
	wrong := 0
	for _, l := range letters {
		if l.Reason != "crash" {
			wrong++
		}
	}
	if len(letters) != k || wrong > 0 {
		t.Errorf("I-05: %d dead letters, %d of them not for a crash, want %d", len(letters), wrong, k)
	}
	perPoison := map[string]int{}
	most := 0
	for _, run := range w.ledgers.Runs {
		if run.End.IsZero() {
			for _, p := range w.Pubs() {
				if p.Script.ID == run.ID && p.doomed() {
					perPoison[run.ID]++
					most = max(most, perPoison[run.ID])
				}
			}
		}
	}
	if most > 4 {
		t.Errorf("I-05: one poison was started %d times, want ≤ max_crashes + 1 = 4", most)
	}
	w.Figure("%d process-killers among %d messages, %d instances: %d dead letters for a crash, %d bystanders, %d deaths, starts per poison ≤ %d, %d duplicates",
		k, n, instances, len(letters)-wrong, len(r.Wrong[Bystander]), deaths, most, r.Duplicates)
}

func TestF53_uncatchable(t *testing.T) { poison(t, 1, 50, 1) }

func TestF86_poison(t *testing.T) { poison(t, of(2, 10), of(300, 10_000), of(2, 3)) }
