package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
	"golang.org/x/net/html"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/orders"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

// hostile is put wherever strangers can write.
const hostile = `"><script>alert(1)</script><img src=x onerror=alert(2)>'` + "`" + `{{.}}</textarea></title><svg/onload=alert(3)>javascript:alert(4)` + "\x1b[31m\u202e\x00\xff"

// fake shows hostile texts everywhere and counts acts.
type fake struct {
	acts  atomic.Int64
	asked atomic.Int64
	store *dlq.Store // nil: there are no dead letters

	traceTakes time.Duration
}

func (f *fake) Status(context.Context) (control.Answers, error) {
	f.asked.Add(1)
	s := consumer.Status{
		Instance: hostile, Service: "relay", Trouble: []string{hostile}, Notices: []string{hostile}, Parked: 3, Stored: 2,
		Routes: []consumer.RouteStatus{{Name: "billing", State: control.StateWaiting, Why: hostile, Stream: hostile, Durable: hostile}},
	}
	return control.Answers{Instances: []consumer.Status{s}, Bad: []string{hostile}}, nil
}

func (f *fake) Routes(list []consumer.Status, now time.Time) []Route {
	until := now.Add(time.Minute)
	r := list[0].Routes[0]
	return []Route{{
		Name: "billing", State: r.State, First: r, Keys: map[string]int{"waiting": 1}, On: []On{{hostile, r}}, Backlog: &control.Backlog{Stream: 7},
		Still:   []Still{{State: r.State, Since: &now, Until: &until, Why: hostile, By: hostile, Next: hostile, On: 1}},
		Waiting: []Key{{hostile, control.KeyStatus{Key: hostile, State: "waiting", Why: hostile, Since: now, Until: &until}}},
	}}
}

