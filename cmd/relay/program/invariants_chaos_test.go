//go:build chaos

package program

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/natstest"
)

// The invariants I-18 and I-20 at their figures, with the program as a user runs it.

// I-18: ten minutes without a place for dead letters. Nothing is acknowledged, it shows within ten seconds, the route beside goes on,
// and ten seconds after the place is back everything is in it. RELAYTEST_OUTAGE makes the outage shorter.
func TestChaos_tenMinutesWithoutDeadLetters(t *testing.T) {
	outage := 10 * time.Minute
	if d, err := time.ParseDuration(os.Getenv("RELAYTEST_OUTAGE")); err == nil {
		outage = d
	}
	w := newReplays(t)
	w.configure(fmt.Sprintf("nats: {url: %q}\n", w.s.URL()) + strings.Replace(forwarding, "forward: {subject: done.orders}", `http: {url: "$HOOK"}`, 1))
	w.hook.answers(func(request) (int, string) { return http.StatusUnprocessableEntity, "no such customer" })
	service := w.run()
	l := newLive(t, w, 50)
	before := l.measure(t, func(began time.Time) bool { return time.Since(began) < 3*time.Second })
	if err := w.js.DeleteStream(t.Context(), "RELAY_DLQ"); err != nil {
		t.Fatal(err)
	}
	gone := time.Now()
	n := 0
	publish := func() {
		w.publish(fmt.Sprintf("orders.%d.created", n%20), fmt.Appendf(nil, `{"n":%d}`, n), nil)
		n++
	}
	publish()
	natstest.Eventually(t, "readiness tells", func() bool { status, _ := service.get("/readyz"); return status != http.StatusOK })
	said := time.Since(gone)
	if said > 10*time.Second {
		t.Errorf("readiness tells after %v", said)
	}
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	during := l.measure(t, func(time.Time) bool {
		<-tick.C
		publish()
		return time.Since(gone) < outage
	})
	natstest.Eventually(t, "all wait, none is acknowledged", func() bool {
		c, err := w.js.Consumer(t.Context(), "ORDERS", "billing")
		return err == nil && c.CachedInfo().NumAckPending+int(c.CachedInfo().NumPending) == n
	})
	store, err := dlq.Open(t.Context(), w.js, dlq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	natstest.Eventually(t, "all are dead letters", func() bool { return left(t, w.js, store.Name()) >= n })
	heal := time.Since(back)
	if heal > 10*time.Second {
		t.Errorf("it took %v to heal", heal)
	}
	settled(t, w.js, "ORDERS", "billing")
	seen := make(map[uint64]int)
	for _, e := range deadLetters(t, w.js) {
		seen[e.Sequence]++
	}
	if len(seen) != n || left(t, w.js, store.Name()) != n {
		t.Errorf("%d entries of %d messages, want %d", left(t, w.js, store.Name()), len(seen), n)
	}
	if during.rate < 0.95*before.rate {
		t.Errorf("the route beside: %v, before: %v", during, before)
	}
	t.Logf("I-18: %v without dead letters, %d messages: unready after %v, 0 acknowledged, all %d stored once %v after; the route beside: %v (before: %v)",
		outage, n, said.Round(time.Millisecond), len(seen), heal.Round(time.Millisecond), during, before)
}

// I-20: 10,000 replayed messages that fail come back as one entry each, with their history and a fresh budget.
func TestChaos_tenThousandFailAgain(t *testing.T) {
	const n = 10_000
	w := newWorld(t, billing+"    supervisor: {trip_after: 0, route_trip: {of: 0}}\n")
	w.hook.answers(func(request) (int, string) { return http.StatusServiceUnavailable, "down" })
	w.run()
	fill(t, w.js, n, 1000)
	for replay := 1; replay <= 2; replay++ {
		if code, out, stderr := relay(t, w.dir, "dlq", "replay", "--yes"); code != 0 {
			t.Fatalf("exit %d\n%s%s", code, out, stderr)
		}
		deadline := time.Now().Add(4 * time.Minute)
		for left(t, w.js, "RELAY_DLQ") < n && time.Now().Before(deadline) {
			time.Sleep(100 * time.Millisecond)
		}
		settled(t, w.js, "RELAY_RETRY", "billing--ORDERS")
		seen := make(map[uint64]bool)
		for _, e := range deadLetters(t, w.js) {
			if e.Replay != replay || e.Attempts != 2 || len(e.Past) != replay || e.Past[replay-1].Replay != replay-1 || e.Stream != "ORDERS" || e.Subject == "" {
				t.Errorf("entry %d: %+v", e.StoredSequence, e.Origin)
			}
			if seen[e.Sequence] {
				t.Errorf("message %d has two entries", e.Sequence)
			}
			seen[e.Sequence] = true
			if t.Failed() {
				break
			}
		}
		if len(seen) != n {
			t.Fatalf("%d messages are back, want %d", len(seen), n)
		}
		if got := w.hook.count(); got != 2*n*replay {
			t.Errorf("%d attempts, want %d", got, 2*n*replay)
		}
		t.Logf("I-20: replay %d: %d back, one entry each, 2 attempts each", replay, len(seen))
	}
}
