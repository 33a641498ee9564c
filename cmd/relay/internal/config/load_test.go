package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler/exec"
	"github.com/relaymq/relay/consumer/handler/http"
	"github.com/relaymq/relay/internal/race"
)

// write makes a file and returns its path.
func write(t testing.TB, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func load(t *testing.T, text string, opts Options) *Config {
	t.Helper()
	opts.File = write(t, text)
	cfg, err := Load(opts)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// tooLong is far above the second that S-42 allows (the worst file here takes 0.8 s), so that the race detector on a busy
// machine does not fail, and far below what a quadratic step takes at these sizes.
const tooLong = 10 * time.Second

const minimal = `
routes:
  - {name: billing, subjects: [orders.*.created], start: all, handler: discard}
  - {name: big-orders, subjects: [orders.*.big], start: new, handler: {exec: {command: [sh]}}}
`

func TestLoad_layersWinInTheirOrder(t *testing.T) {
	file := "drain: 1s\nservice: file\nlog: {level: debug}\n" + minimal
	cfg := load(t, file, Options{
		Env: []string{"RELAY_DRAIN=2s", "RELAY_SERVICE=env"},
		Set: []string{"drain=3s"},
	})
	if cfg.Drain != 3*time.Second || cfg.Service != "env" || cfg.Log.Level != "debug" || cfg.Log.Format != "auto" {
		t.Errorf("drain %v, service %s, log %+v", cfg.Drain, cfg.Service, cfg.Log)
	}
}

func TestLoad_fillsWhatIsLeftOut(t *testing.T) {
	cfg := load(t, "service: shop\n"+minimal, Options{})
	r := cfg.Routes[0]
	if r.Durable != "billing" || r.Concurrency != 64 || r.DeadLetter.Prefix != "shop.dlq" || *r.Supervisor.TripAfter != 5 {
		t.Errorf("route %+v", r)
	}
	if got := cfg.Routes[1].Handler.Config().(exec.Config).Grace; got != 500*time.Millisecond {
		t.Errorf("grace of the exec handler: %v", got)
	}
}

func TestLoad_defaultsLieUnderEachRoute(t *testing.T) {
	cfg := load(t, `
defaults:
  start: {seq: 7}
  timeout: 5s
  retry: {max: 1m, jitter: 0, delays: [1s, 2s]}
  supervisor: {trip_after: 0, forward_during_grace: false}
  handler: {exec: {env: {A: "1", B: "1"}}, http: {connect_timeout: 1s}}
routes:
  - name: a
    subjects: [a.*]
    start: all
    timeout: 6s
    retry: {min: 2s, delays: [3s]}
    supervisor: {trip_after: 1}
    handler: {exec: {command: [sh], env: {B: "2"}}}
  - {name: b, subjects: [b.*], handler: {http: {url: "http://127.0.0.1/"}}}
  - {name: c, subjects: [c.*], handler: discard}
`, Options{})
	a, b, c := cfg.Routes[0], cfg.Routes[1], cfg.Routes[2]
	if a.Start.Policy != "all" || b.Start != (consumer.Start{Policy: "seq", Seq: 7}) {
		t.Errorf("start: %v and %v", a.Start, b.Start)
	}
	if a.Timeout != 6*time.Second || b.Timeout != 5*time.Second {
		t.Errorf("timeout: %v and %v", a.Timeout, b.Timeout)
	}
	if a.Retry.Min != 2*time.Second || a.Retry.Max != time.Minute || *a.Retry.Jitter != 0 {
		t.Errorf("retry: %+v", a.Retry)
	}
	if diff := cmp.Diff([]time.Duration{3 * time.Second}, a.Retry.Delays); diff != "" {
		t.Errorf("a list is replaced as a whole: %s", diff)
	}
	if *a.Supervisor.TripAfter != 1 || *b.Supervisor.TripAfter != 0 || *a.Supervisor.ForwardDuringGrace {
		t.Errorf("supervisor: %+v", a.Supervisor)
	}
	if diff := cmp.Diff(map[string]string{"A": "1", "B": "2"}, a.Handler.Config().(exec.Config).Env); diff != "" {
		t.Errorf("env: %s", diff)
	}
	if got := b.Handler.Config().(http.Config).ConnectTimeout; got != time.Second {
		t.Errorf("connect_timeout of the http route: %v", got)
	}
	if got := c.Handler.given; len(got) != 1 || got[0] != "discard" {
		t.Errorf("handlers of c: %v", got)
	}
}

func TestLoad_overridesByPositionAndName(t *testing.T) {
	for name, opts := range map[string]Options{
		"flag, by position":     {Set: []string{"routes.1.concurrency=8"}},
		"flag, by name":         {Set: []string{"routes.big-orders.concurrency=8"}},
		"variable, by position": {Env: []string{"RELAY_ROUTES__1__CONCURRENCY=8"}},
		"variable, by name":     {Env: []string{"RELAY_ROUTES__BIG_ORDERS__CONCURRENCY=8"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := load(t, minimal, opts)
			if a, b := cfg.Routes[0].Concurrency, cfg.Routes[1].Concurrency; a != 64 || b != 8 {
				t.Errorf("concurrency %d and %d, want 64 and 8", a, b)
			}
		})
	}
}

func TestLoad_overrideValues(t *testing.T) {
	secret := write(t, "from a file\r\n")
	cfg := load(t, minimal, Options{Set: []string{
		"nats.url=nats://a:1, tls://b",
		"nats.password={not a mapping}",
		"nats.user.file=" + secret,
		"streams=[{name: S, subjects: [orders.>], max_bytes: 1GiB}]",
		"streams.S.max_msgs=9",
		"routes.0.subjects=a.*, *.b.c",
		"routes.0.retry={policy: schedule, delays: [1s, 2s]}",
		"routes.0.start.since=2026-01-31T00:00:00Z",
		"routes.0.supervisor.forward_during_grace=false",
		"routes.0.supervisor.drain_grace=0",
		"routes.0.retry.jitter=1",
		"routes.0.stream=S2",
		"routes.1.start={seq: 5}",
		"routes.1.stash.bytes=2MiB",
		"routes.1.handler.exec.env.A=x=y",
		"routes.1.handler.exec.command=[sh, '-c', 'a,b']",
		"admin.listen=",
	}, Env: []string{"RELAY_ROUTES__1__HANDLER__EXEC__ENV__PATH=/bin"}})
	r, q := cfg.Routes[0], cfg.Routes[1]
	for _, c := range []struct {
		key       string
		got, want any
	}{
		{"nats.url", cfg.NATS.URL.String(), "nats://a:1,tls://b"},
		{"nats.user", cfg.NATS.User.Reveal(), "from a file"},
		{"nats.password", cfg.NATS.Password.Reveal(), "{not a mapping}"},
		{"streams", cfg.Streams, []Stream{{Name: "S", Subjects: []string{"orders.>"}, MaxBytes: 1 << 30, MaxMsgs: 9}}},
		{"routes.0.subjects", r.Subjects, []string{"a.*", "*.b.c"}},
		{"routes.0.retry.delays", r.Retry.Delays, []time.Duration{time.Second, 2 * time.Second}},
		{"routes.0.retry.jitter", *r.Retry.Jitter, 1.0},
		{"routes.0.start", r.Start.String(), "since:2026-01-31T00:00:00Z"},
		{"routes.0.supervisor.forward_during_grace", *r.Supervisor.ForwardDuringGrace, false},
		{"routes.0.supervisor.drain_grace", *r.Supervisor.DrainGrace, time.Duration(0)},
		{"routes.0.stream", r.Stream, "S2"},
		{"routes.1.start", q.Start.String(), "seq:5"},
		{"routes.1.stash.bytes", q.Stash.Bytes, consumer.Bytes(2 << 20)},
		{"routes.1.handler.exec.env", q.Handler.Config().(exec.Config).Env, map[string]string{"A": "x=y", "PATH": "/bin"}},
		{"routes.1.handler.exec.command", q.Handler.Config().(exec.Config).Command, []string{"sh", "-c", "a,b"}},
		{"admin.listen", cfg.Admin.Listen, ""},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.key, diff)
		}
	}
}

