package program

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/console"
	"github.com/relaymq/relay/internal/natstest"
)

// The life of messages: one that is through, one that failed and waits, one that is dead and was dead before, and one with hostile bytes.
func TestTrace_livesOfMessages(t *testing.T) {
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
	w.hook.answers(func(r request) (int, string) {
		switch r.subject {
		case "orders.ok":
			return 200, ""
		case "orders.dead":
			return 422, "no such \x1b[31morder"
		}
		return 500, "down"
	})
	w.run()
	ok := w.publish("orders.ok", []byte("{}"), nil)
	dead := w.publish("orders.dead", []byte("{}"), nil)
	waits := w.publish("orders.us", []byte("{}"), nil)
	trace := func(what any) (l console.Life) {
		t.Helper()
		if err := json.Unmarshal([]byte(must(t, w.dir, "trace", fmt.Sprint(what), "--json")), &l); err != nil {
			t.Fatal(err)
		}
		return l
	}
	where := func(seq uint64, place string) (found console.Life) {
		t.Helper()
		natstest.Eventually(t, place, func() bool {
			found = trace(fmt.Sprintf("ORDERS/%d", seq))
			return len(found.Places) == 1 && found.Places[0].Where == place
		})
		return found
	}
	where(ok, "through")
	if l := where(waits, "durable"); !strings.Contains(l.Places[0].Text, "after 1 attempt") || l.Places[0].Due == nil || len(l.Past) != 1 || !strings.Contains(l.Past[0].Error, "down") {
		t.Errorf("one that waits: %+v", l)
	}
	where(dead, "dead")
	must(t, w.dir, "dlq", "replay", "--yes", "--wait")
	var again console.Life
	natstest.Eventually(t, "it is dead again, with its past", func() bool {
		again = where(dead, "dead")
		return len(again.Past) == 3 && strings.Contains(again.Past[0].What, "replayed since")
	})
	if again.Places[0].Route != "billing" || again.Published == nil {
		t.Errorf("one that was replayed: %+v", again)
	}
	out := must(t, w.dir, "trace", fmt.Sprintf("ORDERS~billing~%d~%s", dead, base36(*again.Published)))
	if strings.Contains(out, "\x1b") || !strings.Contains(out, "is dead letter") || !strings.Contains(out, "relay dlq show") {
		t.Errorf("printed %q", out)
	}
	t.Log(out)
	for arg, want := range map[string]string{"ORDERS/99": "has no message 99 yet", "NONE/1": "there is no stream NONE", "ORDERS": "names no message"} {
		if code, _, said := relay(t, w.dir, "trace", arg); code == 0 || !strings.Contains(said, want) {
			t.Errorf("%s: exit %d, %s", arg, code, said)
		}
	}
}