func (f *fake) Order(context.Context, orders.Order) (string, error) {
	f.acts.Add(1)
	return hostile, nil
}
func (f *fake) Retries(context.Context, string, int) ([]Retry, bool, error) {
	return []Retry{{ID: hostile, Where: "parked", Subject: hostile, Error: hostile}}, true, nil
}
func (f *fake) DeadLetters(context.Context) (*dlq.Store, error) { return f.store, nil }
func (f *fake) Filter(_ context.Context, q url.Values) (dlq.Filter, []string, error) {
	if q.Get("reason") != "" {
		return dlq.Filter{}, nil, &UsageError{errors.New("--reason " + q.Get("reason"))}
	}
	return dlq.Filter{}, []string{"--error", q.Get("error")}, nil
}
func (f *fake) Plan(context.Context, *dlq.Job) (*dlq.Plan, []string, error) {
	return &dlq.Plan{Total: 2, Last: 9, Routes: map[string]int{hostile: 2}, Refused: 1, Reasons: map[string]int{hostile: 1}}, []string{hostile}, nil
}
func (f *fake) Start(context.Context, dlq.Job, []byte) (string, error) {
	f.acts.Add(1)
	return "j1", nil
}
func (f *fake) Resume(context.Context, string, string) error { f.acts.Add(1); return nil }
func (f *fake) Discard(context.Context, *dlq.Job) (int, error) {
	f.acts.Add(1)
	return 2, nil
}
func (f *fake) Jobs(context.Context) (*dlq.Jobs, error) { return nil, nil }
func (f *fake) Settings() Settings {
	return Settings{Service: "relay", Warnings: []string{hostile}, Values: []Setting{{"k", hostile}}, Routes: []RouteSetting{{"billing", []Setting{{"handler", hostile}}}}}
}
func (f *fake) Audit(string, string, string) {}
func (f *fake) Trace(ctx context.Context, message string) (*Life, error) {
	select {
	case <-time.After(f.traceTakes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if message == "NONE/1" {
		return nil, ErrNotFound
	}
	at := time.Now()
	return &Life{
		Stream: hostile, Sequence: 7, Consumer: hostile, Published: &at, Subject: hostile, Past: []Happening{{&at, hostile, hostile, hostile + secretResult}},
		Places: []Place{{Where: "dead", Text: hostile, Durable: hostile, Route: hostile, Due: &at, Next: hostile, Number: 5}},
	}, nil
}
func (f *fake) Archive() bool { return false }
func (f *fake) Outcomes(context.Context, string, string, int) (Outcomes, error) {
	at := time.Now()
	return Outcomes{[]Outcome{{Ended: at, Message: hostile, Stream: hostile, Outcome: hostile, Instance: hostile, Result: hostile + secretResult}}, &at}, nil
}
func (f *fake) Grid(_ context.Context, a control.Answers) Grid {
	at := time.Now()
	return Grid{
		Instances: []GridInstance{
			{Instance: a.Instances[0].Instance, State: "ready", Version: hostile, Started: &at, Holds: []string{hostile}, StandsBy: []string{hostile}},
			{Instance: hostile, State: "vanished", Version: hostile, Gone: &at, InHand: 2},
		},
		Routes: []GridRoute{{Route: "billing", Holder: hostile, Fence: 4, Standbys: []string{hostile}}, {Route: "orders", Of: 4, Partitions: map[string][]int{hostile: {0, 1, 2}}, Nobody: []int{3}}}, Limits: []GridLimit{{Limit: hostile, Concurrency: 3, Parts: map[string]float64{hostile: 3}}}, Notes: []string{hostile},
	}
}
func (f *fake) Handover(_ context.Context, o control.HandoverOrder) (string, error) {
	if o.From == "another" {
		return "", fmt.Errorf("it is elsewhere: %w", ErrConflict)
	}
	f.acts.Add(1)
	return hostile, nil
}

// secretResult is what a handler returned.
const secretResult = "4111-1111"

// visit is a console with somebody logged in.
type visit struct {
	t      *testing.T
	c      *Console
	f      *fake
	cookie *http.Cookie
}

func newVisit(t *testing.T, role Role) *visit {
	v := &visit{t: t, c: New(Config{Service: "relay"}), f: &fake{}}
	t.Cleanup(v.c.Close)
	v.c.Show(v.f)
	key, seal := NewKey()
	code, err := v.c.Code(role, hostile, seal)
	if err != nil {
		t.Fatal(err)
	}
	// Who reads the code on its way has not the key, and does not use the code up.
	other, _ := NewKey()
	for _, typed := range []string{code, WithKey(code, ""), WithKey(code, other), key} {
		if w := v.do("POST", "/login", url.Values{"code": {typed}}, nil); w.Code != http.StatusForbidden {
			t.Fatalf("login without the key: %d", w.Code)
		}
	}
	w := v.do("POST", "/login", url.Values{"code": {WithKey(code, key)}}, nil)
	if w.Code != http.StatusSeeOther || len(w.Result().Cookies()) != 1 {
		t.Fatalf("login: %d %s", w.Code, w.Body)
	}
	v.cookie = w.Result().Cookies()[0]
	if !v.cookie.HttpOnly || v.cookie.SameSite != http.SameSiteStrictMode || v.cookie.Name != "relay_8420" {
		t.Errorf("cookie %v", v.cookie)
	}
	if w := v.do("POST", "/login", url.Values{"code": {code}}, nil); w.Code != http.StatusForbidden {
		t.Errorf("the code is good twice: %d", w.Code)
	}
	return v
}

func (v *visit) do(method, target string, form url.Values, head http.Header) *httptest.ResponseRecorder {
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	r := httptest.NewRequestWithContext(v.t.Context(), method, target, body)
	r.Host = "127.0.0.1:8420"
	for name, values := range head {
		r.Header[name] = values
	}
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if v.cookie != nil {
		r.AddCookie(v.cookie)
	}
	w := httptest.NewRecorder()
	v.c.ServeHTTP(w, r)
	return w
}

// safe refuses a page in which something of a stranger became more than text.
func safe(t *testing.T, what, page string) {
	t.Helper()
	doc, err := html.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	unseen := func(s string) {
		if strings.ContainsAny(s, "\x1b\x00\u202e") {
			t.Errorf("%s: %q holds what cannot be seen", what, s)
		}
	}
	for n := range doc.Descendants() {
		if n.Type == html.TextNode && n.Parent.Data != "textarea" { // an editor gets a body as it is
			unseen(n.Data)
		}
		if n.Type != html.ElementNode {
			continue
		}
		if slices.Contains([]string{"img", "svg", "iframe", "object", "embed", "base", "style"}, n.Data) {
			t.Errorf("%s: <%s>", what, n.Data)
		}
		if n.Data == "script" && n.FirstChild != nil {
			t.Errorf("%s: a script with text", what)
		}
		for _, a := range n.Attr {
			if a.Key != "value" { // which comes back as it was
				unseen(a.Val)
			}
			value := strings.ToLower(strings.TrimSpace(a.Val))
			if strings.HasPrefix(a.Key, "on") || a.Key == "style" || (a.Key == "href" || a.Key == "src" || a.Key == "action") && !strings.HasPrefix(value, "/") {
				t.Errorf("%s: <%s %s=%q>", what, n.Data, a.Key, a.Val)
			}
		}
	}
}

// Stored XSS: names, reasons, errors and queries of strangers are text on every page, for browsers and as JSON; the policy of each
// page allows nothing but the console's own files.
func TestConsole_hostileTextsAreText(t *testing.T) {
	v := newVisit(t, Operate)
	q := "?error=" + url.QueryEscape(hostile) + "&like=3&number=" + url.QueryEscape(hostile)
	for _, path := range []string{
		"/", "/routes/billing", "/routes/" + url.PathEscape(hostile), "/dlq", "/dlq" + q, "/dlq?reason=" + url.QueryEscape(hostile), "/dlq/plan?error=" + url.QueryEscape(hostile),
		"/dlq/plan" + q, "/dlq/plan?act=" + url.QueryEscape(hostile), "/dlq/5", "/jobs", "/jobs/" + url.PathEscape(hostile), "/retries?route=" + url.QueryEscape(hostile), "/config", "/login",
		"/grid", "/trace", "/trace?message=" + url.QueryEscape(hostile) + "&route=billing", "/trace?route=" + url.QueryEscape(hostile),
		"/" + url.PathEscape(hostile),
	} {
		w := v.do("GET", path, nil, nil)
		if w.Header().Get("Content-Security-Policy") != policy || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") {
			t.Errorf("%s: %d %v", path, w.Code, w.Header())
		}
		safe(t, path, w.Body.String())
		j := v.do("GET", path, nil, http.Header{"Accept": {"application/json"}})
		if path != "/login" && (!json.Valid(j.Body.Bytes()) || j.Header().Get("Content-Type") != "application/json" || j.Code != w.Code) {
			t.Errorf("%s as JSON: %d %s", path, j.Code, j.Body)
		}
	}
	v.do("POST", "/routes/billing/pause", url.Values{"why": {hostile}}, nil)
	if w := v.do("GET", "/", nil, nil); !strings.Contains(w.Body.String(), `class="flash"`) {
		t.Error("what came of an act is not said")
	} else {
		safe(t, "what came of an act", w.Body.String())
	}
	if w := v.do("GET", "/", nil, nil); strings.Contains(w.Body.String(), `class="flash"`) {
		t.Error("what came of an act is said twice")
	}
	e := dlq.Entry{Data: []byte(hostile), Reason: hostile, Stack: []byte(hostile)}
	e.Route, e.Subject, e.LastError, e.Stream, e.Instance = hostile, hostile, hostile, hostile, hostile
	b := show([]byte(`{"` + "<script>" + `": ["<img src=x onerror=1>", 12345678901234567890]}`))
	r := httptest.NewRequestWithContext(t.Context(), "GET", "/dlq/1", nil)
	w := httptest.NewRecorder()
	v.c.render(w, r, &session{role: Operate}, 200, &answer{template: "letter", data: deadLetter{Entry: e, Headers: []header{{hostile, hostile}}, Body: b, Editable: true, Text: hostile}})
	if !strings.Contains(w.Body.String(), "12345678901234567890") {
		t.Error("a number lost its digits")
	}
	safe(t, "a dead letter", w.Body.String())
}

// Who has no session sees nothing, who may view changes nothing, and no page of another site acts for somebody who may.
func TestConsole_rolesAndOrigins(t *testing.T) {
	v := newVisit(t, View)
	nobody := &visit{t: t, c: v.c, f: v.f}
	fill := strings.NewReplacer("{route}", "billing", "{number}", "5", "{job}", "j1")
	form := url.Values{"last": {"9"}, "total": {"2"}, "from": {"a"}}
	for _, p := range v.c.pages() {
		path := fill.Replace(p.path)
		if p.open {
			continue
		}
		head := http.Header{"Accept": {"application/json"}}
		if w := nobody.do(p.method, path, form, head); w.Code != http.StatusUnauthorized {
			t.Errorf("%s %s without a session: %d", p.method, path, w.Code)
		}
		if p.role == Operate {
			if w := v.do(p.method, path, form, head); w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "may view") {
				t.Errorf("%s %s by who may view: %d %s", p.method, path, w.Code, w.Body)
			}
		}
		if p.method == "POST" && p.role == View && path != "/logout" {
			t.Errorf("%s is for those who may view", path)
		}
	}
	if w := nobody.do("GET", "/", nil, nil); w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/login" {
		t.Errorf("a browser without a session: %d", w.Code)
	}
	op := newVisit(t, Operate)
	for _, head := range []http.Header{
		{"Sec-Fetch-Site": {"cross-site"}}, {"Sec-Fetch-Site": {"same-site"}}, {"Origin": {"http://evil.test"}}, {"Origin": {"http://127.0.0.1:9999"}},
	} {
		if w := op.do("POST", "/routes/billing/pause", form, head); w.Code != http.StatusForbidden {
			t.Errorf("from another site, %v: %d", head, w.Code)
		}
	}
	if n := op.f.acts.Load() + v.f.acts.Load(); n != 0 {
		t.Fatalf("%d acts went through", n)
	}
	for _, path := range []string{"/routes/billing/pause", "/routes/billing/resume", "/routes/billing/handover", "/dlq/replay", "/dlq/discard", "/jobs/j1/resume"} {
		if w := op.do("POST", path, form, http.Header{"Origin": {"http://127.0.0.1:8420"}}); w.Code != http.StatusSeeOther {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	if n := op.f.acts.Load(); n != 6 {
		t.Errorf("%d acts, want 6", n)
	}
	// An act is bound to what was shown.
	for _, f := range []url.Values{{}, {"last": {"9"}}, {"last": {"9"}, "total": {"1"}}, {"last": {"x"}, "total": {"2"}}} {
		if w := op.do("POST", "/dlq/discard", f, nil); w.Code != http.StatusBadRequest && w.Code != http.StatusConflict {
			t.Errorf("discard with %v: %d", f, w.Code)
		}
	}
	for from, want := range map[string]int{"": http.StatusBadRequest, "another": http.StatusConflict} {
		if w := op.do("POST", "/routes/billing/handover", url.Values{"from": {from}}, nil); w.Code != want {
			t.Errorf("a handover from %q: %d, want %d", from, w.Code, want)
		}
	}
	if n := op.f.acts.Load(); n != 6 {
		t.Errorf("%d acts after those that are not bound", n)
	}
	op.do("POST", "/logout", form, nil)
	if w := op.do("GET", "/dlq", nil, nil); w.Code != http.StatusSeeOther {
		t.Errorf("after logging out: %d", w.Code)
	}
	if _, err := New(Config{Most: View}).Code(Operate, "eve", Seal{}); err == nil {
		t.Error("a console for viewing gives a code to operate")
	}
}

// Who may only view gets nothing of a body, headers or a stack: not by a page, not as JSON, and not by asking what matches.
func TestConsole_viewersReadNoBodies(t *testing.T) {
	js, err := jetstream.New(natstest.Start(t).Conn(t))
	if err != nil {
		t.Fatal(err)
	}
	store, err := dlq.Open(t.Context(), js, dlq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	const secret = "4111-1111"
	e := dlq.Entry{Header: nats.Header{"X-Card": {secret}}, Data: []byte(secret), Stack: []byte("panic: " + secret), Reason: dlq.Crash}
	e.Stream, e.Consumer, e.Sequence, e.Subject, e.Route, e.Attempts, e.LastError = "ORDERS", "billing", 1, "orders.1", "billing", 1, "it panicked"
	if err := store.Put(t.Context(), "", e); err != nil {
		t.Fatal(err)
	}
	for _, role := range []Role{View, Operate} {
		v := newVisit(t, role)
		v.f.store = store
		for _, accept := range []string{"text/html", "application/json"} {
			for path, want := range map[string]int{"/dlq": 200, "/dlq/1": 200, "/dlq?body=.card~^4": 403, "/dlq?body=": 200} {
				if role == Operate {
					want = 200
				}
				w := v.do("GET", path, nil, http.Header{"Accept": {accept}})
				if w.Code != want {
					t.Errorf("%s gets %s as %s: %d %s", role, path, accept, w.Code, w.Body)
				}
				if role == View && strings.Contains(w.Body.String(), secret) {
					t.Errorf("%s sees in %s as %s: %s", role, path, accept, w.Body)
				}
				if role == Operate && path == "/dlq/1" && !strings.Contains(w.Body.String(), secret) {
					t.Errorf("%s does not see it in %s as %s: %s", role, path, accept, w.Body)
				}
				if w.Code == 200 && !strings.Contains(w.Body.String(), "it panicked") {
					t.Errorf("%s sees no error in %s as %s: %s", role, path, accept, w.Body)
				}
			}
		}
	}
}

// What a handler returned may be in the archive: it is as secret as bodies are.
func TestConsole_viewersReadNoResults(t *testing.T) {
	for _, role := range []Role{View, Operate} {
		v := newVisit(t, role)
		for _, accept := range []string{"text/html", "application/json"} {
			for _, path := range []string{"/trace?message=ORDERS/7", "/trace?route=billing"} {
				w := v.do("GET", path, nil, http.Header{"Accept": {accept}})
				if w.Code != 200 || strings.Contains(w.Body.String(), secretResult) != (role == Operate) {
					t.Errorf("%s gets %s as %s: %d %s", role, path, accept, w.Code, w.Body)
				}
			}
		}
	}
}

// One message is traced at a time, however many ask: a trace may go through all that is stored. Who waits for too long hears it.
func TestConsole_oneTraceAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVisit(t, View)
		v.f.traceTakes = slow / 4
		began, good, late := time.Now(), atomic.Int64{}, atomic.Int64{}
		var wait sync.WaitGroup
		for range 7 {
			wait.Go(func() {
				switch w := v.do("GET", "/trace?message=ORDERS/7", nil, nil); w.Code {
				case http.StatusOK:
					good.Add(1)
				case http.StatusServiceUnavailable:
					late.Add(1)
				default:
					t.Errorf("%d %s", w.Code, w.Body)
				}
			})
		}
		wait.Wait()
		// The fourth ends in the moment in which the time of all is over.
		if n := good.Load(); n < 3 || n > 4 || late.Load() != 7-n || time.Since(began) != slow {
			t.Errorf("%d in %v, %d too late", n, time.Since(began), late.Load())
		}
		if w := v.do("GET", "/trace?message=ORDERS/7", nil, nil); w.Code != http.StatusOK {
			t.Errorf("afterwards: %d", w.Code)
		}
	})
}

