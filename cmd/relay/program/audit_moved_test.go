package program

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/natstest"
)

// What relay orphans move gave to a route ended there without having come: "more outcomes were counted than messages came", for good. The route that it
// was taken from, on a durable that stays, missed it.
func TestAudit_regressionWhatOrphansMoveBringsIsExplained(t *testing.T) {
	t.Parallel()
	const route = `
  - name: %s
    stream: ORDERS
    durable: %s
    subjects: [%s]
    start: %s
    handler: {http: {url: "$HOOK"}}
    retry: {max_attempts: 5, policy: constant, min: 1h, max: 1h}
    supervisor: {trip_after: 0}
`
	for name, c := range map[string]struct {
		before, after []string
		waiting       int // what comes while nobody is there
		moved         int
		away          uint64 // of those moved, that the former ledger knows of
	}{
		"another durable": {
			before:  []string{fmt.Sprintf(route, "billing", "old", "orders.>", "all")},
			after:   []string{fmt.Sprintf(route, "invoicing", "new", "orders.>", "new")},
			waiting: 4, moved: 3 + 4, // what is parked, and what the durable has not delivered
		},
		"the same durable": {
			before:  []string{fmt.Sprintf(route, "billing", "old", "orders.eu", "all"), fmt.Sprintf(route, "other", "old", "orders.us", "all")},
			after:   []string{fmt.Sprintf(route, "invoicing", "old", "orders.eu", "all"), fmt.Sprintf(route, "other", "old", "orders.us", "all")},
			waiting: 4, moved: 3, away: 3,
		},
		"another durable, and the old one stays": {
			before: []string{fmt.Sprintf(route, "billing", "old", "orders.eu", "all"), fmt.Sprintf(route, "other", "old", "orders.us", "all")},
			after:  []string{fmt.Sprintf(route, "invoicing", "new", "orders.eu", "new"), fmt.Sprintf(route, "other", "old", "orders.us", "all")},
			moved:  3, away: 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "routes:"+strings.Join(c.before, ""))
			w.hook.answers(func(request) (int, string) { return 500, "down" })
			p := w.run()
			for range 3 {
				w.publish("orders.eu", []byte("{}"), nil)
			}
			natstest.Eventually(t, "they are parked", func() bool { return left(t, w.js, "RELAY_RETRY") == 3 })
			p.signal(syscall.SIGTERM)
			p.wait()
			for range c.waiting {
				w.publish("orders.eu", []byte("{}"), nil)
			}
			w.configure("nats: {url: \"" + w.s.URL() + "\"}\nroutes:" + strings.Join(c.after, ""))
			w.hook.answers(func(request) (int, string) { return 200, "" })
			p = w.run()
			p.ready()
			if out := must(t, w.dir, "orphans", "move", "--from", "billing", "--to", "invoicing", "--yes"); !strings.HasPrefix(out, fmt.Sprint(c.moved, " moved")) {
				t.Fatalf("moved: %s", out)
			}
			balanced := func(parked, here, away uint64) bool {
				var list []audit.Balance
				if err := json.Unmarshal([]byte(must(t, w.dir, "audit", "--json")), &list); err != nil {
					t.Fatal(err)
				}
				var sum audit.Counts
				waits := uint64(0)
				for _, b := range list {
					if b.Verdict == audit.Unknown {
						continue
					}
					if b.Verdict != audit.Balanced {
						return false
					}
					sum, waits = sum.Add(b.Total), waits+b.Parked
				}
				return waits == parked && sum.MovedHere == here && sum.MovedAway == away
			}
			natstest.Eventually(t, "it balances while they wait", func() bool { return balanced(3, 3, c.away) })
			if out := must(t, w.dir, "audit"); !strings.Contains(out, "3 moved here from another route") {
				t.Errorf("it says:\n%s", out)
			}
			if out := must(t, w.dir, "replay", "ls"); !strings.Contains(out, "orphans move") || !strings.Contains(out, "from route billing to route invoicing") {
				t.Errorf("who did so:\n%s", out)
			}
			must(t, w.dir, "retries", "now", "--route", "invoicing", "--yes")
			natstest.Eventually(t, "they are handled", func() bool { return left(t, w.js, "RELAY_RETRY") == 0 })
			natstest.Eventually(t, "it balances when they are through", func() bool { return balanced(0, 3, c.away) })
		})
	}
}