// With an archive trace says what became of messages that are through, also when their stream has them no more, and of a dead letter that
// was discarded. What is stored of a dead letter is not told twice.
func TestTrace_archive(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
archive: {outcomes: true, results: true}
routes:
  - name: billing
    subjects: [orders.>]
    start: all
    handler: {http: {url: "$HOOK"}}
`)
	w.hook.answers(func(r request) (int, string) {
		if r.subject == "orders.dead" {
			return 422, "no such order"
		}
		return 200, "invoice \x1b[31m7"
	})
	w.run()
	ok := w.publish("orders.ok", []byte("{}"), nil)
	dead := w.publish("orders.dead", []byte("{}"), nil)
	trace := func(what string, n int) (l console.Life) {
		t.Helper()
		natstest.Eventually(t, fmt.Sprint(what, ": ", n, " happenings"), func() bool {
			l = console.Life{}
			if err := json.Unmarshal([]byte(must(t, w.dir, "trace", what, "--json")), &l); err != nil {
				t.Fatal(err)
			}
			return len(l.Past) == n
		})
		return l
	}
	seq := fmt.Sprintf("ORDERS/%d", ok)
	l := trace(seq, 1)
	if h := l.Past[0]; !strings.Contains(h.What, "was done by route billing on instance ") || !strings.HasSuffix(h.What, " after 1 attempt") || h.Result != "invoice \x1b[31m7" || h.Time == nil {
		t.Errorf("%+v", h)
	}
	if p := l.Places[0]; p.Where != "through" || p.Next != "nothing: it was done" {
		t.Errorf("%+v", p)
	}
	id := fmt.Sprintf("ORDERS~billing~%d~%s", ok, base36(*l.Published))
	trace(id, 1)
	trace(fmt.Sprintf("ORDERS~others~%d~%s", ok, base36(*l.Published)), 0)
	out := must(t, w.dir, "trace", seq)
	if strings.Contains(out, "\x1b") || !strings.Contains(out, "its result: invoice") {
		t.Errorf("printed %q", out)
	}
	t.Log(out)
	orders, err := w.js.Stream(t.Context(), "ORDERS")
	if err != nil {
		t.Fatal(err)
	}
	if err := orders.DeleteMsg(t.Context(), ok); err != nil {
		t.Fatal(err)
	}
	if l := trace(seq, 1); l.Stored || !strings.Contains(l.Past[0].What, ", published 2") {
		t.Errorf("%+v", l)
	}
	trace(id, 1)

	of := fmt.Sprintf("ORDERS/%d", dead)
	l = trace(of, 2)
	if l.Places[0].Where != "dead" {
		t.Errorf("%+v", l)
	}
	must(t, w.dir, "dlq", "discard", "--route", "billing", "--yes")
	l = trace(of, 1)
	if h := l.Past[0]; !strings.Contains(h.What, "was dead-lettered (dead) by route billing") || l.Places[0].Next != "nothing: it was dead-lettered (dead), and is not a dead letter any more" {
		t.Errorf("%+v", l)
	}
}

// A message of a route with partitions is found by its stream and sequence, and by its id, though its time is that of its copy.
func TestTrace_partitions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
archive: {outcomes: true}
routes:
  - name: billing
    subjects: [orders.*.paid]
    key: "{2}"
    order: key
    partitions: 4
    start: all
    retry: {min: 10m, max: 10m, park_after: 1h}
    handler: {http: {url: "$HOOK"}}
`)
	ids := make(chan string, 100)
	w.hook.answers(func(r request) (int, string) {
		ids <- r.subject + " " + r.id
		switch r.subject {
		case "orders.dead.paid":
			return 422, "no such order"
		case "orders.slow.paid":
			return 500, "later"
		}
		return 200, ""
	})
	w.run()
	sequences, lives := map[string]uint64{}, map[string]string{"ok": "through", "dead": "dead", "slow": "durable"}
	for range 20 { // what is around them
		w.publish("orders.ok.paid", []byte("{}"), nil)
	}
	for _, key := range []string{"dead", "slow", "ok"} {
		sequences[key] = w.publish("orders."+key+".paid", []byte("{}"), nil)
	}
	check := func(what, key string) {
		t.Helper()
		var l console.Life
		natstest.Eventually(t, what+" is known", func() bool {
			l = console.Life{}
			if err := json.Unmarshal([]byte(must(t, w.dir, "trace", what, "--json")), &l); err != nil {
				t.Fatal(err)
			}
			return len(l.Past) > 0 && len(l.Places) == 1 && l.Places[0].Where == lives[key]
		})
		if p := l.Places[0]; p.Route != "billing" || l.Subject != "orders."+key+".paid" || !l.Stored || l.Sequence != sequences[key] {
			t.Errorf("%s: %+v, %+v", what, l, p)
		}
	}
	for key, sequence := range sequences {
		check(fmt.Sprintf("ORDERS/%d", sequence), key)
	}
	for len(ids) > 0 {
		subject, id, _ := strings.Cut(<-ids, " ")
		if key := strings.Split(subject, ".")[1]; strings.Contains(id, fmt.Sprintf("~%d~", sequences[key])) {
			check(id, key)
		}
	}
}

// A message outlives its stream in the archive and in the dead letters: trace answers from there when the stream is gone, and when it was made anew
// and has not come as far.
func TestTrace_theStreamIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
archive: {outcomes: true}
routes:
  - name: billing
    subjects: [orders.>]
    start: all
    handler: {http: {url: "$HOOK"}}
    retry: {max_attempts: 1}
    supervisor: {trip_after: 0, route_trip: {of: 0}}
`)
	w.hook.answers(func(r request) (int, string) {
		if r.subject == "orders.dead" {
			return 422, "no such order"
		}
		return 200, ""
	})
	p := w.run()
	ok := fmt.Sprintf("ORDERS/%d", w.publish("orders.ok", []byte("{}"), nil))
	dead := fmt.Sprintf("ORDERS/%d", w.publish("orders.dead", []byte("{}"), nil))
	natstest.Eventually(t, "both are through", func() bool {
		return strings.Contains(must(t, w.dir, "trace", ok), "was done by") && len(deadLetters(t, w.js)) == 1
	})
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Fatalf("exit %d", code)
	}
	for _, step := range []struct {
		what, stored, gone, lost string
		do                       func() error
	}{
		{"gone", "its stream does not exist any more", "does not exist any more", "there is no stream ORDERS, and nothing is stored of message 99", func() error { return w.js.DeleteStream(t.Context(), "ORDERS") }},
		{"made anew", "its stream was created again since", "was created again", "stream ORDERS has no message 99 yet: its last one is 0", func() error {
			_, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
			return err
		}},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if out := must(t, w.dir, "trace", ok); !strings.Contains(out, step.stored) || !strings.Contains(out, "was done by route billing on instance ") || !strings.Contains(out, "stream ORDERS "+step.gone) {
			t.Errorf("%s, one that was done: %s", step.what, out)
		}
		if out := must(t, w.dir, "trace", dead); !strings.Contains(out, step.stored) || !strings.Contains(out, "orders.dead") || !strings.Contains(out, "no such order") || !strings.Contains(out, "is dead letter 1") {
			t.Errorf("%s, a dead letter: %s", step.what, out)
		}
		if code, _, said := relay(t, w.dir, "trace", "ORDERS/99"); code != cli.ExitFailed || !strings.Contains(said, step.lost) {
			t.Errorf("%s, one that never was: exit %d, %s", step.what, code, said)
		}
	}
}

func base36(at time.Time) string { return strconv.FormatInt(at.UnixNano(), 36) }
