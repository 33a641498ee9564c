// Package browser drives the console in Chromium: make console.
package browser

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

const patience = 60 * time.Second

// service is a relay with an endpoint that can be down.
type service struct {
	t     *testing.T
	dir   string
	relay string
	down  atomic.Bool
}

func start(t *testing.T) *service {
	s := &service{t: t, dir: t.TempDir()}
	var err error
	if s.relay, err = filepath.Abs("../../bin/relay"); err != nil {
		t.Fatal(err)
	}
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.Header.Get("Relay-Subject"), ".bad") {
			http.Error(w, `<script>window.pwned=1</script><img src=x onerror="window.pwned=2">`, http.StatusUnprocessableEntity)
		} else if s.down.Load() {
			http.Error(w, "payment gateway is down", http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(hook.Close)
	config := fmt.Sprintf(`
nats: {embedded: {listen: "%s", store_dir: ./data}}
admin: {listen: "%s"}
streams: [{name: ORDERS, subjects: [orders.>]}]
routes:
  - name: billing
    subjects: [orders.>]
    start: all
    key: route
    handler: {http: {url: "%s"}}
    retry: {min: 200ms, max: 1s}
    supervisor: {trip_after: 2, restart: {min: 2s, max: 3s}}
`, free(t), free(t), hook.URL)
	if err := os.WriteFile(filepath.Join(s.dir, "relay.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	run := exec.Command(s.relay, "run")
	run.Dir, run.Stderr = s.dir, os.Stderr
	if err := run.Start(); err != nil {
		t.Fatalf("%v: make build first", err)
	}
	t.Cleanup(func() {
		_ = run.Process.Signal(syscall.SIGTERM)
		_ = run.Wait()
	})
	return s
}

func free(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// call runs a command of relay until it succeeds: relay may be starting.
func (s *service) call(args ...string) string {
	s.t.Helper()
	var said []byte
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		c := exec.Command(s.relay, args...)
		c.Dir = s.dir
		out, err := c.CombinedOutput()
		if err == nil {
			return strings.TrimSpace(string(out))
		}
		said = out
	}
	s.t.Fatalf("relay %s: %s", strings.Join(args, " "), said)
	return ""
}

// complaints are what a page writes to the browser's log: errors of scripts, and what the policy of the page refuses.
type complaints struct {
	mu   sync.Mutex
	list []string
}

func (c *complaints) add(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, text)
}

func TestConsole_inABrowser(t *testing.T) {
	s := start(t)
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true))
	alloc, end := chromedp.NewExecAllocator(context.Background(), opts...)
	defer end()
	ctx, endTab := chromedp.NewContext(alloc)
	defer endTab()
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	var said complaints
	chromedp.ListenTarget(ctx, func(ev any) {
		switch e := ev.(type) {
		case *log.EventEntryAdded:
			said.add(e.Entry.Text + " " + e.Entry.URL)
		case *runtime.EventExceptionThrown:
			said.add(e.ExceptionDetails.Error())
		}
	})
	do := func(what string, actions ...chromedp.Action) {
		t.Helper()
		if err := chromedp.Run(ctx, actions...); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	visible := func(selector string) chromedp.Action { return chromedp.WaitVisible(selector, chromedp.ByQuery) }

	link := s.call("ui")
	base, _, _ := strings.Cut(link, "/login")
	do("log in", log.Enable(), chromedp.Navigate(link), visible("#routes table"))

	// An outage, a key that waits with a countdown, and the recovery, on a page that nobody reloads.
	do("the route", chromedp.Navigate(base+"/routes/billing"), visible("#keys .empty"))
	s.down.Store(true)
	for range 3 {
		s.call("pub", "orders.eu", "{}")
	}
	do("the key waits", visible("#keys .state.waiting, #keys .state.probing"), visible("#keys time[data-in]"))

	// What the operator writes stays, whatever happens meanwhile.
	var wrote string
	var focused bool
	do("writing", chromedp.Click("#act-pause summary", chromedp.ByQuery), chromedp.SendKeys("#act-pause input[name=why]", "database migration", chromedp.ByQuery))
	s.down.Store(false)
	do("the recovery is followed", visible("#keys .empty"),
		chromedp.Value("#act-pause input[name=why]", &wrote, chromedp.ByQuery),
		chromedp.Evaluate(`document.activeElement.name === "why" && document.getElementById("act-pause").open`, &focused))
	if wrote != "database migration" || !focused {
		t.Errorf("what was being written: %q, focused %v", wrote, focused)
	}
	do("pause", chromedp.Click("#act-pause button.bad", chromedp.ByQuery), visible(".flash"), visible("#state .state.paused"))
	do("resume", chromedp.Click("#act-resume summary", chromedp.ByQuery), chromedp.Click("#act-resume form button", chromedp.ByQuery), visible("#state .state.flowing"))

	// What a stranger wrote is text; a box that is ticked stays so.
	do("no dead letters yet", chromedp.Navigate(base+"/dlq"), visible("#groups .empty"))
	s.call("pub", "orders.bad", `{"name": "<img src=x onerror=window.pwned=3>"}`)
	do("it appears", visible("#groups td"))
	do("its list", chromedp.Navigate(base+"/dlq"), chromedp.Click("#list input[type=checkbox]", chromedp.ByQuery))
	s.call("pub", "orders.bad", `{"name": "another"}`)
	var ticked bool
	do("the sum follows, the list does not", chromedp.Poll(`document.querySelector("#sum b").textContent === "2"`, nil),
		chromedp.Evaluate(`document.querySelectorAll("#list input:checked").length === 1 && document.querySelectorAll("#list tbody tr").length === 1`, &ticked))
	if !ticked {
		t.Error("a list with a ticked box was swapped")
	}
	var pwned bool
	do("one dead letter", chromedp.Navigate(base+"/dlq/1"), visible(".tree"), chromedp.Evaluate(`window.pwned !== undefined`, &pwned))
	if pwned {
		t.Error("a script of a stranger ran")
	}

	// It can be read without JavaScript.
	var text string
	do("without JavaScript", emulation.SetScriptExecutionDisabled(true), chromedp.Navigate(base+"/"), chromedp.Text("#routes", &text, chromedp.ByQuery))
	if !strings.Contains(text, "billing") {
		t.Errorf("the overview says %q", text)
	}
	said.mu.Lock()
	defer said.mu.Unlock()
	for _, text := range said.list {
		t.Errorf("the browser complains: %s", text)
	}
}