// Close ends the question under way, and no other begins.
func TestConsole_Close(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, c := time.Now(), New(Config{})
		asked := 0
		c.status.ask = func(ctx context.Context) (control.Answers, error) {
			asked++
			<-ctx.Done()
			return control.Answers{}, ctx.Err()
		}
		said := make(chan error, 1)
		go func() {
			_, _, err := c.status.get(t.Context(), time.Time{})
			said <- err
		}()
		synctest.Wait()
		c.Close()
		if err := <-said; !errors.Is(err, errClosed) {
			t.Errorf("who waits hears %v", err)
		}
		time.Sleep(2 * fresh)
		if _, _, err := c.status.get(t.Context(), time.Now()); !errors.Is(err, errClosed) || asked != 1 || time.Since(began) != 2*fresh {
			t.Errorf("afterwards: %v, asked %d times, after %v", err, asked, time.Since(began))
		}
	})
}

func TestConsole_otherPathsAndFiles(t *testing.T) {
	v := newVisit(t, Operate)
	for target, want := range map[string]int{
		"/dlq/": 404, "//dlq": 404, "/./dlq": 404, "/x": 404, "/assets/console.css": 404, "/assets/" + assetsHash + "/../console.go": 404,
		"/assets/" + assetsHash + "/console.css": 200, "/assets/" + assetsHash + "/console.js": 200, "/routes/nosuch": 404, "/dlq/5": 404, "/jobs/j9": 404, "/trace?message=NONE/1": 404, "/trace?route=nosuch": 404, "/dlq/x": 404,
	} {
		if w := v.do("GET", target, nil, nil); w.Code != want {
			t.Errorf("%s: %d, want %d", target, w.Code, want)
		}
	}
	if w := v.do("DELETE", "/dlq", nil, nil); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("DELETE: %d", w.Code)
	}
	starting := New(Config{})
	key, seal := NewKey()
	code, _ := starting.Code(View, "x", seal)
	v = &visit{t: t, c: starting}
	v.cookie = v.do("POST", "/login", url.Values{"code": {WithKey(code, key)}}, nil).Result().Cookies()[0]
	if w := v.do("GET", "/", nil, nil); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "starting") {
		t.Errorf("while relay starts: %d", w.Code)
	}
}

