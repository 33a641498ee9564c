package chaos

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// loadStats is what chaosd's load handler writes.
type loadStats struct {
	OK, Failed, Retried, Recovered, Waiting int
	P50, P99, Max, Early                    int64
	At                                      time.Time
	FirstOK, LastOK                         time.Time
	Hung, HangingNow                        int
	Fresh                                   int
	FreshP50, FreshP99, FreshMax            int64
	Handled, Again                          int
	Starts                                  map[int]int
	Stash                                   int
	MaxRSS                                  int64
}

func readStats(file string) (s loadStats) {
	b, err := os.ReadFile(file)
	if err == nil {
		_ = json.Unmarshal(b, &s)
	}
	return s
}

// pour publishes n messages at a rate, confirmed but without a ledger: the rows about rates count. It returns the rate it
// reached.
func pour(w *World, rate, n int, subject func(i int) string, body func() string) float64 {
	nc, _ := w.dial()
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(4000))
	if err != nil {
		w.T.Fatal(err)
	}
	began := time.Now()
	for i := range n {
		if rate > 0 && i%20 == 0 {
			if ahead := time.Duration(i)*time.Second/time.Duration(rate) - time.Since(began); ahead > time.Millisecond {
				time.Sleep(ahead)
			}
		}
		var err error
		for range 100 { // the server may be busy for a moment
			if _, err = js.PublishMsgAsync(&nats.Msg{Subject: subject(i), Data: []byte(body())}); !errors.Is(err, jetstream.ErrTooManyStalledMsgs) {
				break
			}
		}
		if err != nil {
			w.T.Errorf("publish: %v", err)
			return 0
		}
	}
	<-js.PublishAsyncComplete()
	return float64(n) / time.Since(began).Seconds()
}

// says is the same body for all.
func says(body string) func() string { return func() string { return body } }

// failing runs the same load twice on one durable, without failing messages and with them, beside so many that wait.
// A slice only sees gross starvation: it shares the machine with other rows. The figures need make chaos, and a machine
// without other work.
func failing(t *testing.T, waiting int) {
	if !Full {
		t.Parallel()
	}
	slots <- struct{}{}
	t.Cleanup(func() { <-slots })
	w := New(t) // in make chaos it runs before all rows that are parallel: it is about rates
	w.StartNATS(NATSConfig{})
	w.Connect()
	w.Stream()
	stats := w.path("load.json")
	w.StartEmbedded("e1", M{"Load": stats, "Concurrency": 256, "RetryMin": time.Second, "RetryMax": time.Second, "AckWait": 30 * time.Second, "MaxAttempts": 10})
	healthy, bad, length := of(3000, 20_000), of(500, 5000), of(2*time.Second, 30*time.Second)
	ok := func(i int) string { return fmt.Sprintf("t.ok.%d", i%1000) }
	if waiting > 0 {
		pour(w, 0, waiting, func(i int) string { return fmt.Sprintf("t.bad.w%d", i%1000) }, says("wait"))
		took := w.Eventually(10*time.Minute, "they wait", func() bool { return readStats(stats).Waiting >= waiting })
		w.Note("%d wait, after %v", waiting, took)
	}
	phase := func(withBad bool) (rate float64) {
		before := readStats(stats)
		n := int(length.Seconds() * float64(healthy))
		began := time.Now()
		wait := func() {}
		if withBad {
			wait = background(func() {
				pour(w, bad, int(length.Seconds()*float64(bad)), func(i int) string { return fmt.Sprintf("t.bad.%d", i%1000) }, says("1"))
			})
		}
		offered := pour(w, healthy, n, ok, says(""))
		w.Within(time.Minute, func() bool { return readStats(stats).OK-before.OK >= n })
		took := time.Since(began)
		wait()
		handled := readStats(stats).OK - before.OK
		if handled < n {
			t.Errorf("%s: %d of %d healthy messages", NotDrained, handled, n)
		}
		w.Note("healthy: offered %.0f/s, handled %d in %v", offered, handled, took)
		return float64(handled) / took.Seconds()
	}
	alone := phase(false)
	beside := phase(true)
	total := int(length.Seconds() * float64(bad))
	took, all := w.Within(30*time.Second, func() bool { return readStats(stats).Recovered >= total })
	s := readStats(stats)
	if !all {
		t.Errorf("retries: %d of %d came back within %v", s.Recovered, total, took)
	}
	if most := of[int64](3000, 1000); s.P99 > most {
		t.Errorf("I-07: p99 of %d retries is %d ms late, want ≤ %d", s.Retried, s.P99, most)
	}
	if s.Early > 0 {
		t.Errorf("I-07: %d retries more than 50 ms early", s.Early)
	}
	if Full && alone < 0.9*float64(healthy) {
		t.Errorf("no measurement: even without failing messages the machine handles %.0f/s of the %d/s offered", alone, healthy)
	}
	if least := of(0.5, 0.95); beside < least*alone {
		t.Errorf("I-08: healthy messages at %.0f/s beside the failing ones, %.0f/s without: %.2f, want ≥ %.2f", beside, alone, beside/alone, least)
	}
	w.Figure("%d failing/s for %v beside %d waiting: retries late p50 %d ms, p99 %d ms, max %d ms; healthy %.0f/s of %.0f/s without them (offered %d/s): %.3f",
		bad, length, waiting, s.P50, s.P99, s.Max, beside, alone, healthy, beside/alone)
}

func TestFailing_none(t *testing.T) { failing(t, 0) }

func TestFailing_100000Waiting(t *testing.T) { failing(t, of(3000, 100_000)) }
