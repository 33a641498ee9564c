package program

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/natstest"
)

// What came is through or waits; an ack of somebody else is found, and is the exit code.
func TestAudit_findsAStrangersAck(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
routes:
  - name: billing
    subjects: [orders.>]
    start: all
    handler: {http: {url: "$HOOK"}}
    retry: {max_attempts: 5, policy: constant, min: 1m, max: 1m}
    supervisor: {trip_after: 0}
`)
	if code, _, said := relay(t, w.dir, "audit"); code != cli.ExitFailed || !strings.Contains(said, "there is no ledger yet") {
		t.Errorf("before the first start: exit %d, %s", code, said)
	}
	w.hook.answers(func(r request) (int, string) {
		if r.subject == "orders.eu" {
			return 200, ""
		}
		return 500, "down"
	})
	p := w.run()
	for _, subject := range []string{"orders.eu", "orders.eu", "orders.us"} {
		w.publish(subject, []byte("{}"), nil)
	}
	natstest.Eventually(t, "one waits", func() bool {
		c, err := w.js.Consumer(t.Context(), "ORDERS", "billing")
		return err == nil && c.CachedInfo().NumPending == 0 && c.CachedInfo().NumAckPending == 1
	})
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Fatalf("exit %d", code)
	}
	var list []audit.Balance
	if err := json.Unmarshal([]byte(must(t, w.dir, "audit", "billing", "--json")), &list); err != nil || len(list) != 1 ||
		list[0].Verdict != audit.Balanced || list[0].Total.Done != 2 || list[0].Outstanding != 1 || !list[0].Whole {
		t.Fatalf("%v, %+v", err, list)
	}
	t.Log(must(t, w.dir, "audit"))
	forged := fmt.Sprintf("$JS.ACK.ORDERS.billing.1.3.3.%d.0", time.Now().UnixNano())
	if _, err := w.nc.Request(forged, []byte("+ACK"), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	code, out, said := relay(t, w.dir, "audit")
	if code != cli.ExitFailed || !strings.Contains(out, "unexplained") || !strings.Contains(out, "no outcome was counted for 1 messages") || !strings.Contains(said, "billing (unexplained)") {
		t.Errorf("exit %d, %s, %s", code, out, said)
	}
	if code, _, said := relay(t, w.dir, "audit", "nobody"); code != cli.ExitFailed || !strings.Contains(said, "no ledger has a route nobody") {
		t.Errorf("exit %d, %s", code, said)
	}
}

// Dead letters that somebody removed with a limit of the stream were "dead", and the ledger balanced; what operators take out is not lost.
func TestAudit_findsDeadLettersThatSomebodyRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
routes:
  - name: billing
    subjects: [orders.>]
    start: all
    handler: {http: {url: "$HOOK"}}
    retry: {max_attempts: 1}
    supervisor: {trip_after: 0}
`)
	w.hook.answers(func(request) (int, string) { return 500, "down" })
	p := w.run()
	for range 20 {
		w.publish("orders.us", []byte("{}"), nil)
	}
	dead := func() jetstream.StreamState {
		s, err := w.js.Stream(t.Context(), "RELAY_DLQ")
		if err != nil {
			return jetstream.StreamState{}
		}
		return s.CachedInfo().State
	}
	natstest.Eventually(t, "all are dead", func() bool { return dead().Msgs == 20 })
	must(t, w.dir, "dlq", "discard", "1", "2", "3", "--yes")
	natstest.Eventually(t, "it balances", func() bool { code, _, _ := relay(t, w.dir, "audit"); return code == 0 })
	s, err := w.js.Stream(t.Context(), "RELAY_DLQ")
	if err != nil {
		t.Fatal(err)
	}
	c := s.CachedInfo().Config
	c.MaxMsgs, c.Discard = 5, jetstream.DiscardOld
	if _, err := w.js.UpdateStream(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	natstest.Eventually(t, "status says so", func() bool {
		_, out, _ := relay(t, w.dir, "status")
		return strings.Contains(out, "max_msgs was 5, and is unlimited again") && strings.Contains(out, "12 dead letters were lost")
	})
	p.signal(syscall.SIGTERM)
	p.wait()
	for range 2 { // whether an instance runs or not
		code, out, said := relay(t, w.dir, "audit")
		if code != cli.ExitFailed || !strings.Contains(out, "5 stored, of all durables; 12 lost since") || !strings.Contains(out, "\nlost ") || !strings.Contains(said, "billing (lost)") {
			t.Errorf("exit %d, %s, %s", code, out, said)
		}
		t.Log(out)
		w.run()
	}
	// Somebody knows of them now.
	if code, _, said := relay(t, w.dir, "audit", "--accept-lost"); code != cli.ExitUsage || !strings.Contains(said, "12 were lost since") {
		t.Errorf("asked without a terminal: exit %d, %s", code, said)
	}
	if out := must(t, w.dir, "audit", "--accept-lost", "--yes"); !strings.HasPrefix(out, "12 dead letters were lost since") {
		t.Errorf("accepted: %s", out)
	}
	if out := must(t, w.dir, "audit"); !strings.Contains(out, "5 stored, of all durables; 0 lost since") || !strings.Contains(out, "balanced") {
		t.Errorf("then: %s", out)
	}
	if out := must(t, w.dir, "audit", "--accept-lost"); out != "no dead letter is lost\n" {
		t.Errorf("again: %s", out)
	}
}
