package program

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/natstest"
)

// Two routes: what fails on one is parked, what fails on the other waits in its durable.
const waitingRoutes = `
routes:
  - name: slow
    subjects: [orders.slow.>]
    handler: {http: {url: "$HOOK"}}
    retry: {max_attempts: 5, policy: constant, min: 2h, max: 2h, park_after: 1m}
    supervisor: {trip_after: 0, route_trip: {of: 0}}
  - name: quick
    subjects: [orders.quick.>]
    handler: {http: {url: "$HOOK"}}
    retry: {max_attempts: 5, policy: constant, min: 10m, max: 10m, park_after: 1h}
    supervisor: {trip_after: 0, route_trip: {of: 0}}
`

func TestRetries(t *testing.T) {
	t.Parallel()
	w := newWorld(t, waitingRoutes)
	w.hook.answers(func(request) (int, string) { return 503, "gateway\u202edown" })
	w.run()
	for _, s := range []string{"a", "b", "c"} {
		w.publish("orders.slow."+s, []byte(`{"id":"`+s+`"}`), nil)
	}
	w.publish("orders.quick.d", []byte("x"), nil)
	list := func(args ...string) (all []map[string]any) {
		for line := range strings.Lines(must(t, w.dir, append([]string{"retries", "ls", "--json"}, args...)...)) {
			var m map[string]any
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatal(err)
			}
			all = append(all, m)
		}
		return all
	}
	natstest.Eventually(t, "three are parked and one has a record", func() bool { return len(list()) == 4 && left(t, w.js, "RELAY_RETRY") == 3 })
	if l := list("--route", "quick"); len(l) != 1 || l[0]["where"] != "durable" || l[0]["id"] != "ORDERS/4" || l[0]["attempts"] != 1.0 || l[0]["due"] == nil {
		t.Errorf("quick: %v", l)
	}
	if l := list("--route", "slow", "--limit", "2"); len(l) != 2 || l[0]["where"] != "parked" || !strings.HasPrefix(fmt.Sprint(l[0]["subject"]), "orders.slow.") {
		t.Errorf("slow: %v", l)
	}
	if out := must(t, w.dir, "retries", "ls", "--limit", "2"); !strings.Contains(out, "There are more") || strings.Contains(out, "\u202e") {
		t.Errorf("ls:\n%s", out)
	}
	if out := must(t, w.dir, "retries", "show", "ORDERS/4"); !strings.Contains(out, "in durable quick") || !strings.Contains(out, "orders.quick.d") || !strings.Contains(out, "body, 1 bytes\nx") {
		t.Errorf("show of one in its durable:\n%s", out)
	}
	if out := must(t, w.dir, "retries", "show", "ORDERS/2"); !strings.Contains(out, "parked in the retry stream") || !strings.Contains(out, `"id": "b"`) {
		t.Errorf("show of a parked one:\n%s", out)
	}
	for args, want := range map[string]string{"show ORDERS/99": "does not wait", "now ORDERS/99": "does not wait", "show 17": "names no message", "now": "name the messages", "discard": "name the messages", "ls --limit 0": "must be above 0"} {
		if code, _, stderr := relay(t, w.dir, append([]string{"retries"}, strings.Fields(args)...)...); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit %d, %s", args, code, stderr)
		}
	}
	// One in its durable cannot be reached from here, and that is said.
	if code, out, stderr := relay(t, w.dir, "retries", "now", "ORDERS/4"); code != 0 || out != "0 due now\n" || !strings.Contains(stderr, "only its instances can reach it (relay resume quick") {
		t.Errorf("now of one in its durable: exit %d, %s%s", code, out, stderr)
	}

	// A discarded one is a dead letter, and comes no more.
	if out := must(t, w.dir, "retries", "discard", "ORDERS/1", "--yes"); out != "1 discarded: they are dead letters now\n" {
		t.Errorf("discard: %s", out)
	}
	letters := deadLetters(t, w.js)
	if len(letters) != 1 || letters[0].Reason != dlq.Operator || letters[0].Subject != "orders.slow.a" || string(letters[0].Data) != `{"id":"a"}` || letters[0].Attempts != 1 {
		t.Errorf("dead letters: %+v", letters)
	}
	if out := must(t, w.dir, "replay", "ls"); !strings.Contains(out, "retries discard  done   1") {
		t.Errorf("no record:\n%s", out)
	}
	if n := left(t, w.js, "RELAY_RETRY"); n != 2 {
		t.Errorf("%d are parked, want 2", n)
	}

	// What is hastened is handled at once, and once.
	w.hook.answers(nil)
	before := w.hook.count()
	if out := must(t, w.dir, "retries", "now", "--route", "slow", "--yes"); out != "2 due now\n" {
		t.Errorf("now: %s", out)
	}
	natstest.Eventually(t, "they are handled", func() bool { return left(t, w.js, "RELAY_RETRY") == 0 })
	if n := w.hook.count() - before; n != 2 {
		t.Errorf("the endpoint was called %d times for 2 messages", n)
	}
	if l := list("--route", "slow"); len(l) != 0 {
		t.Errorf("still waiting: %v", l)
	}
}

// With a route that was mistyped nothing waited, and nothing was done, without an error.
func TestRetries_regressionAnUnknownRouteIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, billing)
	for _, args := range [][]string{{"ls"}, {"ls", "--json"}, {"now", "--yes"}, {"discard", "--yes"}} {
		code, out, stderr := relay(t, w.dir, append(append([]string{"retries"}, args...), "--route", "biling")...)
		if code != 2 || out != "" || !strings.Contains(stderr, "--route biling: there is no such route and nothing waits for it, did you mean billing?") {
			t.Errorf("%v: exit %d, %q, %q", args, code, out, stderr)
		}
	}
	if out := must(t, w.dir, "retries", "ls", "--route", "billing"); out != "nothing waits for its retry\n" {
		t.Errorf("a known route: %q", out)
	}
	// Without a configuration and an instance nobody can tell.
	if out := must(t, t.TempDir(), "retries", "ls", "--route", "biling", "--server", w.s.URL()); out != "nothing waits for its retry\n" {
		t.Errorf("without a configuration: %q", out)
	}
}
