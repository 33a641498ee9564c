package program

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/planned"
)

// plannedJSON is what relay plan --json prints.
type plannedJSON struct {
	Instances []string
	Routes    []json.RawMessage
	*planned.Plan
}

const planned1 = `
routes:
  - {name: billing, subjects: [orders.billing.>], start: all, handler: {http: {url: "$HOOK"}}, retry: {policy: constant, min: 1h, max: 1h}, supervisor: {trip_after: 0}}
  - {name: mail, subjects: [orders.mail.>], start: all, handler: {http: {url: "$HOOK"}}}
  - {name: a, subjects: [orders.a.>], durable: shared, start: all, handler: {http: {url: "$HOOK"}}}
  - {name: b, subjects: [orders.b.>], durable: shared, start: all, handler: {http: {url: "$HOOK"}}}
  - {name: stays, subjects: [orders.stays.>], start: all, handler: {http: {url: "$HOOK"}}}
`

// A rename delivered the whole stream again without a word. relay plan says it before, a reload refuses it, and both say how it is avoided.
func TestPlan_regressionWhatIsDeliveredAgainIsSaidBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, planned1)
	w.hook.answers(func(r request) (int, string) {
		if strings.Contains(string(r.body), "bad") {
			return 500, "down"
		}
		return 200, ""
	})
	w.run()
	for i := range 6 {
		w.publish("orders.billing.eu", fmt.Appendf(nil, "bill %d", i), nil)
	}
	for range 2 {
		w.publish("orders.billing.eu", []byte("bad"), nil)
	}
	for range 3 {
		w.publish("orders.c.eu", []byte("nobody's yet"), nil)
	}
	w.publish("orders.b.eu", []byte("b"), nil)
	natstest.Eventually(t, "all are handled or parked", func() bool { return len(w.hook.all()) == 9 && left(t, w.js, "RELAY_RETRY") == 2 })
	durables := func() (names []string) {
		s, err := w.js.Stream(t.Context(), "ORDERS")
		if err != nil {
			t.Fatal(err)
		}
		for name := range s.ConsumerNames(t.Context()).Name() {
			names = append(names, name)
		}
		slices.Sort(names)
		return names
	}
	before := durables()

	server := "nats: {url: \"" + w.s.URL() + "\"}\n"
	if out := must(t, w.dir, "plan"); !strings.HasPrefix(out, "5 routes unchanged\n") || strings.Contains(out, "!") || strings.Contains(out, "stays behind") {
		t.Errorf("the configuration that runs: %s", out)
	}
	next := strings.NewReplacer("name: billing", "name: invoicing",
		"subjects: [orders.mail.>]", "concurrency: 3, subjects: [orders.mail.>]", "[orders.a.>]", "[orders.a.>, orders.c.>]").Replace(planned1)
	w.configure(server + next)
	code, out, said := relay(t, w.dir, "plan")
	for _, line := range []string{
		"route a: begins anew\n", "route b: begins anew, as it shares its durable with a\n", "route billing: removed\n", "route invoicing: added\n", "route mail: changes live\n",
		"1 route unchanged\n",
		"durable invoicing on ORDERS (route invoicing) is created, start: all: it delivers 8 messages that the stream holds\n",
		"! delivered again: up to 8 messages were handled from durable billing, of route billing: none of them comes again with durable: billing, or with start: {seq: 13}. A reload refuses this",
		"durable shared on ORDERS (routes a, b) goes on, and is changed: 0 wait, 0 outstanding\n",
		"  catches up: 3 messages on orders.c.>, which it has passed, go to route a\n",
		"stays behind: durable billing on stream ORDERS of route billing: 0 messages wait, 0 are outstanding; give a route this durable (durable: billing)",
		"stays behind: 2 messages of route billing from stream ORDERS are in the retry stream; ",
	} {
		if !strings.Contains(out, line) {
			t.Errorf("plan does not say %q", line)
		}
	}
	if code != cli.ExitFailed || t.Failed() {
		t.Fatalf("exit %d\n%s%s", code, out, said)
	}
	var p plannedJSON
	if _, out, _ := relay(t, w.dir, "plan", "--json"); json.Unmarshal([]byte(out), &p) != nil || len(p.Instances) != 1 || len(p.Routes) != 6 || len(p.Durables) != 4 {
		t.Errorf("as JSON: %s", out)
	}
	if now := durables(); !slices.Equal(now, before) {
		t.Errorf("plan left durables %q, there were %q", now, before)
	}
	if rep := w.reloaded(cli.ExitFailed); rep.Outcome != "refused" || !strings.Contains(strings.Join(rep.Faults, "\n"), "relay reload --deliver-again, or start: {seq: 1}") {
		t.Errorf("reloaded: %+v", rep)
	}

	// The advice is followed: nothing comes again.
	w.configure(server + strings.Replace(next, "name: invoicing", "name: invoicing, durable: billing", 1))
	if out := must(t, w.dir, "plan"); strings.Contains(out, "again") || !strings.Contains(out, "durable billing on ORDERS (route invoicing) goes on") {
		t.Errorf("with the durable: %s", out)
	}
	w.reloaded(0)
	w.publish("orders.billing.eu", []byte("after"), nil)
	natstest.Eventually(t, "the new one, and what the shared durable had passed", func() bool { return len(w.hook.all()) == 13 })

	// Whoever wants it says so.
	w.configure(server + next)
	w.reloaded(cli.ExitFailed)
	w.reloaded(0, "--deliver-again")
	natstest.Eventually(t, "all come again", func() bool { return len(w.hook.all()) == 13+9 })
}

