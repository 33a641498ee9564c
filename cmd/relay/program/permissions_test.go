package program

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/relaymq/relay/cmd/relay/internal/access"
	"github.com/relaymq/relay/cmd/relay/internal/console"
	"github.com/relaymq/relay/internal/natstest"
)

// permittedRoutes use all that relay does to a server: parking, dead letters, stored events, the archive, forwarding, a prefix of its own.
const permittedRoutes = `
events: {store: true}
archive: {outcomes: true}
limits: {gateway: {concurrency: 20, scope: service}}
routes:
  - name: billing
    subjects: [orders.billing.>]
    limits: [gateway]
    handler: {http: {url: "$HOOK"}}
    retry: {max_attempts: 2, policy: constant, min: 50ms}
  - name: slow
    subjects: [orders.slow.>]
    handler: {http: {url: "$HOOK"}}
    dead_letter: {prefix: broken}
    retry: {max_attempts: 5, policy: constant, min: 2h, max: 2h, park_after: 1m}
    supervisor: {trip_after: 0, route_trip: {of: 0}}
  - name: quick
    subjects: [orders.quick.>]
    instances: one
    handler: {http: {url: "$HOOK"}}
  - name: call
    subjects: [orders.call.>]
    handler: {http: {url: "$HOOK"}}
    caller: {reply: [_INBOX.>], interest: [_INBOX.>]}
  - name: copy
    subjects: [orders.copy.*]
    handler: {forward: {subject: "copies.{3}"}}
`

// denying is a world whose server denies everything that relay nats permissions does not print.
type denying struct {
	*world
	log violations
	ran map[string]bool // commands that a role was permitted
}

// violations are what the server refused, by its log.
type violations struct{ file string }

func (v violations) all(t *testing.T) (list []string) {
	t.Helper()
	text, err := os.ReadFile(v.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "Violation") {
			list = append(list, strings.TrimSuffix(line, "\n"))
		}
	}
	return list
}

// serverUsers are for the configuration of the server: one user for each role, whose password is its name, with what relay prints. Operators may publish to more.
func serverUsers(t *testing.T, dir string, more []string) string {
	t.Helper()
	conf := "no_auth_user: test\nauthorization: {users: [\n  {user: test, password: test}\n"
	for _, role := range access.Roles() {
		text := must(t, dir, "nats", "permissions", "--for", role)
		if role == access.Operator && len(more) > 0 {
			const allow = "publish: {allow: [\n"
			if !strings.Contains(text, allow) {
				t.Fatalf("no %q in\n%s", allow, text)
			}
			text = strings.Replace(text, allow, allow+`"`+strings.Join(more, `", "`)+"\"\n", 1)
		}
		conf += fmt.Sprintf("{user: %s, password: %[1]s\n%s}\n", role, text)
	}
	return conf + "]}\n"
}

