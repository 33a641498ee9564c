package program

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	callers "github.com/relaymq/relay/client"
	"github.com/relaymq/relay/internal/natstest"
)

// An endpoint is down, and another one stands in: every message is handled, once, and a caller gets its result; the endpoint gets
// probes only. Once it works again, it alone is asked. A message that it never takes goes to the other one as the last resort.
func TestRun_fallback(t *testing.T) {
	t.Parallel()
	other := newEndpoint(t)
	w := newWorld(t, fmt.Sprintf(`
routes:
  - name: billing
    subjects: [orders.>]
    concurrency: 8
    handler: {http: {url: "$HOOK"}}
    fallback: {handler: {http: {url: %q}}, concurrency: 4, timeout: 5s}
    caller: {reply: [_INBOX.>]}
    retry: {min: 50ms, max: 200ms, max_attempts: 3}
    supervisor: {route_trip: {of: 10}, restart: {min: 100ms, max: 1s}}
`, other.URL))
	var up atomic.Bool
	w.hook.answers(func(r request) (int, string) {
		if !up.Load() || r.subject == "orders.poison" {
			return 503, "down"
		}
		return 200, ""
	})
	other.answers(func(request) (int, string) { return 200, "from the other one" })
	if out := must(t, w.dir, "explain", "orders.1"); !strings.Contains(out, "4 at once, timeout 5s, when waiting, exhausted") {
		t.Errorf("explain:\n%s", out)
	}
	p := w.run()

	const messages = 300
	publishMany(t, w.js, messages, func(i int) string { return fmt.Sprintf("orders.%d", i) })
	settled(t, w.js, "ORDERS", "billing")
	handled := map[string]int{}
	for _, r := range other.all() {
		handled[r.id]++
	}
	for id, n := range handled {
		if n != 1 {
			t.Errorf("%s was handled %d times", id, n)
		}
	}
	if len(handled) != messages {
		t.Errorf("the fallback handled %d messages", len(handled))
	}
	if n := w.hook.count(); n > messages/2 {
		t.Errorf("the endpoint that is down got %d requests", n)
	}
	if n := len(deadLetters(t, w.js)); n != 0 {
		t.Errorf("%d dead letters", n)
	}

	c, err := callers.New(w.nc)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	res, err := c.Do(t.Context(), &nats.Msg{Subject: "orders.call"})
	if err != nil || string(res.Data) != "from the other one" {
		t.Errorf("the caller got %+v, %v", res, err)
	}
	if out := must(t, w.dir, "status"); !strings.Contains(out, fmt.Sprintf("fallback of billing: 0 running, %d done, 0 failed", messages+1)) {
		t.Errorf("status:\n%s", out)
	}

	up.Store(true)
	flows := func() bool {
		w.publish("orders.wake", nil, nil)
		_, text := p.get("/metrics")
		return strings.Contains(text, `relay_route_up{route="billing"} 1`)
	}
	natstest.Eventually(t, "the route flows again", flows)
	settled(t, w.js, "ORDERS", "billing")
	before, asked := other.count(), w.hook.count()
	for i := range 20 {
		w.publish(fmt.Sprintf("orders.again.%d", i), nil, nil)
	}
	settled(t, w.js, "ORDERS", "billing")
	if a, b := w.hook.count()-asked, other.count()-before; a != 20 || b != 0 {
		t.Errorf("after the outage the endpoint got %d messages, the fallback %d", a, b)
	}

	w.publish("orders.poison", nil, nil)
	settled(t, w.js, "ORDERS", "billing")
	poison := 0
	for _, r := range w.hook.all() {
		if r.subject == "orders.poison" {
			poison++
		}
	}
	if all := other.all(); poison != 3 || all[len(all)-1].subject != "orders.poison" || len(all) != before+1 {
		t.Errorf("the poison: %d attempts, %d more by the fallback", poison, len(all)-before)
	}
	if _, text := p.get("/metrics"); !strings.Contains(text, fmt.Sprintf(`relay_settlements_total{how="fallback",route="billing"} %d`, before+1)) {
		t.Errorf("metrics:\n%s", text)
	}
}