// Twenty pages that are open for a minute ask once a second together, and hear of nothing when nothing changes.
func TestConsole_manyPagesAskOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVisit(t, View)
		ctx, cancel := context.WithCancel(t.Context())
		var bodies []*httptest.ResponseRecorder
		for range 20 {
			r := httptest.NewRequestWithContext(ctx, "GET", "/events?topic=status", nil)
			r.Host = "127.0.0.1:8420"
			r.AddCookie(v.cookie)
			w := httptest.NewRecorder()
			bodies = append(bodies, w)
			go v.c.ServeHTTP(w, r)
		}
		time.Sleep(time.Minute)
		cancel()
		synctest.Wait()
		if n := v.f.asked.Load(); n > 62 {
			t.Errorf("asked %d times in a minute", n)
		}
		for _, w := range bodies {
			if n := strings.Count(w.Body.String(), "event: changed"); n != 1 {
				t.Errorf("%d changes: %s", n, w.Body)
			}
		}
	})
}

// Sessions end, and there is a bound on codes and sessions.
func TestSessions_end(t *testing.T) {
	s, now := newSessions(), time.Now()
	key, seal := NewKey()
	code := func(role Role, by string) string {
		t.Helper()
		c, err := s.code(role, by, seal, now)
		if err != nil {
			t.Fatal(err)
		}
		return WithKey(c, key)
	}
	if _, ok := s.login(code(View, "eve"), now.Add(codeLife+1)); ok {
		t.Error("an old code is good")
	}
	secret, _ := s.login(code(View, "eve"), now)
	if s.get(secret, now.Add(sessionLife-1)) == nil || s.get(secret, now.Add(sessionLife)) != nil {
		t.Error("a session does not end in time")
	}
	ann, _ := s.login(code(Operate, "ann"), now)
	bob, _ := s.login(code(View, "bob"), now)
	for range 2 * maxSessions {
		now = now.Add(codeLife)
		if _, ok := s.login(code(View, "eve"), now); !ok {
			t.Fatal("a new code is not good")
		}
	}
	if len(s.open) > maxSessions+1 || len(s.codes) > 1 {
		t.Errorf("%d sessions, %d codes", len(s.open), len(s.codes))
	}
	if s.get(ann, now) == nil || s.get(bob, now) == nil {
		t.Error("one who logs in often ends the sessions of others")
	}
}

