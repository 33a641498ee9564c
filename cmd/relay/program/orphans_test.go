package program

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/orphans"
)

// A route is renamed in the configuration: what waits for it is found, and moved.
func TestOrphans_aRouteIsRenamed(t *testing.T) {
	t.Parallel()
	routes := `
routes:
  - name: billing
    subjects: [orders.>]
    start: all
    handler: {http: {url: "$HOOK"}}
    retry: {max_attempts: 5, policy: constant, min: 1h, max: 1h}
    supervisor: {trip_after: 0}
`
	w := newWorld(t, routes)
	w.hook.answers(func(request) (int, string) { return 500, "down" })
	p := w.run()
	for range 3 {
		w.publish("orders.eu", []byte("{}"), nil)
	}
	natstest.Eventually(t, "they are parked", func() bool {
		st, err := w.js.Stream(t.Context(), "RELAY_RETRY")
		return err == nil && st.CachedInfo().State.Msgs == 3
	})
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Fatalf("exit %d", code)
	}
	if out := must(t, w.dir, "orphans", "ls"); !strings.Contains(out, "nothing waits for a route that does not exist") {
		t.Errorf("before: %s", out)
	}
	w.configure("nats: {url: \"" + w.s.URL() + "\"}\n" + strings.Replace(strings.Replace(routes, "name: billing", "name: invoicing", 1), "start: all", "start: new", 1))
	var list []orphans.Orphan
	if err := json.Unmarshal([]byte(must(t, w.dir, "orphans", "ls", "--json")), &list); err != nil || len(list) != 2 {
		t.Fatalf("%v, %+v", err, list)
	}
	if out := must(t, w.dir, "orphans", "ls"); !strings.Contains(out, "relay orphans move --from billing") || !strings.Contains(out, "nats consumer rm ORDERS billing") {
		t.Errorf("listed as %s", out)
	}
	move := []string{"orphans", "move", "--from", "billing", "--to", "invoicing"}
	if out := must(t, w.dir, append(move, "--dry-run")...); out != "3 would be moved: 3 messages in the retry stream, 0 dead letters, 0 of the durable\n" {
		t.Errorf("a dry run says %q", out)
	}
	if code, _, said := relay(t, w.dir, append(move, "--yes")...); code != cli.ExitFailed || !strings.Contains(said, "start relay with that route first") {
		t.Errorf("to a route that was never started: exit %d, %s", code, said)
	}
	if code, _, said := relay(t, w.dir, "orphans", "move", "--from", "billing", "--to", "nobody"); code != cli.ExitUsage || !strings.Contains(said, "no route nobody") {
		t.Errorf("to a route that is not configured: exit %d, %s", code, said)
	}
	w.run().ready()
	if code, _, said := relay(t, w.dir, move...); code != cli.ExitUsage || !strings.Contains(said, "--yes") {
		t.Errorf("without a terminal: exit %d, %s", code, said)
	}
	if out := must(t, w.dir, append(move, "--yes")...); out != "3 moved: 3 messages in the retry stream, 0 dead letters, 0 of the durable\n" {
		t.Errorf("move says %q", out)
	}
	if out := must(t, w.dir, append(move, "--yes", "--json")...); !strings.Contains(out, `"moved": 0`) {
		t.Errorf("again: %q", out)
	}
	// A route that nobody knows is named: it may be mistyped.
	for _, of := range [][]string{{"move", "--from", "biling", "--to", "invoicing", "--yes"}, {"return", "--from", "biling", "--stream", "ORDERS", "--yes"}} {
		if code, _, said := relay(t, w.dir, append([]string{"orphans"}, of...)...); code != 0 || !strings.Contains(said, "nothing was found that waits for route biling") {
			t.Errorf("%v: exit %d, %s", of, code, said)
		}
	}
}

