package program

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"

	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/schedule"
)

const scheduledRoutes = `
routes: [{name: billing, subjects: [orders.>], handler: {http: {url: $HOOK}}}]
schedules:
  - {name: yearly, cron: "0 0 1 1 *", tz: Europe/Vienna, subject: orders.yearly, body: go}
  - {name: secondly, every: 1s, subject: orders.secondly}
`

// All of schedules and delayed messages, as operators and publishers use them, under a server that denies everything that relay
// nats permissions does not print.
func TestSchedule_commands(t *testing.T) {
	t.Parallel()
	d := newDenying(t, scheduledRoutes)
	// Before anything is written.
	shown := d.by("operator", "schedule", "show", "yearly", "-n", "2")
	if !strings.Contains(shown, "not begun") || strings.Count(shown, "-01-01 00:00:00 CET") != 2 {
		t.Errorf("show:\n%s", shown)
	}
	p := d.run()
	p.ready()
	d.by("publisher", "pub", "orders.taken-back", "x", "--in", "10h", "--id", "taken-back")
	d.by("publisher", "pub", "orders.soon", "x", "--in", "100ms", "--id", "soon")
	handled := func(subject string) (n int) {
		for _, r := range d.hook.all() {
			if r.subject == subject {
				n++
			}
		}
		return n
	}
	natstest.Eventually(t, "the delayed message and a run are handled", func() bool { return handled("orders.soon") == 1 && handled("orders.secondly") > 0 })

	d.by("operator", "schedule", "pause", "secondly", "--why", "a test", "--as", "ann")
	d.by("operator", "schedule", "run", "yearly")
	natstest.Eventually(t, "the run that was asked for is handled", func() bool { return handled("orders.yearly") == 1 })
	var list struct {
		Schedules []struct {
			Name, State string
			Next        []string
			Record      schedule.Record
		}
		Delayed []schedule.Delayed
	}
	if err := json.Unmarshal([]byte(d.by("operator", "schedule", "ls", "--json")), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Schedules) != 2 || len(list.Schedules[0].Next) != 1 || list.Schedules[1].State != "paused" || list.Schedules[1].Record.Paused.By != "ann" ||
		len(list.Delayed) != 1 || list.Delayed[0].ID != "taken-back" || list.Delayed[0].Subject != "orders.taken-back" {
		t.Errorf("%+v", list)
	}
	d.by("operator", "schedule", "rm", "taken-back")
	if text := d.by("operator", "schedule", "ls"); strings.Contains(text, "taken-back") || !strings.Contains(text, "paused") {
		t.Errorf("ls:\n%s", text)
	}
	before := handled("orders.secondly")
	d.by("operator", "schedule", "resume", "secondly")
	natstest.Eventually(t, "it goes on", func() bool { return handled("orders.secondly") > before })
	if _, metrics := p.get("/metrics"); !strings.Contains(metrics, `relay_schedule_runs_total{result="published",schedule="~"} 1`) {
		t.Errorf("metrics:\n%s", metrics)
	}
	if list := d.log.all(t); len(list) > 0 {
		t.Errorf("the server refused:\n%s", strings.Join(list, "\n"))
	}
	for _, c := range []struct{ say, want string }{
		{"schedule pause yearli", "did you mean yearly?"},
		{"schedule rm yearly", "is in the configuration"},
		{"schedule rm nobody", "no delayed message and no schedule has the name nobody"},
		{"pub orders.x y --in 1s --at 2030-01-01T00:00:00Z", "--in or --at"},
		{"pub orders.x y --at tomorrow", "must be a time with its zone"},
		{"pub relay.due.x y --in 1s", "relay's own"},
		{"pub orders.x y --id a", "--id is for --in and --at"},
	} {
		if code, _, said := relay(t, d.dir, strings.Fields(c.say)...); code == 0 || !strings.Contains(said, c.want) {
			t.Errorf("relay %s: exit %d, %s", c.say, code, said)
		}
	}
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit %d, want 0", code)
	}
}

// relay says to remove a record that cannot be read; that works though the schedule is in the configuration, and the schedule goes on.
func TestSchedule_regressionTheAdviceForAnUnreadableRecordIsTaken(t *testing.T) {
	t.Parallel()
	d := newDenying(t, scheduledRoutes)
	p := d.run()
	p.ready()
	natstest.Eventually(t, "a run is handled", func() bool { return len(d.hook.all()) > 0 })
	kv, err := d.s.JetStream(t).KeyValue(t.Context(), schedule.Bucket("relay"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Put(t.Context(), "secondly", []byte("{")); err != nil {
		t.Fatal(err)
	}
	if _, said, _ := relay(t, d.dir, "schedule", "ls"); !strings.Contains(said, "relay schedule rm secondly") {
		t.Errorf("ls says:\n%s", said)
	}
	natstest.Eventually(t, "the log says what to do", func() bool { return strings.Contains(p.err.String(), "relay schedule rm secondly") })
	d.by("operator", "schedule", "rm", "secondly")
	before := len(d.hook.all())
	natstest.Eventually(t, "it goes on", func() bool { return len(d.hook.all()) > before })
}