// Whoever may view asks for more codes than there is room for, by one name and by many: those that operators got stay good, operators
// get new ones, and what one name asks for is no other's. Before, there was one pool of 32, whose oldest went.
func TestSessions_regressionCodesToViewEvictThoseToOperate(t *testing.T) {
	s, now := newSessions(), time.Now()
	key, seal := NewKey()
	operator, err := s.code(Operate, "ann", seal, now)
	if err != nil {
		t.Fatal(err)
	}
	for range 40 {
		_, err = s.code(View, "ann", seal, now) // by the same name: anybody can give it
	}
	if !errors.Is(err, errTooManyCodes) {
		t.Errorf("the 40th code of one asker: %v", err)
	}
	viewer, err := s.code(View, "bob", seal, now)
	if err != nil {
		t.Errorf("another asker: %v", err)
	}
	for i := range 400 {
		_, err = s.code(View, strconv.Itoa(i), seal, now)
	}
	if !errors.Is(err, errTooManyCodes) || len(s.codes) > maxCodes+1 {
		t.Errorf("the last of 400 askers: %v; %d codes", err, len(s.codes))
	}
	for _, code := range []string{operator, viewer} {
		if _, ok := s.login(WithKey(code, key), now); !ok {
			t.Error("a code that was given is not good any more")
		}
	}
	if _, err := s.code(Operate, "ann", seal, now); err != nil {
		t.Errorf("an operator meanwhile: %v", err)
	}
	if _, err := s.code(View, "cid", seal, now.Add(codeLife-1)); !errors.Is(err, errTooManyCodes) {
		t.Errorf("within the minute: %v", err)
	}
	if _, err := s.code(View, "cid", seal, now.Add(codeLife)); err != nil {
		t.Errorf("a minute later: %v", err)
	}
}

