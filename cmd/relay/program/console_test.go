package program

import (
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/console"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/natstest"
)

// browser is somebody with a session, as a browser without JavaScript or a script would be.
type browser struct {
	t    *testing.T
	base string
	http *http.Client
}

// login follows the link of relay ui.
func login(t *testing.T, w *world, args ...string) *browser {
	t.Helper()
	link := strings.TrimSpace(must(t, w.dir, append([]string{"ui"}, args...)...))
	base, code, ok := strings.Cut(link, "/login#")
	if !ok {
		t.Fatalf("relay ui says %q", link)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{t, base, &http.Client{Jar: jar, Timeout: 2 * patience, Transport: &http.Transport{DisableKeepAlives: true}}}
	if status, page := b.post("/login", url.Values{"code": {code}}); status != http.StatusOK {
		t.Fatalf("login: %d %s", status, page)
	}
	return b
}

func (b *browser) send(method, path string, form url.Values, accept string) (int, string) {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), method, b.base+path, strings.NewReader(form.Encode()))
	if err != nil {
		b.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Accept", accept)
	resp, err := b.http.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func (b *browser) post(path string, form url.Values) (int, string) {
	return b.send("POST", path, form, "text/html")
}

func (b *browser) page(path string) string {
	b.t.Helper()
	status, page := b.send("GET", path, nil, "text/html")
	if status != http.StatusOK {
		b.t.Fatalf("%s: %d %s", path, status, page)
	}
	return page
}

// data reads a page as JSON.
func data[T any](b *browser, path string) (v T) {
	b.t.Helper()
	status, text := b.send("GET", path, nil, "application/json")
	if err := json.Unmarshal([]byte(text), &v); status != http.StatusOK || err != nil {
		b.t.Fatalf("%s as JSON: %d %v %s", path, status, err, text)
	}
	return v
}

// An operator's night by the console alone: what is wrong, pause and resume, dead letters by their error, a staged replay that stops itself and
// goes on, an edited body, a discard; and who may only view.
func TestConsole_anOperatorsNight(t *testing.T) {
	t.Parallel()
	const letters = 30
	w := newWorld(t, `
events: {store: true}
routes:
  - name: billing
    subjects: [orders.>]
    handler: {http: {url: "$HOOK"}}
    retry: {max_attempts: 1}
    supervisor: {trip_after: 0, route_trip: {of: 0}}
`)
	var mended atomic.Bool
	w.hook.answers(func(r request) (int, string) {
		switch {
		case strings.Contains(r.body, "poison"):
			return 422, "<script>alert(1)</script>"
		case mended.Load():
			return 200, ""
		}
		return 503, "down"
	})
	w.run()
	for i := range letters {
		w.publish(fmt.Sprintf("orders.%d", i), fmt.Appendf(nil, `{"n": %d, "id": 12345678901234567890}`, i), nil)
	}
	poison := w.publish("orders.poison", []byte(`{"poison": true}`), nil)
	natstest.Eventually(t, "all are dead letters", func() bool { return len(deadLetters(t, w.js)) == letters+1 })
	b, viewer := login(t, w, "--as", "eve"), login(t, w, "--role", "view")

	if page := b.page("/"); !strings.Contains(page, "billing") || !strings.Contains(page, "eve may <b>operate</b>") {
		t.Errorf("the overview: %s", page)
	}
	type list struct {
		Groups  []dlq.Group
		Last    uint64
		Entries []json.RawMessage
	}
	all := data[list](b, "/dlq")
	if len(all.Groups) != 2 || all.Groups[0].Count != letters || all.Last != letters+1 {
		t.Fatalf("%+v", all)
	}
	if page := b.page("/dlq"); !strings.Contains(page, `example">`+template.HTMLEscapeString(all.Groups[0].Error)+"<") || !strings.Contains(page, "POST http://&lt;addr&gt;") {
		t.Error("no pattern with an example beside it")
	}
	if page := b.page("/dlq"); strings.Contains(page, "<script>alert") || !strings.Contains(page, "&lt;script&gt;") {
		t.Error("an error is not shown as text")
	}

	// Who may view sees no body, and changes nothing.
	entry := fmt.Sprintf("/dlq/%d", all.Groups[1].Sample)
	if strings.Contains(viewer.page(entry), "poison&#34;") || !strings.Contains(viewer.page(entry), "hidden") || !strings.Contains(b.page(entry), "poison") {
		t.Error("the body is shown to the wrong one")
	}
	if status, said := viewer.post("/routes/billing/pause", nil); status != http.StatusForbidden || !strings.Contains(said, "may view") {
		t.Errorf("a viewer pauses: %d %s", status, said)
	}

	status, said := b.post("/routes/billing/pause", url.Values{"why": {"database migration"}})
	if status != http.StatusOK || !strings.Contains(said, "route billing is paused on 1 running instance") || !strings.Contains(said, "database migration") {
		t.Errorf("pause: %d %s", status, said)
	}
	if status, said = b.post("/routes/billing/resume", nil); status != http.StatusOK || !strings.Contains(said, "route billing is running") {
		t.Errorf("resume: %d %s", status, said)
	}

	// A staged replay of the group stops itself, since nothing is mended; then it goes on.
	type plan struct {
		Total int
		Last  uint64
	}
	query := url.Values{"like": {fmt.Sprint(all.Groups[0].Sample)}, "last": {fmt.Sprint(all.Last)}}
	p := data[plan](b, "/dlq/plan?act=replay&"+query.Encode())
	if p.Total != letters {
		t.Fatalf("%+v", p)
	}
	form := url.Values{"like": query["like"], "last": {fmt.Sprint(p.Last)}, "total": {fmt.Sprint(p.Total)}, "staged": {"1"}}
	status, said = b.send("POST", "/dlq/replay", form, "application/json")
	var began struct{ Next string }
	if err := json.Unmarshal([]byte(said), &began); err != nil || status != http.StatusOK || !strings.HasPrefix(began.Next, "/jobs/") {
		t.Fatalf("replay: %d %s", status, said)
	}
	type job struct {
		State  dlq.JobState
		Handed int
		By     string
	}
	natstest.Eventually(t, "the replay stops itself", func() bool { return data[job](b, began.Next).State == dlq.JobStopped })
	if page := b.page(began.Next); !strings.Contains(page, "too many failures") || !strings.Contains(page, "Resume") {
		t.Errorf("the job: %s", page)
	}
	mended.Store(true)
	if status, said = b.post(began.Next+"/resume", nil); status != http.StatusOK {
		t.Fatalf("resume: %d %s", status, said)
	}
	natstest.Eventually(t, "it is done", func() bool { return data[job](b, began.Next).State == dlq.JobDone })
	if j := data[job](b, began.Next); j.By != "eve" || j.Handed < letters-1 {
		t.Errorf("%+v", j)
	}

	// The poison gets another body.
	if status, said = b.post(entry+"/edit", url.Values{"text": {"{not JSON"}}); status != http.StatusBadRequest || !strings.Contains(said, "not valid JSON any more") {
		t.Errorf("a body that is broken: %d %s", status, said)
	}
	if status, said = b.post(entry+"/edit", url.Values{"text": {"{\"cured\": true,\r\n\"n\": 7}"}}); status != http.StatusOK {
		t.Fatalf("edit: %d %s", status, said)
	}
	natstest.Eventually(t, "it is handled with its new body", func() bool {
		for _, r := range w.hook.all() {
			if r.body == "{\"cured\": true,\n\"n\": 7}" && strings.Contains(r.id, fmt.Sprintf("~%d~", poison)) {
				return true
			}
		}
		return false
	})

	// What is left, of the stages that failed, is discarded, but not what came after the page.
	left := data[list](b, "/dlq")
	mended.Store(false)
	before := len(deadLetters(t, w.js))
	w.publish("orders.late", []byte("{}"), nil)
	natstest.Eventually(t, "one more", func() bool { return len(deadLetters(t, w.js)) == before+1 })
	gone := data[plan](b, fmt.Sprintf("/dlq/plan?act=discard&last=%d", left.Last))
	if gone.Total != before {
		t.Errorf("a plan up to %d has %d, want %d", left.Last, gone.Total, before)
	}
	if before > 0 {
		form = url.Values{"last": {fmt.Sprint(gone.Last)}, "total": {fmt.Sprint(gone.Total)}}
		if status, said = b.post("/dlq/discard", form); status != http.StatusOK || !strings.Contains(said, fmt.Sprintf("%d discarded", before)) {
			t.Errorf("discard: %d %s", status, said)
		}
	}
	if rest := deadLetters(t, w.js); len(rest) != 1 || rest[0].Subject != "orders.late" {
		t.Errorf("%d dead letters are left", len(rest))
	}
	// Who did what.
	natstest.Eventually(t, "it is audited", func() bool {
		out := must(t, w.dir, "events", "--kind", "audit")
		return strings.Contains(out, "route billing is paused (by eve)") && strings.Contains(out, "replay of 30 dead letters") && strings.Contains(out, "another body")
	})
	for _, path := range []string{"/retries", "/config", "/jobs", "/routes/billing"} {
		b.page(path)
	}
}

// What became of messages, by the console: one that was done with its result, which who may only view does not see, a dead letter with its link, the
// latest of a route, and what is not there.
func TestConsole_trace(t *testing.T) {
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
			return 422, "no such <order>"
		}
		return 200, "invoice <7>"
	})
	w.run()
	ok, dead := w.publish("orders.ok", []byte("{}"), nil), w.publish("orders.dead", []byte("{}"), nil)
	b, viewer := login(t, w), login(t, w, "--role", "view")
	var latest []console.Outcome
	natstest.Eventually(t, "both have an outcome", func() bool {
		latest = data[struct{ Outcomes console.Outcomes }](b, "/trace?route=billing").Outcomes.List
		return len(latest) == 2
	})
	at := slices.IndexFunc(latest, func(o console.Outcome) bool { return o.Sequence == ok })
	if o := latest[at]; o.Outcome != "done" || o.Attempts != 1 || o.Result != "invoice <7>" || o.Instance == "" || o.Stream != "ORDERS" {
		t.Errorf("%+v", o)
	}
	if o := latest[1-at]; o.Sequence != dead || o.Outcome != "dead-lettered (dead)" {
		t.Errorf("%+v", o)
	}
	for _, page := range []string{b.page("/trace?route=billing"), viewer.page("/trace?route=billing")} {
		if !strings.Contains(page, "message="+url.QueryEscape(latest[at].Message)) || strings.Contains(page, "archive is off") {
			t.Errorf("the latest: %s", page)
		}
	}
	for _, message := range []string{fmt.Sprintf("ORDERS/%d", ok), latest[at].Message} {
		path := "/trace?message=" + url.QueryEscape(message)
		if page := b.page(path); !strings.Contains(page, "was done by route billing on instance ") || !strings.Contains(page, "invoice &lt;7&gt;") || !strings.Contains(page, "<code>relay trace ") {
			t.Errorf("one that was done: %s", page)
		}
		if page := viewer.page(path); !strings.Contains(page, "was done by route billing") || strings.Contains(page, "invoice") {
			t.Errorf("the result is shown to who may only view: %s", page)
		}
	}
	if page := b.page(fmt.Sprintf("/trace?message=ORDERS/%d", dead)); !strings.Contains(page, `<a href="/dlq/1">is dead letter 1 of route billing</a>`) || !strings.Contains(page, "no such &lt;order&gt;") {
		t.Errorf("a dead letter: %s", page)
	}
	for path, want := range map[string]int{"/trace?message=ORDERS": 400, "/trace?message=ORDERS/99": 404, "/trace?message=NONE/1": 404, "/trace?route=none": 404} {
		if status, page := b.send("GET", path, nil, "text/html"); status != want {
			t.Errorf("%s: %d, want %d: %s", path, status, want, page)
		}
	}
}

