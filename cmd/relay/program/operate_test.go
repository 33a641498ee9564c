package program

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/internal/natstest"
)

// Status, pause and resume as somebody uses them at three in the morning.
func TestOperate_statusPauseResume(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
routes:
  - name: billing
    subjects: [orders.>]
    handler: {http: {url: "$HOOK"}}
    retry: {max_attempts: 5, policy: constant, min: 1h, max: 1h}
    supervisor: {trip_after: 0}
`)
	status := func(want ...string) {
		t.Helper()
		var out string
		natstest.Eventually(t, fmt.Sprintf("status says %q", want), func() bool {
			out = must(t, w.dir, "status")
			for _, text := range want {
				if !strings.Contains(out, text) {
					return false
				}
			}
			return true
		})
	}
	if code, _, said := relay(t, w.dir, "status"); code != cli.ExitFailed || !strings.Contains(said, "is relay run running") {
		t.Errorf("without an instance: exit %d, %s", code, said)
	}
	w.hook.answers(func(request) (int, string) { return 500, "down" })
	p := w.run()
	status("  ready, up ", "billing  flowing  0 ")
	for i := range 3 {
		w.publish(fmt.Sprintf("orders.%d", i), []byte("{}"), nil)
	}
	natstest.Eventually(t, "they are parked", func() bool {
		st, err := w.js.Stream(t.Context(), "RELAY_RETRY")
		return err == nil && st.CachedInfo().State.Msgs == 3
	})
	// An instance looks when it starts, and every 15 s.
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Fatalf("exit %d", code)
	}
	w.run()
	status("3 messages of the service wait in the retry stream")

	if out := must(t, w.dir, "pause", "billing", "--why", "database migration"); out != "route billing is paused on 1 running instance\n" {
		t.Errorf("pause says %q", out)
	}
	status("billing  paused", "database migration")
	var list []consumer.Status
	if err := json.Unmarshal([]byte(must(t, w.dir, "status", "--json")), &list); err != nil || len(list) != 1 || list[0].Parked != 3 || list[0].Routes[0].State != "paused" {
		t.Errorf("status as JSON: %v, %+v", err, list)
	}
	handled := w.hook.count()
	w.publish("orders.late", []byte("{}"), nil)
	if out := must(t, w.dir, "pause", "billing", "orders.odd"); out != "key orders.odd of route billing is paused on 1 running instance\nnote: no instance has messages of this key now; the order applies when they come\n" {
		t.Errorf("pause says %q", out)
	}
	if out := must(t, w.dir, "__complete", "resume", "billing", ""); !strings.Contains(out, "orders.odd\tsuspended: paused by an operator") {
		t.Errorf("a shell completes the keys that wait as %q", out)
	}
	status("1 suspended", "orders.odd")
	if code, _, said := relay(t, w.dir, "pause", "biling"); code != cli.ExitUsage || !strings.Contains(said, "there is no route biling, did you mean billing?") {
		t.Errorf("a misspelt route: exit %d, %s", code, said)
	}
	if code, _, said := relay(t, w.dir, "pause", "billing", "nosuchkey"); code != cli.ExitUsage || !strings.Contains(said, "its subjects are orders.>") {
		t.Errorf("a key that cannot be: exit %d, %s", code, said)
	}
	if n := w.hook.count(); n != handled {
		t.Errorf("%d messages were handled while the route was paused", n-handled)
	}
	out := must(t, w.dir, "resume", "billing", "--as", "eve", "--why", "migrated")
	if !strings.HasPrefix(out, "route billing is running on 1 running instance\n") || !strings.Contains(out, "key orders.odd was paused by ") {
		t.Errorf("resume says %q", out)
	}
	natstest.Eventually(t, "what waited is handled", func() bool { return w.hook.count() == handled+1 })
	status("billing  flowing")
	if out := must(t, w.dir, "status", "billing", "--keys", "0"); !strings.Contains(out, "durable       billing on stream ORDERS") {
		t.Errorf("status of a route says %q", out)
	}
}

// Status named relay resume for a durable that is paused on the server, which does nothing about it.
func TestStatus_regressionAPauseOnTheServerIsEndedByNATS(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
routes:
  - name: billing
    subjects: [orders.>]
    handler: {http: {url: "$HOOK"}}
`)
	w.run()
	natstest.Eventually(t, "it flows", func() bool { return strings.Contains(must(t, w.dir, "status"), "billing  flowing") })
	if _, err := w.js.PauseConsumer(t.Context(), "ORDERS", "billing", time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	var said string
	natstest.Eventually(t, "the pause is said", func() bool {
		said = must(t, w.dir, "status")
		return strings.Contains(said, "billing  paused")
	})
	if strings.Contains(said, "relay resume") || !regexp.MustCompile(`messages come again in 1?[0-9hm]+.*, or now with: nats consumer resume ORDERS billing\n`).MatchString(said) {
		t.Error(said)
	}
	w.publish("orders.eu", []byte("{}"), nil)
	must(t, w.dir, "resume", "billing")                                              // that of relay has no effect on it
	if _, err := w.js.ResumeConsumer(t.Context(), "ORDERS", "billing"); err != nil { // what the command does
		t.Fatal(err)
	}
	natstest.Eventually(t, "the message is handled", func() bool { return w.hook.count() == 1 })
	natstest.Eventually(t, "it flows again", func() bool { return strings.Contains(must(t, w.dir, "status"), "billing  flowing") })
}
