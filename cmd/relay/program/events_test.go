package program

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/internal/natstest"
)

// The alert of docs/events.md: a route over relay's own events posts to a chat. relay events shows what happened, and who did what.
func TestEvents_anAlertAndTheCommand(t *testing.T) {
	t.Parallel()
	chat := newEndpoint(t)
	w := newWorld(t, `
events: {store: true}
routes:
  - name: billing
    subjects: [orders.>]
    handler: {http: {url: "$HOOK"}}
    retry: {max_attempts: 1}
  - name: alert
    subjects: [relay.event.dead_letter.*, relay.event.route.*.*]
    start: all
    handler: {http: {url: "`+chat.URL+`"}}
`)
	if code, _, said := relay(t, w.dir, "events"); code != cli.ExitFailed || !strings.Contains(said, "set events.store: true, or use --follow") {
		t.Errorf("before there are any: exit %d, %s", code, said)
	}
	w.hook.answers(func(request) (int, string) { return 500, "no \x1b[31msuch customer" })
	w.run()
	follow := spawn(t, w.dir, nil, "events", "--follow", "--kind", "dead_letter", "--route", "billing", "--json")
	natstest.Eventually(t, "it follows", func() bool { return strings.Contains(follow.err.String(), "waiting for events") })
	w.publish("orders.1", []byte("{}"), nil)
	natstest.Eventually(t, "the chat hears", func() bool { return chat.count() > 0 })
	var posted struct {
		Type string
		Data struct{ Route, Text string }
	}
	if err := json.Unmarshal([]byte(chat.all()[0].body), &posted); err != nil || posted.Type != "relay.dead_letter" || posted.Data.Route != "billing" ||
		!strings.Contains(posted.Data.Text, "such customer") {
		t.Errorf("the chat heard %s: %v", chat.all()[0].body, err)
	}
	natstest.Eventually(t, "who follows hears", func() bool { return strings.Contains(follow.out.String(), `"type":"relay.dead_letter"`) })
	follow.signal(syscall.SIGINT)
	if code := follow.wait(); code != 0 {
		t.Errorf("interrupted: exit %d", code)
	}
	must(t, w.dir, "pause", "billing", "--why", "migration", "--as", "eve")
	natstest.Eventually(t, "both are stored", func() bool {
		out := must(t, w.dir, "events", "--since", "1h")
		return strings.Contains(out, "dead_letter") && strings.Contains(out, "route billing is paused (by eve)") && !strings.Contains(out, "\x1b")
	})
	if out := must(t, w.dir, "events", "--route", "shipping"); out != "no events\n" {
		t.Errorf("of another route: %s", out)
	}
	for _, args := range []string{"--kind dead", "--limit 0", "--since yesterday", "--follow --since 1h"} {
		if code, _, said := relay(t, w.dir, append([]string{"events"}, strings.Fields(args)...)...); code != cli.ExitUsage {
			t.Errorf("%s: exit %d, %s", args, code, said)
		}
	}
}