// Without an archive the page of outcomes says so, and how to have one; a message is traced all the same.
func TestConsole_traceWithoutArchive(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
routes: [{name: billing, subjects: [orders.>], start: all, handler: discard}]
`)
	w.run()
	b := login(t, w, "--role", "view")
	for _, path := range []string{"/trace", "/trace?route=billing"} {
		if page := b.page(path); !strings.Contains(page, "The archive is off") || !strings.Contains(page, "archive: {outcomes: true}") {
			t.Errorf("%s: %s", path, page)
		}
	}
	seq := w.publish("orders.ok", []byte("{}"), nil)
	natstest.Eventually(t, "it is through", func() bool {
		page := b.page(fmt.Sprintf("/trace?message=ORDERS/%d", seq))
		return strings.Contains(page, "durable billing has settled all messages up to") && strings.Contains(page, "The archive is off")
	})
}

// The grid by the console: who has the route, a handover to a certain instance, by an operator and audited, and an instance that is killed.
func TestConsole_gridAndHandover(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
events: {store: true}
routes: [{name: billing, subjects: [orders.>], instances: one, handler: discard}]
`)
	var g console.Grid
	names := func() (list []string) {
		if err := json.Unmarshal([]byte(must(t, w.dir, "grid", "--json")), &g); err != nil {
			t.Fatal(err)
		}
		for _, i := range g.Instances {
			list = append(list, i.Instance)
		}
		return list
	}
	w.run()
	one := names()[0]
	second := w.run()
	two := strings.Join(slices.DeleteFunc(names(), func(name string) bool { return name == one }), ", ")
	b, viewer := login(t, w, "--as", "eve", "--instance", one), login(t, w, "--role", "view", "--instance", one)
	route := func() console.GridRoute {
		g = data[console.Grid](b, "/grid")
		if len(g.Instances) != 2 || len(g.Routes) != 1 {
			return console.GridRoute{}
		}
		return g.Routes[0]
	}
	natstest.Eventually(t, "one has the route, and one stands by", func() bool { r := route(); return r.Holder != "" && len(r.Standbys) == 1 })
	was := g.Routes[0]
	form := url.Values{"from": {was.Holder}, "to": {was.Standbys[0]}}
	for _, who := range []*browser{b, viewer} {
		page := who.page("/grid")
		if !strings.Contains(page, one) || !strings.Contains(page, two) || strings.Contains(page, "Hand over…") != (who == b) || strings.Contains(page, "relay handover billing") != (who == b) {
			t.Errorf("the grid: %s", page)
		}
	}
	if status, said := viewer.post("/routes/billing/handover", form); status != http.StatusForbidden {
		t.Errorf("a viewer hands over: %d %s", status, said)
	}
	for want, f := range map[int]url.Values{
		http.StatusConflict:   {"from": {was.Standbys[0]}},
		http.StatusBadRequest: {"from": {was.Holder}, "to": {"nobody"}},
	} {
		if status, said := b.post("/routes/billing/handover", f); status != want {
			t.Errorf("%v: %d, want %d: %s", f, status, want, said)
		}
	}
	if r := route(); r.Fence != was.Fence {
		t.Fatalf("it was handed over: %+v", r)
	}
	status, said := b.post("/routes/billing/handover", form)
	if want := fmt.Sprintf("instance %s has it now, %s had it", was.Standbys[0], was.Holder); status != http.StatusOK || !strings.Contains(said, want) {
		t.Fatalf("%d, want %q: %s", status, want, said)
	}
	if r := route(); r.Holder != was.Standbys[0] || r.Fence <= was.Fence {
		t.Errorf("afterwards: %+v", r)
	}
	if page := b.page("/routes/billing"); !strings.Contains(page, "Instance that has it") {
		t.Errorf("the route: %s", page)
	}
	natstest.Eventually(t, "it is audited", func() bool {
		return strings.Contains(must(t, w.dir, "events", "--kind", "audit"), fmt.Sprintf("route billing is to be handed over by instance %s (by eve)", was.Holder))
	})
	second.kill()
	natstest.Eventually(t, "one vanished, and nobody stands by", func() bool {
		r := route()
		at := slices.IndexFunc(g.Instances, func(i console.GridInstance) bool { return i.Instance == two })
		return r.Holder == one && len(r.Standbys) == 0 && at >= 0 && g.Instances[at].State == "vanished" && g.Instances[at].Gone != nil
	})
	if page := b.page("/grid"); !strings.Contains(page, "vanished") || !strings.Contains(page, "no instance stands by for route billing") || strings.Contains(page, "Hand over…") {
		t.Errorf("afterwards: %s", page)
	}
	if status, said := b.post("/routes/billing/handover", url.Values{"from": {one}}); status != http.StatusConflict || !strings.Contains(said, "no other instance stands by") {
		t.Errorf("with nobody: %d %s", status, said)
	}
}

// Without a console there is nothing but health and metrics, and nobody gets a code.
func TestConsole_off(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
routes: [{name: billing, subjects: [orders.>], handler: discard}]
`)
	p := w.run("--set", "admin.ui=off")
	if status, _ := p.get("/"); status != http.StatusNotFound {
		t.Errorf("a console that is off: %d", status)
	}
	if code, _, said := relay(t, w.dir, "ui"); code != cli.ExitFailed || !strings.Contains(said, "admin.ui are not off") {
		t.Errorf("relay ui: exit %d, %s", code, said)
	}
	if code, _, _ := relay(t, w.dir, "ui", "--role", "king"); code != cli.ExitUsage {
		t.Errorf("a role that there is not: exit %d", code)
	}
}
