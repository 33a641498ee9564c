package program

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"

	"github.com/relaymq/relay/consumer"
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
	eventually(t, "they are parked", func() bool {
		st, err := w.js.Stream(t.Context(), "RELAY_RETRY")
		return err == nil && st.CachedInfo().State.Msgs == 3
	})
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Fatalf("exit %d", code)
	}
	if out := must(t, w.dir, "orphans", "ls"); !strings.Contains(out, "nothing waits for a route that is not there") {
		t.Errorf("before: %s", out)
	}
	w.configure("nats: {url: \"" + w.s.URL() + "\"}\n" + strings.Replace(strings.Replace(routes, "name: billing", "name: invoicing", 1), "start: all", "start: new", 1))
	var list []consumer.Orphan
	if err := json.Unmarshal([]byte(must(t, w.dir, "orphans", "ls", "--json")), &list); err != nil || len(list) != 2 {
		t.Fatalf("%v, %+v", err, list)
	}
	if out := must(t, w.dir, "orphans", "ls"); !strings.Contains(out, "relay orphans move --from billing") || !strings.Contains(out, "nats consumer rm ORDERS billing") {
		t.Errorf("listed as %s", out)
	}
	move := []string{"orphans", "move", "--from", "billing", "--to", "invoicing"}
	if out := must(t, w.dir, append(move, "--dry-run")...); out != "3 would be moved\n" {
		t.Errorf("a dry run says %q", out)
	}
	if code, _, said := relay(t, w.dir, append(move, "--yes")...); code != exitFailed || !strings.Contains(said, "start relay with that route first") {
		t.Errorf("to a route that was never started: exit %d, %s", code, said)
	}
	if code, _, said := relay(t, w.dir, "orphans", "move", "--from", "billing", "--to", "nobody"); code != exitUsage || !strings.Contains(said, "no route nobody") {
		t.Errorf("to a route that is not configured: exit %d, %s", code, said)
	}
	w.run().ready()
	if code, _, said := relay(t, w.dir, move...); code != exitUsage || !strings.Contains(said, "--yes") {
		t.Errorf("without a terminal: exit %d, %s", code, said)
	}
	if out := must(t, w.dir, append(move, "--yes")...); out != "3 moved\n" {
		t.Errorf("move says %q", out)
	}
	if out := must(t, w.dir, append(move, "--yes", "--json")...); !strings.Contains(out, `"moved": 0`) {
		t.Errorf("again: %q", out)
	}
}