// newDenying has operators publish to more subjects than theirs.
func newDenying(t *testing.T, routes string, more ...string) *denying {
	t.Helper()
	const inbox = "inbox_prefix: _INBOX_relay"
	dir := t.TempDir()
	config := "streams: [{name: ORDERS, subjects: [orders.>]}, {name: COPIES, subjects: [copies.>]}]\nnats: {url: nats://127.0.0.1:1, " + inbox + "}\n" +
		strings.ReplaceAll(routes, "$HOOK", "http://127.0.0.1:1")
	if err := os.WriteFile(filepath.Join(dir, "relay.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	d := &denying{log: violations{filepath.Join(dir, "server.log")}, ran: map[string]bool{}}
	d.world = newWorld(t, "", natstest.WithConfig(serverUsers(t, dir, more)+fmt.Sprintf("log_file: %q\n", d.log.file)))
	text := "admin: {listen: 127.0.0.1:0}\nstreams: [{name: ORDERS, subjects: [orders.>]}, {name: COPIES, subjects: [copies.>]}]\n" +
		fmt.Sprintf("nats: {url: %q, user: service, password: service, %s}\n", d.s.URL(), inbox) + strings.ReplaceAll(routes, "$HOOK", d.hook.URL)
	if err := os.WriteFile(filepath.Join(d.dir, "relay.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return d
}

// as are flags by which a command is run as a user of that role.
func as(role string) []string {
	flags := []string{"--set", "nats.user=" + role, "--set", "nats.password=" + role}
	if role == access.Publisher {
		flags = append(flags, "--set", "nats.inbox_prefix=_INBOX")
	}
	return flags
}

func (d *denying) by(role string, args ...string) string {
	d.t.Helper()
	if c, _, err := newRoot().Find(args); err == nil {
		d.ran[c.CommandPath()] = true
	}
	return must(d.t, d.dir, append(args, as(role)...)...)
}

// withoutServer are the commands that ask nothing of a server, and run, which is d.run.
var withoutServer = []string{
	"relay run", "relay lint", "relay explain", "relay version", "relay nats permissions", "relay webhook keygen", "relay webhook verify", "relay webhook listen",
}

// untried are the commands of the program that no role was tried with.
func (d *denying) untried() (list []string) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if !c.HasSubCommands() && !d.ran[c.CommandPath()] && !slices.Contains(withoutServer, c.CommandPath()) {
			list = append(list, c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRoot())
	return list
}

// Everything that relay does, and every command, under exactly the permissions that relay prints.
func TestPermissions_everythingWorks(t *testing.T) {
	t.Parallel()
	d := newDenying(t, permittedRoutes+"schedules: [{name: nightly, subject: orders.quick.nightly, every: 1h}]\n")
	d.hook.answers(func(r request) (int, string) { return 503, "gateway down" })
	p := d.run()
	defer func() {
		if list := d.log.all(t); len(list) > 0 {
			t.Errorf("the server refused:\n%s", strings.Join(slices.Compact(list), "\n"))
		}
	}()

	d.by(access.Publisher, "pub", "orders.copy.one", "x")
	d.by(access.Publisher, "pub", "orders.billing.eu", `{"id":1}`)
	d.by(access.Publisher, "pub", "orders.billing.us", `{"id":2}`)
	// Too large for an entry: its body goes to the object store.
	large := make([]byte, 1<<20-200)
	d.publish("orders.billing.large", large, nil)
	for i := range 4 {
		d.by(access.Publisher, "pub", fmt.Sprintf("orders.slow.%d", i), "{}")
	}
	natstest.Eventually(t, "three dead letters, four parked", func() bool {
		return left(t, d.js, "RELAY_DLQ") == 3 && left(t, d.js, "RELAY_RETRY") == 4
	})
	natstest.Eventually(t, "forwarded", func() bool { return left(t, d.js, "COPIES") == 1 })

	for _, role := range []string{access.Viewer, access.Operator} {
		if out := d.by(role, "status"); !strings.Contains(out, "billing") {
			t.Errorf("status as %s: %s", role, out)
		}
	}
	d.by(access.Operator, "status", "slow")
	if out := d.by(access.Operator, "dlq", "ls"); !strings.Contains(out, "orders.billing.large") {
		t.Errorf("dlq ls: %s", out)
	}
	d.by(access.Operator, "dlq", "ls", "--group-by", "error")
	for n := 1; n <= 3; n++ {
		d.by(access.Operator, "dlq", "show", fmt.Sprint(n))
	}
	exported := d.by(access.Operator, "dlq", "export")
	if n := strings.Count(exported, "\n"); n != 3 {
		t.Errorf("exported %d", n)
	}
	if err := os.WriteFile(filepath.Join(d.dir, "dead.jsonl"), []byte(exported), 0o600); err != nil {
		t.Fatal(err)
	}
	d.by(access.Operator, "retries", "ls")
	d.by(access.Operator, "retries", "show", "ORDERS/5")
	if out := d.by(access.Operator, "retries", "discard", "ORDERS/5", "--yes"); !strings.Contains(out, "1 discarded") {
		t.Errorf("retries discard: %s", out)
	}
	d.by(access.Operator, "dlq", "discard", "4", "--yes")
	d.by(access.Operator, "orphans", "ls")
	for _, args := range [][]string{{"billing", "--why", "a test"}, {"billing", "orders.billing.eu"}} {
		d.by(access.Operator, append([]string{"pause"}, args...)...)
		d.by(access.Operator, append([]string{"resume"}, args...)...)
	}

	d.hook.answers(nil)
	d.by(access.Operator, "retries", "now", "ORDERS/6")
	natstest.Eventually(t, "hastened", func() bool { return left(t, d.js, "RELAY_RETRY") == 2 })
	if out := d.by(access.Operator, "dlq", "replay", "--yes", "--wait"); !strings.Contains(out, "3 succeeded") {
		t.Errorf("replay: %s", out)
	}
	if out := d.by(access.Operator, "dlq", "import", "dead.jsonl"); !strings.Contains(out, "3") {
		t.Errorf("import: %s", out)
	}
	slow := spawn(t, d.dir, nil, append([]string{"dlq", "replay", "--yes", "--rate", "0.2"}, as(access.Operator)...)...)
	natstest.Eventually(t, "a replay", func() bool {
		_, after, _ := strings.Cut(slow.out.String(), "\njob ")
		return strings.Contains(after, "\n")
	})
	id := jobID(t, slow.out.String())
	d.by(access.Operator, "replay", "cancel", id)
	slow.wait()
	d.by(access.Operator, "replay", "resume", id, "--rate", "0", "--yes")
	d.by(access.Operator, "dlq", "import", "dead.jsonl")
	d.by(access.Operator, "dlq", "discard", "--route", "billing", "--yes")
	var jobs []struct{ ID, Kind string }
	for line := range strings.Lines(d.by(access.Operator, "replay", "ls", "--json")) {
		var j struct{ ID, Kind string }
		if err := json.Unmarshal([]byte(line), &j); err == nil {
			jobs = append(jobs, j)
		}
	}
	for _, j := range jobs {
		d.by(access.Operator, "replay", "show", j.ID)
	}
	natstest.Eventually(t, "what became of a message that was done", func() bool {
		return strings.Contains(d.by(access.Operator, "trace", "ORDERS/1"), "was done by route copy")
	})
	d.by(access.Operator, "trace", "ORDERS/2") // was dead
	d.by(access.Operator, "trace", "ORDERS/7") // parked
	d.by(access.Operator, "audit", "billing")
	// All of them: the one whose retries were discarded may differ.
	code, out, stderr := relay(t, d.dir, append([]string{"audit"}, as(access.Operator)...)...)
	t.Logf("audit: exit %d\n%s%s", code, out, stderr)
	if strings.Contains(stderr, "permit") || !strings.Contains(out, "durable        slow") {
		t.Errorf("audit: exit %d\n%s%s", code, out, stderr)
	}
	d.by(access.Operator, "reload")
	if out := d.by(access.Operator, "grid"); !strings.Contains(out, "quick") || strings.Contains(out, "cannot be read") {
		t.Errorf("grid: %s", out)
	}
	d.ran["relay handover"] = true
	if code, out, stderr := relay(t, d.dir, append([]string{"handover", "quick"}, as(access.Operator)...)...); code != 1 || !strings.Contains(stderr, "no other instance stands by") {
		t.Errorf("handover: exit %d\n%s%s", code, out, stderr)
	}
	// The console does the same with the rights of the service.
	b := login(t, d.world, as(access.Operator)...)
	for path, want := range map[string]string{
		"/": "quick", "/grid": "Routes that one instance has", "/trace?message=ORDERS/1": "was done by route copy", "/trace?message=ORDERS/7": "is parked", "/trace?route=copy": "trace?message=ORDERS~copy~1~",
		"/dlq": "stored", "/retries": "ORDERS/7", "/routes/quick": "Latest outcomes",
	} {
		if page := b.page(path); !strings.Contains(page, want) || strings.Contains(page, "cannot be read") {
			t.Errorf("%s: no %q: %s", path, want, page)
		}
	}
	if status, said := b.post("/routes/quick/handover", url.Values{"from": {data[console.Grid](b, "/grid").Instances[0].Instance}}); status != 409 || !strings.Contains(said, "no other instance stands by") {
		t.Errorf("handover by the console: %d %s", status, said)
	}
	d.by(access.Operator, "schedule", "ls")
	d.by(access.Operator, "schedule", "show", "nightly")
	d.by(access.Operator, "schedule", "pause", "nightly")
	d.by(access.Operator, "schedule", "resume", "nightly")
	d.by(access.Operator, "schedule", "run", "nightly")
	d.by(access.Publisher, "pub", "orders.quick.later", "x", "--in", "10h", "--id", "later")
	d.by(access.Operator, "schedule", "rm", "later")
	d.by(access.Publisher, "call", "orders.call.x", "x")
	d.by(access.Operator, "events", "--limit", "5")
	d.by(access.Operator, "plan")
	d.by(access.Operator, "ui")
	d.by(access.Viewer, "ui", "--role", "view")
	d.call()

	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit %d", code)
	}
	if out := d.by(access.Operator, "orphans", "move", "--from", "slow", "--to", "quick", "--yes"); out != "2 moved: 2 messages in the retry stream, 0 dead letters, 0 of the durable\n" {
		t.Errorf("orphans move: %s", out)
	}
	if out := d.by(access.Operator, "orphans", "return", "--from", "quick", "--stream", "ORDERS", "--yes"); !strings.HasPrefix(out, "2 returned") {
		t.Errorf("orphans return: %s", out)
	}
	if list := d.untried(); len(list) > 0 {
		t.Errorf("commands that no role was tried with: %s; add them here, or to withoutServer", strings.Join(list, ", "))
	}
	// A second start finds everything.
	p = d.run()
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit %d", code)
	}
}

// call is a publisher that waits for the result, and is asked whether it does.
func (d *denying) call() {
	d.t.Helper()
	nc, err := nats.Connect(d.s.URL(), nats.UserInfo(access.Publisher, access.Publisher))
	if err != nil {
		d.t.Fatal(err)
	}
	defer nc.Close()
	reply, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		d.t.Fatal(err)
	}
	asked := make(chan struct{}, 16)
	interest, err := nc.Subscribe(nc.NewInbox(), func(m *nats.Msg) {
		asked <- struct{}{}
		_ = m.Respond(nil)
	})
	if err == nil {
		err = nc.PublishMsg(&nats.Msg{Subject: "orders.call.x", Header: nats.Header{"Relay-Reply-To": {reply.Subject}, "Relay-Interest": {interest.Subject}}})
	}
	if err != nil {
		d.t.Fatal(err)
	}
	if m, err := reply.NextMsg(patience); err != nil || m.Header.Get("Relay-Outcome") != "done" {
		d.t.Errorf("the caller hears %+v, %v", m, err)
	}
	if len(asked) == 0 {
		d.t.Error("the caller was not asked")
	}
}

// Who may publish to the routes, and nothing else, has no way into relay.
func TestPermissions_publisherAttacks(t *testing.T) {
	t.Parallel()
	d := newDenying(t, permittedRoutes)
	release := make(chan struct{})
	d.hook.answers(func(r request) (int, string) {
		if r.body == "held" {
			<-release
		}
		return 200, ""
	})
	free := sync.OnceFunc(func() { close(release) })
	defer free()
	d.run()
	seq := d.publish("orders.billing.eu", []byte("held"), nil)
	natstest.Eventually(t, "the message is in hand", func() bool { return d.hook.count() == 1 })

	nc, err := nats.Connect(d.s.URL(), nats.UserInfo("publisher", "publisher"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	order, _ := json.Marshal(map[string]any{"route": "billing", "state": "paused", "at": "2026-01-01T00:00:00Z", "format": 1})
	attacks := map[string]string{
		fmt.Sprintf("$JS.ACK.ORDERS.billing.1.%d.1.0.0", seq):           "+ACK",
		fmt.Sprintf("$JS.ACK._.ACCOUNT.ORDERS.billing.1.%d.1.0.0", seq): "+TERM",
		"$KV.RELAY_STATE.billing":                                       string(order),
		"$KV.RELAY_ATTEMPTS.x":                                          "{}",
		"$KV.RELAY_INSTANCES.x":                                         "{}",
		"$KV.RELAY_JOBS.forged":                                         `{"id":"forged","state":"running","subject":"elsewhere"}`,
		"$O.RELAY_DLQ_BODIES.M.x":                                       "{}",
		"relay.due.billing.ORDERS.forged":                               "forged",
		"relay.park.billing.ORDERS.1-1":                                 "forged",
		"relay.dlq.billing.ORDERS.1-1-0.orders.x":                       "forged",
		"broken.slow.ORDERS.1-1-0.orders.x":                             "forged",
		"relay.ctl.act.resume":                                          string(order),
		"relay.ctl.view.status":                                         "{}",
		"relay.event.audit.billing":                                     "{}",
		"copies.eu":                                                     "forged",
		"$JS.API.STREAM.CREATE.EVIL":                                    `{"name":"EVIL","subjects":["evil.>"],"republish":{"src":">","dest":"relay.due.billing.ORDERS.x"}}`,
		"$JS.API.STREAM.UPDATE.RELAY_RETRY":                             `{"name":"RELAY_RETRY","sources":[{"name":"ORDERS"}]}`,
		"$JS.API.CONSUMER.CREATE.ORDERS.evil":                           `{"stream_name":"ORDERS","config":{"name":"evil","deliver_subject":"relay.due.billing.ORDERS.x"}}`,
		"$JS.API.STREAM.DELETE.RELAY_DLQ":                               "",
		"$JS.API.STREAM.PURGE.ORDERS":                                   "",
		"$JS.API.CONSUMER.DELETE.ORDERS.billing":                        "",
		"$JS.API.STREAM.MSG.GET.RELAY_DLQ":                              `{"seq":1}`,
		"_INBOX_relay.x":                                                "forged",
		"$JS.API.STREAM.CREATE.RELAY_LATER":                             `{"name":"RELAY_LATER","subjects":["relay.later.wait.>"],"republish":{"src":"relay.later.wait.p.img.>","dest":"$JS.API.>"}}`,
		"$JS.API.STREAM.CREATE.RELAY_LATER_IN":                          `{"name":"RELAY_LATER_IN","subjects":["relay.later.in.>"],"sources":[{"name":"RELAY_DLQ"},{"name":"ORDERS"}]}`,
		"$JS.API.STREAM.UPDATE.RELAY_LATER_IN":                          `{"name":"RELAY_LATER_IN","subjects":["relay.later.in.>"],"republish":{"src":">","dest":"$KV.RELAY_STATE.>"}}`,
		"$JS.API.STREAM.INFO.RELAY_LATER":                               "",
		"relay.later.wait.p.orders.billing.x":                           "forged",
		"relay.later.due.p.orders.billing.x":                            "forged",
		"relay.later.in.p.copies.x":                                     "forged",
		"relay.later.in.p.$JS.API.STREAM.DELETE.RELAY_DLQ":              "forged",
	}
	for subject, body := range attacks {
		if err := nc.Publish(subject, []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	listen := []string{"_INBOX_relay.>", "relay.>", "$JS.>", "$KV.>", "orders.>", ">"}
	for _, subject := range listen {
		if _, err := nc.Subscribe(subject, func(m *nats.Msg) { t.Errorf("heard %s", m.Subject) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	for subject := range attacks {
		if !slices.ContainsFunc(d.log.all(t), func(v string) bool {
			return strings.Contains(v, "Publish Violation") && strings.Contains(v, `"`+subject+`"`)
		}) {
			t.Errorf("the server lets a publisher use %s", subject)
		}
	}
	if n := strings.Count(strings.Join(d.log.all(t), "\n"), "Subscription Violation"); n != len(listen) {
		t.Errorf("%d subscriptions of %d refused", n, len(listen))
	}
	free()
	settled(t, d.js, "ORDERS", "billing")
	d.publish("orders.billing.us", []byte("after"), nil) // and the route works
	natstest.Eventually(t, "the next message", func() bool { return d.hook.count() == 2 })
	settled(t, d.js, "ORDERS", "billing")
	for _, r := range d.hook.all() {
		if r.body != "held" && r.body != "after" || r.attempt != "1" {
			t.Errorf("handled: %+v", r)
		}
	}
	for stream, want := range map[string]int{"RELAY_DLQ": 0, "RELAY_RETRY": 0, "COPIES": 0, "KV_RELAY_STATE": 0} {
		if n := left(t, d.js, stream); n != want {
			t.Errorf("%s holds %d", stream, n)
		}
	}
}

// A viewer listened to the answers of others, and took an operator's code for the console; and had relay publish, with relay's rights, by the reply
// subject of a question.
func TestPermissions_regressionViewerAttacks(t *testing.T) {
	t.Parallel()
	d := newDenying(t, permittedRoutes)
	d.run().ready()
	connect := func(user string) *nats.Conn {
		nc, err := nats.Connect(d.s.URL(), nats.UserInfo(user, user), nats.CustomInboxPrefix("_INBOX_relay.viewer.x"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
	viewer, anybody := connect(access.Viewer), connect("test")
	listen := []string{"_INBOX_relay.>", "_INBOX_relay.run.>", "_INBOX_relay.operator.>", "_INBOX_relay.*.viewer.>", "_INBOX.>", "relay.ctl.>", "$SRV.>"}
	for _, subject := range listen {
		if _, err := viewer.Subscribe(subject, func(m *nats.Msg) { t.Errorf("heard %s", m.Subject) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := viewer.Flush(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(strings.Join(d.log.all(t), "\n"), "Subscription Violation"); n != len(listen) {
		t.Errorf("%d subscriptions of %d refused", n, len(listen))
	}

	held := func() (list []string) {
		infos := d.js.ListStreams(t.Context())
		for i := range infos.Info() {
			// What relay writes by itself all the while: leases, and how much was handled.
			if n := i.Config.Name; n != "KV_RELAY_INSTANCES" && n != "KV_RELAY_FLEET" && n != "KV_RELAY_LEDGER" && n != "RELAY_EVENTS" && n != "RELAY_ARCHIVE" {
				list = append(list, fmt.Sprint(n, " ", i.State.LastSeq))
			}
		}
		slices.Sort(list)
		return list
	}
	natstest.Eventually(t, "all streams are there, and the book of the dead letters", func() bool {
		list := held()
		return slices.Contains(list, "KV_RELAY_JOBS 1") && slices.ContainsFunc(list, func(s string) bool { return strings.HasPrefix(s, "RELAY_LATER_IN ") }) && slices.ContainsFunc(list, func(s string) bool { return strings.HasPrefix(s, "KV_RELAY_SCHEDULES ") })
	})
	before := held()
	replies := []string{
		"$KV.RELAY_STATE.billing", "$KV.RELAY_JOBS.x", "orders.quick.x", "relay.due.billing.ORDERS.x", "relay.park.billing.ORDERS.1-1", "relay.archive.ORDERS", "relay.dlq.billing.ORDERS.1-1-0.orders.x",
		"relay.later.in.p.orders.quick.x", "$JS.API.STREAM.PURGE.ORDERS", "$JS.API.STREAM.DELETE.COPIES", "copies.x", "broken.slow.ORDERS.1-1-0.orders.x", "$O.RELAY_DLQ_BODIES.M.x", "_INBOX", "_INBOXES.x",
	}
	ask := func(nc *nats.Conn, subjects ...string) {
		for _, s := range subjects {
			for _, reply := range replies {
				for _, body := range []string{"", "{}", `{"by":"eve"}`, `{"state":"paused","route":"billing"}`, "no JSON"} {
					if err := nc.PublishRequest(s, reply, []byte(body)); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
	ask(viewer, "relay.ctl.view.status", "relay.ctl.view.console")
	// Others may have these rights by other lists.
	ask(anybody, "$SRV.PING", "$SRV.INFO", "$SRV.STATS", "$SRV.PING.relay", "$SRV.INFO.relay", "$SRV.STATS.relay", "relay.ctl.act.resume", "relay.ctl.act.reload", "relay.ctl.act.console")
	for _, q := range []string{"relay.ctl.view.status", "$SRV.PING.relay", "$SRV.STATS.relay"} { // answered one after the other, and in an inbox
		if m, err := anybody.Request(q, nil, patience); err != nil || len(m.Data) == 0 {
			t.Errorf("%s: %v", q, err)
		}
	}
	time.Sleep(500 * time.Millisecond)
	if after := held(); !slices.Equal(before, after) {
		t.Errorf("by reply subjects:\n%s\n%s", before, after)
	}
	if status := d.by(access.Viewer, "status"); strings.Contains(status, "paused") {
		t.Errorf("a route is paused:\n%s", status)
	}

	// A code that is on its way to an operator is of no use to who reads it.
	var q struct{ Seal []byte }
	ctl, err := anybody.SubscribeSync("relay.ctl.act.console")
	if err != nil {
		t.Fatal(err)
	}
	read, err := anybody.SubscribeSync("_INBOX_relay.operator.>")
	if err != nil {
		t.Fatal(err)
	}
	_ = anybody.Flush()
	link := strings.TrimSpace(d.by(access.Operator, "ui"))
	if m, err := ctl.NextMsg(patience); err != nil || json.Unmarshal(m.Data, &q) != nil || !strings.HasPrefix(m.Reply, "_INBOX_relay.operator.operator.") {
		t.Fatalf("%+v, %v", m, err)
	}
	var a struct{ URL string }
	for a.URL == "" {
		m, err := read.NextMsg(patience)
		if err != nil {
			t.Fatal(err)
		}
		_ = json.Unmarshal(m.Data, &a)
	}
	if !strings.HasPrefix(link, a.URL+"-") {
		t.Errorf("the link is %s, and the answer %s", link, a.URL)
	}
	base, code, _ := strings.Cut(a.URL, "/login#")
	for _, typed := range []string{code, code + "-", code + "-" + string(q.Seal), code + "-" + fmt.Sprintf("%x", q.Seal)} {
		r, err := http.PostForm(base+"/login", url.Values{"code": {typed}})
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %s", typed, r.Status)
		}
	}
}

// Wherever a publisher may publish, headers that mean something to the server remove, replace and multiply nothing of others.
func TestPermissions_publisherHeaders(t *testing.T) {
	t.Parallel()
	d := newDenying(t, permittedRoutes)
	p := d.run()
	p.ready()
	d.by(access.Publisher, "pub", "orders.billing.victim", "x", "--in", "10h", "--id", "victim")
	d.by(access.Publisher, "pub", "orders.slow.victim", "x", "--in", "10h", "--id", "victim")
	nc, err := nats.Connect(d.s.URL(), nats.UserInfo("publisher", "publisher"))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	waiting := func() int { return left(t, d.js, "RELAY_LATER") + left(t, d.js, "RELAY_LATER_IN") }
	natstest.Eventually(t, "both wait", func() bool { return left(t, d.js, "RELAY_LATER") == 2 && left(t, d.js, "RELAY_LATER_IN") == 0 })
	orders := left(t, d.js, "ORDERS")
	for _, subject := range []string{"relay.later.in.evil.orders.billing.evil", "orders.billing.evil"} {
		for _, h := range []nats.Header{
			{"Nats-Rollup": {"all"}}, {"Nats-Rollup": {"sub"}}, {"Nats-TTL": {"1s"}}, {"Nats-Schedule-Rollup": {"all"}},
			{"Nats-Schedule": {"@every 1s"}, "Nats-Schedule-Target": {"relay.later.wait.x.orders.billing.x"}},
			{"Nats-Schedule": {"@every 1s"}, "Nats-Schedule-Target": {subject}},
			{"Nats-Scheduler": {"relay.later.wait.victim.orders.slow.victim"}, "Nats-Schedule-Next": {"purge"}},
			{"Nats-Expected-Last-Sequence": {"0"}}, {"Nats-Incr": {"+1"}}, {"Nats-Batch-Id": {"evil"}, "Nats-Batch-Sequence": {"1"}, "Nats-Batch-Commit": {"1"}},
		} {
			reply, err := nc.RequestMsg(&nats.Msg{Subject: subject, Header: h, Data: make([]byte, 1000)}, patience)
			if err != nil {
				t.Fatalf("%s, %v: %v", subject, h, err)
			}
			t.Logf("%s, %v: %s", subject, h, reply.Data)
		}
	}
	time.Sleep(3 * time.Second) // long enough for @every 1s
	if n := waiting(); n != 2 {
		t.Errorf("%d wait, want the two of others", n)
	}
	if n := left(t, d.js, "ORDERS"); n < orders || n > orders+10 {
		t.Errorf("ORDERS had %d messages, and has %d", orders, n)
	}
	for _, stream := range []string{"RELAY_LATER_IN", "ORDERS", "COPIES", "RELAY_DLQ"} {
		s, err := d.js.Stream(t.Context(), stream)
		if err != nil {
			t.Fatal(err)
		}
		if c := s.CachedInfo().Config; c.AllowRollup || c.AllowMsgSchedules || c.AllowMsgTTL {
			t.Errorf("%s allows rollups, schedules or lifetimes: %+v", stream, c)
		}
	}
	if list := d.log.all(t); len(list) > 0 {
		t.Errorf("the server refused:\n%s", strings.Join(list, "\n"))
	}
}

// Whoever was first with the stream of delayed messages had the server publish with all rights. What such a publisher of an earlier
// version left is set back.
func TestPermissions_streamsThatOthersMade(t *testing.T) {
	t.Parallel()
	d := newDenying(t, permittedRoutes)
	republish := func(dest string) *jetstream.RePublish {
		return &jetstream.RePublish{Source: "relay.later.wait.p.img.>", Destination: dest}
	}
	for _, c := range []jetstream.StreamConfig{
		{Name: "RELAY_LATER", Subjects: []string{"relay.later.wait.>", "relay.later.due.>"}, Retention: jetstream.WorkQueuePolicy, AllowMsgSchedules: true, RePublish: republish("$JS.API.>")},
		{Name: "KV_RELAY_JOBS", Subjects: []string{"$KV.RELAY_JOBS.>"}, MaxMsgsPerSubject: 1, RePublish: &jetstream.RePublish{Source: ">", Destination: "elsewhere.>"}},
		{Name: "RELAY_LATER_IN", Subjects: []string{"relay.later.in.>"}, Retention: jetstream.WorkQueuePolicy, Sources: []*jetstream.StreamSource{{Name: "RELAY_DLQ"}, {Name: "KV_RELAY_STATE"}}},
	} {
		if _, err := d.js.CreateStream(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	p := d.run()
	p.ready()
	natstest.Eventually(t, "they are set back", func() bool {
		for _, name := range []string{"RELAY_LATER", "RELAY_LATER_IN", "KV_RELAY_JOBS"} {
			s, err := d.js.Stream(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			if c := s.CachedInfo().Config; c.RePublish != nil || len(c.Sources) > 0 {
				return false
			}
		}
		return true
	})
	d.by(access.Publisher, "pub", "orders.quick.x", "x", "--in", "100ms", "--id", "one")
	natstest.Eventually(t, "handled", func() bool { return d.hook.count() == 1 })
}

// A delayed message before relay ever ran: publishers make nothing, and are told who does.
func TestPermissions_delayedBeforeRelayRan(t *testing.T) {
	t.Parallel()
	d := newDenying(t, permittedRoutes)
	code, _, stderr := relay(t, d.dir, append([]string{"pub", "orders.quick.x", "x", "--in", "1s"}, as(access.Publisher)...)...)
	if code == 0 || !strings.Contains(stderr, "stream RELAY_LATER_IN") || !strings.Contains(stderr, "start relay once") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	names := d.js.StreamNames(t.Context())
	for name := range names.Name() {
		if strings.HasPrefix(name, "RELAY_") {
			t.Errorf("a publisher made %s", name)
		}
	}
}

// A command that lacks a right says which.
// The rights that the list of an operator notes for relay orphans move are enough to empty the durable of a route that was renamed.
func TestPermissions_whatMovingADurableNeeds(t *testing.T) {
	t.Parallel()
	const api = "$JS.API.CONSUMER."
	d := newDenying(t, strings.Replace(permittedRoutes, "name: billing\n", "name: billing\n    start: new\n    durable: bills\n", 1),
		"$JS.ACK.ORDERS.billing.>", api+"MSG.NEXT.ORDERS.billing", api+"DELETE.ORDERS.billing")
	d.hook.answers(func(request) (int, string) { return 200, "" })
	if _, err := d.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}); err != nil {
		t.Fatal(err)
	}
	made, err := d.js.CreateConsumer(t.Context(), "ORDERS", jetstream.ConsumerConfig{
		Durable: "billing", FilterSubject: "orders.billing.>", AckPolicy: jetstream.AckExplicitPolicy,
		Metadata: map[string]string{"relay.service": "relay", "relay.route.bills": "orders.billing.>"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		d.publish("orders.billing.eu", []byte("{}"), nil)
	}
	d.run().ready()
	if out := d.by(access.Operator, "orphans", "move", "--from", "bills", "--to", "billing", "--yes"); !strings.Contains(out, "3 of the durable") {
		t.Errorf("move says %s", out)
	}
	natstest.Eventually(t, "they are handled", func() bool { return len(d.hook.all()) == 3 })
	if _, err := d.js.Consumer(t.Context(), "ORDERS", made.CachedInfo().Name); !errors.Is(err, jetstream.ErrConsumerNotFound) {
		t.Errorf("the old durable is there: %v", err)
	}
}

func TestPermissions_whatLacksIsSaid(t *testing.T) {
	t.Parallel()
	d := newDenying(t, permittedRoutes)
	d.hook.answers(func(r request) (int, string) { return 422, "no" })
	d.run()
	d.publish("orders.billing.eu", []byte("{}"), nil)
	natstest.Eventually(t, "a dead letter", func() bool { return left(t, d.js, "RELAY_DLQ") == 1 })
	for _, c := range []struct{ role, command, want string }{
		{access.Viewer, "dlq ls", "subscribe to _INBOX_relay.operator.viewer."},
		{access.Viewer, "retries ls", "subscribe to _INBOX_relay.operator.viewer."},
		{access.Viewer, "pause billing", "subscribe to _INBOX_relay.operator.viewer."},
		{access.Viewer, "ui", "subscribe to _INBOX_relay.operator.viewer."},
		{access.Publisher, "ui --role view", "publish to relay.ctl.view.console"},
		{access.Publisher, "status", "publish to relay.ctl.view.status"},
		{access.Operator, "pub orders.billing.eu x", "subscribe to _INBOX_relay.publisher.operator."},
		{access.Operator, "dlq replay --yes --to-subject orders.elsewhere.eu", "publish to orders.elsewhere.eu"},
	} {
		code, out, stderr := relay(t, d.dir, append(strings.Fields(c.command), as(c.role)...)...)
		if code == 0 || !strings.Contains(stderr, "not permitted to "+c.want) || !strings.Contains(stderr, "relay nats permissions --for") {
			t.Errorf("%s as %s: exit %d\n%s%s", c.command, c.role, code, out, stderr)
		}
	}
	if n := left(t, d.js, "RELAY_DLQ"); n != 1 {
		t.Errorf("%d dead letters", n)
	}
}
