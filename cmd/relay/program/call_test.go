package program

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/internal/natstest"
)

// relay call prints what the handler returned, or says why there is nothing, and loses its interest with Ctrl-C.
func TestCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
routes:
  - name: quote
    subjects: [orders.*.quote]
    handler: {exec: {command: [sh, -c, 'echo "for $(cat)"']}}
    caller: {reply: [_INBOX.>], interest: [_INBOX.>]}
  - name: bad
    subjects: [orders.*.bad]
    handler: {exec: {command: [sh, -c, 'echo it is bad >&2; exit 65']}}
    caller: {reply: [_INBOX.>]}
  - name: slow
    subjects: [orders.*.slow]
    handler: {exec: {command: [sh, -c, 'sleep 60']}}
    caller: {reply: [_INBOX.>], interest: [_INBOX.>]}
    interest: {every: 100ms}
`)
	service := w.run()
	if got := must(t, w.dir, "call", "orders.eu.quote", "you"); got != "for you\n" {
		t.Errorf("got %q", got)
	}
	var r struct {
		Outcome, ID, Error string
		Attempts           int
		Text               *string `json:"result_text"`
	}
	if err := json.Unmarshal([]byte(must(t, w.dir, "call", "orders.eu.quote", "you", "--json")), &r); err != nil {
		t.Fatal(err)
	}
	if r.Outcome != "done" || r.Attempts != 1 || r.Text == nil || *r.Text != "for you\n" || !strings.HasPrefix(r.ID, "ORDERS~quote~") {
		t.Errorf("%+v", r)
	}
	code, _, stderr := relay(t, w.dir, "call", "orders.eu.bad", "x")
	if code != cli.ExitFailed || !strings.Contains(stderr, "dead after 1 attempt: ") || !strings.Contains(stderr, "it is bad") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	code, stdout, stderr := relay(t, w.dir, "call", "orders.eu.bad", "x", "--json")
	if json.Unmarshal([]byte(stdout), &r) != nil || code != cli.ExitFailed || r.Outcome != "dead" || !strings.Contains(r.Error, "it is bad") || stderr != "" {
		t.Errorf("exit %d: %s%s", code, stdout, stderr)
	}
	code, _, stderr = relay(t, w.dir, "call", "orders.*.bad", "x")
	if code != cli.ExitUsage {
		t.Errorf("exit %d: %s", code, stderr)
	}
	for _, command := range []string{"call", "pub"} {
		if code, _, stderr := relay(t, w.dir, command, "orders.eu.bad", "x", "--timeout", "0"); code != cli.ExitUsage || !strings.Contains(stderr, "--timeout must be above 0") {
			t.Errorf("%s: exit %d: %s", command, code, stderr)
		}
	}

	slow := spawn(t, w.dir, nil, "call", "orders.eu.slow", "x")
	natstest.Eventually(t, "the slow one runs", func() bool {
		_, metrics := service.get("/metrics")
		return strings.Contains(metrics, `relay_handlers_running{route="slow"} 1`)
	})
	slow.signal(syscall.SIGINT)
	if code := slow.wait(); code != cli.ExitFailed || !strings.Contains(slow.err.String(), "not wanted any more") {
		t.Errorf("exit %d: %s", code, slow.err.String())
	}
	natstest.Eventually(t, "the slow one is cancelled", func() bool {
		_, metrics := service.get("/metrics")
		return strings.Contains(metrics, `relay_forgotten_total{route="slow"} 1`) && strings.Contains(metrics, `relay_handlers_running{route="slow"} 0`)
	})
	if got := must(t, w.dir, "status"); !strings.Contains(got, "callers of slow: ") || !strings.Contains(got, "1 forgotten") {
		t.Errorf("status:\n%s", got)
	}
}