// Names of headers may hold the dot that parts a path.
func TestLoad_dotsInNames(t *testing.T) {
	cfg := load(t, `routes: [{name: a, subjects: [a], handler: {http: {url: "http://127.0.0.1/", headers: {X.One: 1}}}}]`,
		Options{Set: []string{"routes.a.handler.http.headers.X.Two=2"}})
	if diff := cmp.Diff(map[string]string{"X.One": "1", "X.Two": "2"}, cfg.Routes[0].Handler.Config().(http.Config).Headers); diff != "" {
		t.Error(diff)
	}
}

func TestLoad_aWholeListReplacesAWholeList(t *testing.T) {
	cfg := load(t, minimal, Options{
		Env: []string{"RELAY_ROUTES=[{name: only, subjects: [x.*], handler: discard}]"},
		Set: []string{"routes.only.timeout=1s"},
	})
	if len(cfg.Routes) != 1 || cfg.Routes[0].Name != "only" || cfg.Routes[0].Timeout != time.Second {
		t.Errorf("routes: %+v", cfg.Routes)
	}
}

// The environment is not sorted, and RELAY_LOG sets keys that RELAY_LOG__LEVEL sets too.
func TestLoad_theLongerVariableWins(t *testing.T) {
	for _, env := range [][]string{
		{"RELAY_LOG={level: debug, format: json}", "RELAY_LOG__LEVEL=warn"},
		{"RELAY_LOG__LEVEL=warn", "RELAY_LOG={level: debug, format: json}"},
	} {
		if got := load(t, minimal, Options{Env: env}).Log; got != (Log{Level: "warn", Format: "json", Burst: 20}) {
			t.Errorf("%v: %+v", env, got)
		}
	}
}