// A durable of another name, a route that moves to a durable of its own, a service of another name: each delivers again what was handled.
func TestPlan_everyRename(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ from, to, want string }{
		"durable":  {"name: stays", "name: stays, durable: other", "up to 4 messages were handled from durable stays, of route stays"},
		"moves":    {"[orders.b.>], durable: shared", "[orders.b.>]", "up to 4 messages were handled from durable shared, of route b"},
		"service":  {"routes:\n", "service: shop\ndefaults: {durable: next}\nroutes:\n", "up to 4 messages were handled by service relay, from durable stays, from which nobody pulls now"},
		"from seq": {"name: stays, subjects: [orders.stays.>], start: all", "name: stays, durable: other, subjects: [orders.stays.>], start: {seq: 7}", "delivered again: up to 1 messages were"},
		"new":      {"name: stays, subjects: [orders.stays.>], start: all", "name: stays, durable: other, subjects: [orders.stays.>], start: new", "skipped: 4 messages from before its start"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, planned1)
			w.hook.answers(func(request) (int, string) { return 200, "" })
			p := w.run()
			for range 4 {
				w.publish("orders.b.eu", nil, nil)
				w.publish("orders.stays.eu", nil, nil)
			}
			natstest.Eventually(t, "all are handled", func() bool { return len(w.hook.all()) == 8 })
			refused := name != "from seq" && name != "new"
			if name == "service" {
				p.signal(syscall.SIGTERM)
				p.wait()
			}
			w.configure("nats: {url: \"" + w.s.URL() + "\"}\n" + strings.Replace(planned1, c.from, c.to, 1))
			code, out, _ := relay(t, w.dir, "plan")
			if !strings.Contains(out, c.want) || (code == cli.ExitFailed) != refused || strings.Contains(out, "!") != refused {
				t.Errorf("exit %d\n%s", code, out)
			}
		})
	}
}

// What keeps relay from starting is said by plan, for all durables at once.
func TestPlan_refused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
routes:
  - {name: billing, subjects: [orders.billing.>], handler: {http: {url: "$HOOK"}}}
  - {name: edited, subjects: [orders.edited.>], handler: {http: {url: "$HOOK"}}}
  - {name: gone, subjects: [gone.>], stream: GONE, handler: {http: {url: "$HOOK"}}}
  - {name: nowhere, subjects: [nowhere.>], handler: {http: {url: "$HOOK"}}}