// zeros is a body without an end that counts what is read of it.
type zeros struct{ n int }

func (z *zeros) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = '0'
	}
	z.n += len(b)
	return len(b), nil
}

// Before a session nobody has relay take more than a code into memory, whatever the method and the path. It was 9 MiB for each
// connection that posts to /login.
func TestConsole_regressionBodiesBeforeASession(t *testing.T) {
	c := New(Config{})
	defer c.Close()
	c.Show(&fake{})
	for _, p := range c.pages() {
		for _, method := range []string{"GET", "POST", "PUT"} {
			for _, kind := range []string{"application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain"} {
				body := &zeros{}
				r := httptest.NewRequestWithContext(t.Context(), method, p.path, io.MultiReader(strings.NewReader("code="), body))
				r.Host = "127.0.0.1:8420"
				r.Header.Set("Content-Type", kind)
				w := httptest.NewRecorder()
				c.ServeHTTP(w, r)
				if body.n > 8<<10 {
					t.Errorf("%s %s, %s: %d bytes of the body were read", method, p.path, kind, body.n)
				}
				if want := http.StatusRequestEntityTooLarge; method == "POST" && p.path == "/login" && strings.Contains(kind, "urlencoded") && w.Code != want {
					t.Errorf("POST /login: %d, want %d", w.Code, want)
				}
			}
		}
	}
}

