package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/client"
	"github.com/relaymq/relay/internal/chaos/ledger"
)

// Callers who give up must not have their work started afterwards, and those who wait must get their results, whatever is killed.

// Unwanted is a start for a caller who had given up before.
const Unwanted Class = "unwanted"

// callersLoad is a run with callers.
type callersLoad struct {
	calls int
	every time.Duration // between two calls
	slots int
	work  int // milliseconds of each
	kills int // of relay, and after every second one the server is restarted
	// timeout is relay's interest.timeout. Not answered in time, a message starts: on a machine that is overloaded a short one
	// would tell of nothing else.
	timeout time.Duration
	slack   time.Duration // beside it, for the round trip and the machine
}

func TestCallers_giveUpAtRandom(t *testing.T) {
	callers(begin(t), of(
		callersLoad{calls: 300, every: 5 * ms, slots: 8, work: 60, kills: 2, timeout: 5 * time.Second, slack: 5 * time.Second},
		callersLoad{calls: 100_000, every: ms, slots: 64, work: 110, kills: 10, timeout: 250 * ms, slack: 500 * ms}))
}

// Without the question the whole backlog is worked off, long after its callers are gone.
func TestTeeth_question(t *testing.T) {
	bites(t, "question", Unwanted, func(w *World) {
		callers(w, callersLoad{calls: 300, every: ms, slots: 4, work: 60, timeout: 250 * ms, slack: ms})
	})
}

// callFate is what became of one call.
type callFate struct {
	givesUp time.Duration // after it began; 0: it waits
	gone    time.Time     // when it gave up
	err     error
}

func callers(w *World, l callersLoad) {
	h := simple(w)
	route := M{
		"concurrency": l.slots, "caller": M{"reply": []string{"_INBOX.>"}, "interest": []string{"_INBOX.>"}},
		"interest": M{"timeout": l.timeout.String()},
	}
	r := w.StartRelay("r1", h, RelayConfig{Route: route})
	// A connection that keeps what it publishes while it is away would tell of its own trouble.
	nc, _ := w.dial(nats.Name("callers"))
	c, err := client.New(nc)
	if err != nil {
		w.T.Fatal(err)
	}
	defer c.Close()

	fates := make([]callFate, l.calls)
	for i := range fates {
		if i%2 == 0 {
			fates[i].givesUp = w.Between(ms, 2*time.Second)
		}
	}
	patient, enough := context.WithTimeout(w.T.Context(), 5*time.Minute)
	defer enough()
	var over, gone sync.WaitGroup
	over.Add(l.calls)
	calling := background(func() {
		for i := range fates {
			f := &fates[i]
			ctx, end := context.WithCancel(patient)
			m := &nats.Msg{Subject: fmt.Sprintf("t.%d", i), Data: ledger.Script{ID: fmt.Sprintf("c%d", i), Sleep: l.work}.Body()}
			if err := c.Start(ctx, m, func(_ *client.Result, err error) { f.err = err; over.Done(); end() }); err != nil {
				f.err = err
				over.Done()
				end()
			} else if f.givesUp > 0 {
				gone.Add(1)
				time.AfterFunc(f.givesUp, func() {
					defer gone.Done()
					end()
					f.gone = time.Now()
				})
			}
			time.Sleep(l.every)
		}
	})
	for i := range l.kills {
		time.Sleep(w.Between(200*ms, 900*ms))
		w.KillRelay(r)
		if i%2 == 1 {
			n := w.nats.Nodes[0]
			n.Signal(syscall.SIGTERM)
			if _, ended := n.Wait(20 * time.Second); !ended {
				w.T.Fatal("nats-server does not end")
			}
			w.Note("nats-server is stopped")
			n.Start()
			n.Up()
		}
		r.Start()
		r.WaitReady(20 * time.Second)
	}
	calling()
	over.Wait()
	w.Eventually(time.Minute, "rest", func() bool { return w.rest().done() })
	gone.Wait() // the last of those who give up, perhaps after they had their result
	judgeCallers(w, l, fates)
}

func judgeCallers(w *World, l callersLoad, fates []callFate) {
	if err := w.ledgers.Refresh(); err != nil {
		w.T.Fatal(err)
	}
	results, gaveUp, worst := 0, 0, time.Duration(0)
	var lost, unwanted []string
	for i, f := range fates {
		switch {
		case f.err == nil:
			results++
		case f.givesUp == 0:
			lost = append(lost, fmt.Sprintf("c%d waits, and got %v", i, f.err))
		case errors.Is(f.err, context.Canceled):
			gaveUp++
		default:
			lost = append(lost, fmt.Sprintf("c%d gave up after %v, and got %v", i, f.givesUp, f.err))
		}
	}
	starts := 0
	for _, run := range w.ledgers.Runs {
		var i int
		if _, err := fmt.Sscanf(run.ID, "c%d", &i); err != nil || i >= len(fates) {
			w.Wrong(Unexpected, "%s", run.ID)
			continue
		}
		starts++
		if f := fates[i]; f.err != nil && f.givesUp > 0 {
			if late := run.Start.Sub(f.gone); late > 0 {
				worst = max(worst, late)
				if late > l.timeout+l.slack {
					unwanted = append(unwanted, fmt.Sprintf("%s started %v after its caller gave up", run.ID, late.Round(ms)))
				}
			}
		}
	}
	if len(lost) > 0 {
		w.Wrong(Lost, "%d calls ended as they should not:\n  %s", len(lost), strings.Join(lost[:min(len(lost), 10)], "\n  "))
	}
	if len(unwanted) > 0 {
		w.Wrong(Unwanted, "%d starts:\n  %s", len(unwanted), strings.Join(unwanted[:min(len(unwanted), 10)], "\n  "))
	}
	if letters := w.Letters(); len(letters) > 0 {
		w.Wrong(Bystander, "%d dead letters", len(letters))
	}
	w.Figure("%d calls over %d kills of relay: %d results, none lost; %d gave up, of whose work none started later than %v after (bound %v); %d starts",
		len(fates), l.kills, results, gaveUp, worst.Round(ms), l.timeout+l.slack, starts)
}