func TestLoad_aKeyWithoutValueSaysNothing(t *testing.T) {
	cfg := load(t, "service:\nlog:\n  # level: debug\ndefaults:\n"+minimal, Options{})
	if cfg.Service != "relay" || cfg.Log.Level != "info" {
		t.Errorf("service %q, log %+v", cfg.Service, cfg.Log)
	}
}

func TestLoad_waysToWriteIt(t *testing.T) {
	for name, text := range map[string]string{
		"discard as a word":        "handler: discard",
		"discard as a mapping":     "handler: {discard: {}}",
		"discard without value":    "handler:\n    discard:",
		"since as a YAML time":     "start: {since: 2026-01-31T00:00:00Z}\n  handler: discard",
		"since as text":            "start: since:2026-01-31T00:00:00Z\n  handler: discard",
		"a size as a number":       "stash: {bytes: 1048576}\n  handler: discard",
		"a duration of zero":       "supervisor: {drain_grace: 0}\n  handler: discard",
		"numbers in a program env": "handler: {exec: {command: [x], env: {PORT: 8080, ON: true}}}",
	} {
		t.Run(name, func(t *testing.T) {
			load(t, "routes:\n- name: a\n  subjects: [a.*]\n  "+text+"\n", Options{})
		})
	}
}

func TestLoad_adminListenOff(t *testing.T) {
	if got := load(t, "admin: {listen: off, probes: off}\n"+minimal, Options{}).Admin; got != (Admin{UI: UIOperate}) {
		t.Errorf("%+v", got)
	}
	if got := load(t, "admin: {probes: '0.0.0.0:8421'}\n"+minimal, Options{}).Admin.Probes; got != "0.0.0.0:8421" {
		t.Errorf("probes %q", got)
	}
}

func TestLoad_withoutAFile(t *testing.T) {
	cfg, err := Load(Options{Set: []string{"routes=[{name: a, subjects: [a], handler: discard}]"}})
	if err != nil || len(cfg.Routes) != 1 {
		t.Fatalf("%+v, %v", cfg, err)
	}
}