`)
	for _, err := range []error{
		func() error {
			_, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
			return err
		}(),
		func() error {
			_, err := w.js.CreateConsumer(t.Context(), "ORDERS", jetstream.ConsumerConfig{Durable: "edited", AckPolicy: jetstream.AckExplicitPolicy})
			return err
		}(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	w.publish("orders.billing.eu", nil, nil)
	code, out, said := relay(t, w.dir, "plan")
	for _, line := range []string{
		"no instance of service relay runs\n", "! start: stream ORDERS already holds 1 messages for orders.billing.>", "! durable edited on stream ORDERS exists with other settings",
		"! stream GONE does not exist", `! route nowhere: no stream holds subject "nowhere.>"`,
	} {
		if !strings.Contains(out, line) {
			t.Errorf("plan does not say %q", line)
		}
	}
	if code != cli.ExitFailed || t.Failed() {
		t.Errorf("exit %d\n%s%s", code, out, said)
	}
	var p plannedJSON
	if _, out, _ := relay(t, w.dir, "plan", "--json"); json.Unmarshal([]byte(out), &p) != nil || len(p.Faults) != 1 || !p.Refused() ||
		slices.ContainsFunc(p.Durables, func(d planned.Durable) bool { return d.Does != planned.Refused }) {
		t.Errorf("as JSON: %s", out)
	}
}

// Streams that relay makes are not there before its first start, and plan said that relay would refuse their routes.
func TestPlan_regressionOfStreamsThatRelayMakes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	write := func(yaml string) {
		yaml = "nats: {url: \"" + w.s.URL() + "\"}\n" + strings.ReplaceAll(yaml, "$HOOK", w.hook.URL)
		if err := os.WriteFile(filepath.Join(w.dir, "relay.yaml"), []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`streams:
  - {name: ORDERS, subjects: [orders.>]}
  - {name: WORK, subjects: [work.>], retention: workqueue}
routes:
  - {name: billing, subjects: [orders.billing.*], handler: {http: {url: "$HOOK"}}}
  - {name: ordered, subjects: [orders.ordered.*], order: key, key: "{3}", partitions: 4, handler: {http: {url: "$HOOK"}}}
  - {name: named, subjects: [work.x], stream: WORK, handler: {http: {url: "$HOOK"}}}
`)
	out := must(t, w.dir, "plan")
	for _, line := range []string{
		"stream ORDERS is created, for orders.>\n", "stream WORK is created, for work.>\n",
		"durable billing on ORDERS (route billing) is created: it delivers 0 messages", "durable named on WORK (route named) is created",
		"route ordered has 4 partitions in stream RELAY_ORDERED_G1, which is created: the copies begin at sequence 1\n",
	} {
		if !strings.Contains(out, line) {
			t.Errorf("plan does not say %q", line)
		}
	}
	if t.Failed() {
		t.Error(out)
	}

	// What keeps relay from starting: a stream that others hold, one with other settings, one that a server cannot copy, two for one route,
	// of which one is there, and one that nobody makes.
	if _, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "THEIRS", Subjects: []string{"orders.*.eu"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "WORK", Subjects: []string{"work.>"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OLD", Subjects: []string{"old.>"}}); err != nil {
		t.Fatal(err)
	}
	write(`streams:
  - {name: ORDERS, subjects: [orders.>]}
  - {name: WORK, subjects: [work.>], retention: workqueue}
  - {name: QUEUE, subjects: [queue.>], retention: workqueue}
routes:
  - {name: ordered, subjects: [queue.ordered.*], order: key, key: "{3}", partitions: 4, handler: {http: {url: "$HOOK"}}}
  - {name: both, subjects: [old.y, queue.y], handler: {http: {url: "$HOOK"}}}
  - {name: nowhere, subjects: [nowhere.>], handler: {http: {url: "$HOOK"}}}
`)
	code, out, said := relay(t, w.dir, "plan")
	for _, line := range []string{
		`! stream ORDERS: stream THEIRS exists, and holds subjects of "orders.>"`,
		"! stream WORK: the stream exists with other settings: retention is Limits, not WorkQueue; change the configuration, or the stream with: nats stream edit WORK",
		"! route both: subjects are on two streams, OLD and QUEUE",
		"! route ordered: partitions: stream QUEUE has retention WorkQueue", `! route nowhere: no stream holds subject "nowhere.>"`,
	} {
		if !strings.Contains(out, line) {
			t.Errorf("plan does not say %q", line)
		}
	}
	if code != cli.ExitFailed || t.Failed() {
		t.Errorf("exit %d\n%s%s", code, out, said)
	}
}