// A login whose body does not come ends soon, also where the listener itself has no bound.
func TestConsole_slowLogin(t *testing.T) {
	c := New(Config{})
	defer c.Close()
	s := httptest.NewServer(c)
	defer s.Close()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	began := time.Now()
	_ = conn.SetDeadline(began.Add(loginTime + 10*time.Second))
	fmt.Fprintf(conn, "POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\ncode=")
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") {
		t.Errorf("after %v: %v %.40q", time.Since(began), err, answer)
	}
}

// Codes that are not good are in the log: the first at once, and a storm of them in few lines that say how many.
func TestConsole_wrongCodesAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		v := &visit{t: t, c: New(Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}), f: &fake{}}
		defer v.c.Close()
		try := func() {
			if w := v.do("POST", "/login", url.Values{"code": {"SECRETGUESS"}}, nil); w.Code != http.StatusForbidden {
				t.Fatalf("%d", w.Code)
			}
		}
		try()
		if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "times=1") || !strings.Contains(log.String(), "remote=192.0.2.1") {
			t.Errorf("the first: %s", &log)
		}
		for range 1000 {
			try()
		}
		time.Sleep(wrongEvery)
		try()
		if n := strings.Count(log.String(), "\n"); n != 2 || !strings.Contains(log.String(), "times=1001") || strings.Contains(log.String(), "GUESS") {
			t.Errorf("%d lines: %s", n, &log)
		}
	})
}

// docs/openapi.json has what there is, and nothing else.
func TestPages_areDocumented(t *testing.T) {
	b, err := os.ReadFile("../../../../docs/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]struct{ Summary string }
	}
	if err := json.Unmarshal(b, &doc); err != nil || !strings.HasPrefix(doc.OpenAPI, "3.") {
		t.Fatal(err, doc.OpenAPI)
	}
	n := 0
	for _, p := range New(Config{}).pages() {
		n++
		if got := doc.Paths[p.path][strings.ToLower(p.method)].Summary; got != p.summary {
			t.Errorf("%s %s: summary %q, want %q", p.method, p.path, got, p.summary)
		}
	}
	for _, methods := range doc.Paths {
		n -= len(methods)
	}
	if n != 0 {
		t.Errorf("docs/openapi.json has %d more than there are", -n)
	}
}

func TestQuote_canBePasted(t *testing.T) {
	for in, want := range map[string]string{
		"orders.eu": "orders.eu", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "$(rm -rf /)": "'$(rm -rf /)'", "a\nb": `$'a\x0ab'`, "\u202e'": `$'\xe2\x80\xae\x27'`, "\xff": `$'\xff'`,
	} {
		if got := quote(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}