func TestLoad_filesThatAreNone(t *testing.T) {
	dir := t.TempDir()
	huge := filepath.Join(dir, "huge")
	if err := os.WriteFile(huge, []byte(strings.Repeat("#", maxFile+1)), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		dir:                         "cannot read the configuration: is a directory",
		filepath.Join(dir, "gone"):  "cannot read the configuration: no such file or directory",
		huge:                        "cannot read the configuration: is larger than 1048576 bytes",
		filepath.Join(huge, "file"): "cannot read the configuration: not a directory",
	} {
		_, err := Load(Options{File: file})
		var faults Faults
		if !errors.As(err, &faults) || len(faults) != 1 || faults[0] != (Fault{File: file, Msg: want}) {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// hostile are files whose check must end soon, at the sizes that are allowed.
func hostile() map[string]string {
	fill := func(head string, one func(i int) string) string {
		var b strings.Builder
		b.WriteString(head)
		for i := 0; ; i++ {
			s := one(i)
			if b.Len()+len(s) > maxFile {
				return b.String()
			}
			b.WriteString(s)
		}
	}
	same := func(s string) func(int) string { return func(int) string { return s } }
	some := func(n int, one func(i int) string) func(int) string {
		return func(i int) string {
			if i >= n {
				return strings.Repeat("#", maxFile)
			}
			return one(i)
		}
	}
	deep, stars := strings.Repeat("a.", 14), strings.Repeat("*.", 14)
	return map[string]string{
		"flow lists":     fill("a: ", same("[")),
		"flow mappings":  fill("a: ", same("{a: ")),
		"block lists":    fill("a:\n", same("- ")),
		"indentation":    fill("", func(i int) string { return strings.Repeat(" ", i) + "a:\n" }),
		"questions":      fill("", same("? ")),
		"comments":       fill("a: 1\n", same("#\n")),
		"anchors":        fill("a: [", same("&a x, ")),
		"aliases":        fill("a: &a [x]\nb: [", same("*a, ")),
		"unknown keys":   fill("", func(i int) string { return fmt.Sprintf("serv%d: 1\n", i) }),
		"one key, often": fill("", same("log:\n")),
		"a long scalar":  fill("service: \"", same("x")) + "\"",
		"a long name":    fill("routes:\n- name: ", same("x")),
		"subjects":       fill("routes:\n- subjects:\n", func(i int) string { return fmt.Sprintf("  - a%d\n", i) }),
		"routes":         fill("routes:\n", func(i int) string { return fmt.Sprintf("- {name: a%d, subjects: [a%d]}\n", i, i) }),
		"a thousand routes": fill("routes:\n", some(1000, func(i int) string {
			return fmt.Sprintf("- {name: a%d, subjects: ['%sb%d'], handler: {forward: {subject: '%s{1}'}}}\n", i, []string{deep, stars}[i%2], i, deep)
		})),
		"long subjects": fill("routes:\n", func(i int) string {
			return fmt.Sprintf("- {name: a%d, subjects: [%s%d]}\n", i, strings.Repeat("a.", 400), i)
		}),
		"streams and routes": fill("streams:\n", some(1000, func(i int) string { return fmt.Sprintf("- {name: S%d, subjects: ['%s%d']}\n", i, stars, i) })),
		"variables":          fill("routes:\n- handler: {exec: {env: {", func(i int) string { return fmt.Sprintf("a%d: x, ", i) }),
		"quotes":             fill("a: '", same("''")),
		"folded text":        fill("a: >\n", same(" x\n")),
		"tags":               fill("a: [", same("!!str x, ")),
		"directives":         fill("", same("%TAG ! tag:x,2026:\n")),
		"documents":          fill("", same("---\n")),
		"laughs": "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n" +
			"d: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e]\n",
	}
}

func TestLoad_hostileFilesEndSoon_timed(t *testing.T) {
	if race.Enabled {
		t.Skip("it measures times, which the race detector changes: make test-timed runs it")
	}
	for name, text := range hostile() {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			_, err := newCollector("relay.yaml").load([]byte(text), Options{})
			took := time.Since(began)
			t.Logf("%d bytes in %v", len(text), took)
			if took > tooLong {
				t.Errorf("took %v", took)
			}
			if name != "a thousand routes" && err == nil {
				t.Error("no fault")
			}
			if faults, _ := err.(Faults); len(faults) > maxFaults+1 || len(fmt.Sprint(err)) > 100_000 {
				t.Errorf("%d faults in %d bytes", len(faults), len(fmt.Sprint(err)))
			}
		})
	}
}

func TestLoad_tooManyFaults(t *testing.T) {
	var text strings.Builder
	for i := range 2 * maxFaults {
		fmt.Fprintf(&text, "key%d: 1\n", i)
	}
	_, err := newCollector("relay.yaml").load([]byte(text.String()), Options{})
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != maxFaults+1 || lines[maxFaults] != "relay.yaml: only the first 100 faults are shown" {
		t.Errorf("%d lines, the last one %q", len(lines), lines[len(lines)-1])
	}
}

// The list limits have their own messages, which the other faults of a hostile file would hide.
func TestLoad_limits(t *testing.T) {
	many := strings.Repeat("x,", maxEntries) + "x"
	var env []string
	for i := range maxEntries + 1 {
		env = append(env, fmt.Sprintf("A%d: x", i))
	}
	subjects := func(route int) string {
		var s []string
		for i := range 700 {
			s = append(s, fmt.Sprintf("r%d.s%d", route, i))
		}
		return fmt.Sprintf("  - {name: r%d, subjects: [%s], handler: discard}\n", route, strings.Join(s, ","))
	}
	for want, text := range map[string]string{
		"relay.yaml:2: routes[0].subjects: has 1001 entries: at most 1000 are allowed":                         "routes:\n  - {name: a, handler: discard, subjects: [" + many + "]}",
		"relay.yaml:2: routes[0].handler.exec.env: has 1001 entries: at most 1000 are allowed":                 "routes:\n  - {name: a, subjects: [a], handler: {exec: {command: [x], env: {" + strings.Join(env, ",") + "}}}}",
		"relay.yaml:1: routes: have 2100 subjects of 14370 bytes together: at most 1000 and 32768 are allowed": "routes:\n" + subjects(0) + subjects(1) + subjects(2),
		"relay.yaml:1: streams: have 1 subjects of 32769 bytes together: at most 1000 and 32768 are allowed":   "streams: [{name: S, subjects: [" + strings.Repeat("x", maxSubjectsBytes+1) + "]}]\n" + minimal,
	} {
		_, err := newCollector("relay.yaml").load([]byte(text), Options{})
		if err == nil || err.Error() != want {
			t.Errorf("got %v\nwant %s", err, want)
		}
	}
}

func FuzzLoad(f *testing.F) {
	cases, _ := filepath.Glob(filepath.Join(testdata, "*.txt"))
	for _, file := range cases {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		in, _, _ := strings.Cut(string(data), dashes)
		f.Add([]byte(in), "routes.0.retry.max=1s", "RELAY_LOG__LEVEL=debug")
	}
	example, err := os.ReadFile(exampleFile)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(example, "streams.ORDERS={replicas: 3}", "RELAY_ROUTES__BILLING={retry: {min: 1ms}}")
	f.Fuzz(func(t *testing.T, data []byte, set, env string) {
		began := time.Now()
		cfg, err := newCollector("relay.yaml").load(data, Options{Set: []string{set}, Env: []string{env}})
		if took := time.Since(began); took > tooLong {
			t.Errorf("took %v", took)
		}
		if _, faults := err.(Faults); err != nil && !faults {
			t.Errorf("not a list of faults: %v", err)
		}
		if (cfg == nil) == (err == nil) {
			t.Errorf("config %v and error %v", cfg, err)
		}
	})
}