// A route, or the whole service, gets another name while messages wait in every place: one command gives all of them to the new route, once each.
func TestOrphans_regressionARenamedRouteOrServiceLeavesNothing(t *testing.T) {
	t.Parallel()
	const routes = `
service: shop
routes:
  - name: billing
    subjects: [orders.>]
    start: all
    handler: {http: {url: "$HOOK"}}
    retry: {max_attempts: 5, policy: constant, min: 1h, max: 1h}
    supervisor: {trip_after: 0}
`
	for name, renamed := range map[string][]string{
		"route":   {"name: billing", "name: invoicing", "start: all", "start: new"},
		"service": {"service: shop", "service: store", "name: billing", "name: billing\n    durable: billing-2", "start: all", "start: new"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, routes)
			w.hook.answers(func(r request) (int, string) {
				if strings.Contains(string(r.body), "bad") {
					return 422, "bad"
				}
				return 500, "down"
			})
			p := w.run()
			for i := range 5 {
				w.publish("orders.eu", fmt.Appendf(nil, "parked %d", i), nil)
			}
			for i := range 4 {
				w.publish("orders.eu", fmt.Appendf(nil, "bad %d", i), nil)
			}
			natstest.Eventually(t, "all have failed", func() bool {
				retries, err := w.js.Stream(t.Context(), "SHOP_RETRY")
				dead, err2 := w.js.Stream(t.Context(), "SHOP_DLQ")
				return err == nil && err2 == nil && retries.CachedInfo().State.Msgs == 5 && dead.CachedInfo().State.Msgs == 4
			})
			p.signal(syscall.SIGTERM)
			if code := p.wait(); code != 0 {
				t.Fatalf("exit %d", code)
			}
			for i := range 6 {
				w.publish("orders.eu", fmt.Appendf(nil, "waits %d", i), nil)
			}
			var mu sync.Mutex
			got := map[string]int{}
			w.hook.answers(func(r request) (int, string) {
				mu.Lock()
				defer mu.Unlock()
				got[string(r.body)]++
				return 200, ""
			})
			w.configure("nats: {url: \"" + w.s.URL() + "\"}\n" + strings.NewReplacer(renamed...).Replace(routes))
			w.run().ready()
			w.publish("orders.eu", []byte("new 0"), nil)
			move := []string{"orphans", "move", "--from", "billing", "--to", "invoicing", "--yes"}
			next := "relay orphans move --from billing --to ROUTE"
			if name == "service" {
				move = []string{"orphans", "move", "--of-service", "shop", "--from", "billing", "--to", "billing", "--yes"}
				next = "relay orphans move --of-service shop --from billing --to ROUTE"
			}
			if out := must(t, w.dir, "orphans", "ls"); !strings.Contains(out, next) {
				t.Errorf("listed as %s", out)
			}
			natstest.Eventually(t, "status names it", func() bool { return strings.Contains(must(t, w.dir, "status"), next) })
			if out := must(t, w.dir, move...); out != "15 moved: 5 messages in the retry stream, 4 dead letters, 6 of the durable\n" {
				t.Errorf("move says %q", out)
			}
			to := move[5]
			if name == "service" {
				to = "billing"
			}
			must(t, w.dir, "retries", "now", "--route", to, "--yes")
			if out := must(t, w.dir, "dlq", "replay", "--route", to, "--yes"); !strings.Contains(out, "4") {
				t.Errorf("replay says %s", out)
			}
			natstest.Eventually(t, "all are handled", func() bool { mu.Lock(); defer mu.Unlock(); return len(got) == 16 })
			mu.Lock()
			defer mu.Unlock()
			for body, n := range got {
				if n != 1 {
					t.Errorf("%s: %d times", body, n)
				}
			}
			if out := must(t, w.dir, "orphans", "ls"); !strings.Contains(out, "nothing waits") {
				t.Errorf("then: %s", out)
			}
		})
	}
}

// The durable of a route was renamed, and what the old one had was given to the route: its dead letters went to where they were, and were then removed
// as the old ones.
func TestOrphans_regressionMovingToTheSameRouteKeepsItsDeadLetters(t *testing.T) {
	t.Parallel()
	const routes = `
routes:
  - name: billing
    subjects: [orders.>]
    start: all
    handler: {http: {url: "$HOOK"}}
`
	w := newWorld(t, routes)
	w.hook.answers(func(r request) (int, string) {
		if strings.Contains(string(r.body), "bad") {
			return 422, "bad"
		}
		return 200, ""
	})
	p := w.run()
	w.publish("orders.eu", []byte("bad"), nil)
	natstest.Eventually(t, "it is a dead letter", func() bool { return left(t, w.js, "RELAY_DLQ") == 1 })
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Fatalf("exit %d", code)
	}
	for i := range 3 {
		w.publish("orders.eu", fmt.Appendf(nil, "waits %d", i), nil)
	}
	handled := w.hook.count()
	w.configure("nats: {url: \"" + w.s.URL() + "\"}\n" + strings.Replace(routes, "start: all", "start: new\n    durable: billing-2", 1))
	w.run()
	move := []string{"orphans", "move", "--from", "billing", "--to", "billing", "--yes"}
	if code, _, said := relay(t, t.TempDir(), append(move, "--server", w.s.URL())...); code != cli.ExitUsage || !strings.Contains(said, "which durable it uses now") {
		t.Errorf("without a configuration: exit %d, %s", code, said)
	}
	if out := must(t, w.dir, move...); out != "3 moved: 0 messages in the retry stream, 0 dead letters, 3 of the durable\n" {
		t.Errorf("moved: %s", out)
	}
	natstest.Eventually(t, "what the old durable had is handled", func() bool { return w.hook.count() == handled+3 })
	for _, more := range [][]string{nil, {"--stream", "ORDERS"}, {"--of-service", "relay"}} {
		if out := must(t, w.dir, append(slices.Clone(move), more...)...); !strings.HasPrefix(out, "0 moved: ") {
			t.Errorf("moved again with %q: %s", more, out)
		}
	}
	if n := left(t, w.js, "RELAY_DLQ"); n != 1 {
		t.Errorf("%d dead letters, want 1", n)
	}
}
