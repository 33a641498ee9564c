package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/relaymq/relay/consumer/handler/http"
)

const forWarnings = `
nats: {url: "nats://127.0.0.1:4222,nats://ok_1,[::1]:4222,tls://Bücher.example:4222", token: {file: token}}
streams: [{name: A, subjects: [a.>]}]
routes:
  - {name: a, subjects: [a.x.*, a.y], key: "{3}", order: key, handler: {exec: {command: [no-such-program-here]}}}
  - {name: b, subjects: [a.b.*], handler: {http: {url: "https://127.0.0.1/", tls: {insecure_skip_verify: true}}}}
  - {name: c, subjects: [a.c.*], handler: {forward: {subject: "copies.{2}"}}}
  - {name: d, subjects: [a.d.*], handler: {forward: {subject: "a.copies.{2}"}}}
`

// What is valid and yet wrong was passed in silence.
func TestLoad_warns(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, mode := range map[string]os.FileMode{"token": 0o644, "relay.yaml": 0o620} {
		if err := os.WriteFile(name, []byte(forWarnings), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := Load(Options{
		File: "relay.yaml",
		Set:  []string{"nats.domain=d", "routes.b.handler.http.headers.Authorization=canary"},
		Env:  []string{"RELAY_NATS_URL=nats://canary", "RELAY_LOG_LEVEL=debug", "RELAY_SERVICE_HOST=10.0.0.1", "RELAY_PORT_4222_TCP=x", "RELAY_DRAIN=5s"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, w := range cfg.Source.Warnings {
		got = append(got, w.String())
	}
	all := strings.Join(got, "\n")
	for _, want := range []string{
		"warning: relay.yaml: its group may write this file (mode 0620)",
		`warning: relay.yaml:2: nats.token: every user of this host may read the secret in "token" (mode 0644)`,
		"warning: --set routes.b.handler.http.headers.Authorization: routes[1].handler.http.headers: every user of this host can see",
		"warning: RELAY_NATS_URL: is ignored: did you mean RELAY_NATS__URL?",
		"warning: RELAY_LOG_LEVEL: is ignored: did you mean RELAY_LOG__LEVEL?",
		`warning: relay.yaml:5: routes[0].key: "{3}": a.y has fewer tokens`,
		`warning: relay.yaml:5: routes[0].handler.exec.command: the program "no-such-program-here" is not on this machine`,
		"note: relay.yaml:5: routes[0].order: implies instances: one",
		"warning: relay.yaml:6: routes[1].handler.http.tls.insecure_skip_verify: any certificate",
		`note: relay.yaml:7: routes[2].handler.forward.subject: no stream under streams holds "copies.c"`,
	} {
		if !strings.Contains(all, want) {
			t.Errorf("nothing says %q:\n%s", want, all)
		}
	}
	if len(got) != 10 || strings.Contains(all, "canary") {
		t.Errorf("%d warnings:\n%s", len(got), all)
	}
	if o := strings.Join(cfg.Source.Overrides, " "); o != "RELAY_DRAIN --set nats.domain --set routes.b.handler.http.headers.Authorization" {
		t.Errorf("overrides %s", o)
	}
}

// Whoever writes the configuration says which programs relay starts.
func TestLoad_refusesAFileThatOthersMayWrite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(file, []byte(minimal), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(Options{File: file}); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o602); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(Options{File: file}); err == nil || !strings.Contains(err.Error(), "chmod o-w") {
		t.Errorf("writable by everybody: %v", err)
	}
	if os.Geteuid() != 0 {
		return // only root can give a file away
	}
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(file, 4711, 4711); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(Options{File: file}); err == nil || !strings.Contains(err.Error(), "belongs to user 4711, but relay runs as user 0") {
		t.Errorf("of another user: %v", err)
	}
}

// Who may write the folder may put another file there. The sticky bit, as of /tmp, prevents that.
func TestLoad_warnsOfAFolderThatOthersMayWrite(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "relay.yaml")
	if err := os.WriteFile(file, []byte(minimal), 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[os.FileMode]bool{0o755: false, 0o777: true, 0o777 | os.ModeSticky: false} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		cfg, err := Load(Options{File: file})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(fmt.Sprint(cfg.Source.Warnings), "may write the folder"); got != want {
			t.Errorf("%v: %v", mode, cfg.Source.Warnings)
		}
	}
}

func TestLoad_headersFromFiles(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("bearer", []byte("Bearer canary\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := load(t, `routes: [{name: a, subjects: [a.*], handler: {http: {url: "http://127.0.0.1/", headers: {Authorization: {file: bearer}, X: y}}}}]`, Options{})
	if h := cfg.Routes[0].Handler.Config().(http.Config).Headers; h["Authorization"] != "Bearer canary" || h["X"] != "y" {
		t.Errorf("%v", h)
	}
}

// The former name of route_trip.of is read, and lint says what to write.
func TestLoad_readsTheFormerNameOfRouteTrip(t *testing.T) {
	t.Chdir(t.TempDir())
	load := func(supervisor string) (*Config, error) {
		t.Helper()
		data := "nats: {url: nats://127.0.0.1}\ndefaults:\n  supervisor: {route_trip_after: 7}\nroutes:\n" +
			"  - {name: a, subjects: [a], handler: {exec: {command: [\"true\"]}}}\n" +
			"  - {name: b, subjects: [b], handler: {exec: {command: [\"true\"]}}, supervisor: " + supervisor + "}\n"
		if err := os.WriteFile("relay.yaml", []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		return Load(Options{File: "relay.yaml"})
	}
	cfg, err := load("{route_trip_after: 0, route_trip: {share: 0.5}}")
	if err != nil {
		t.Fatal(err)
	}
	a, b := cfg.Routes[0].Supervisor.RouteTrip, cfg.Routes[1].Supervisor.RouteTrip
	if *a.Of != 7 || *b.Of != 0 || b.Share != 0.5 {
		t.Errorf("route_trip is %d, and %d with share %v; want 7, 0 and 0.5", *a.Of, *b.Of, b.Share)
	}
	var warnings []string
	for _, w := range cfg.Source.Warnings {
		warnings = append(warnings, w.String())
	}
	for _, want := range []string{
		"warning: relay.yaml:3: defaults.supervisor.route_trip_after: is the former name of route_trip.of, and a later version will not know it: write route_trip: {of: 7}",
		"warning: relay.yaml:6: routes[1].supervisor.route_trip_after: is the former name of route_trip.of, and a later version will not know it: write route_trip: {of: 0}",
	} {
		if !slices.Contains(warnings, want) {
			t.Errorf("nothing says %q:\n%s", want, strings.Join(warnings, "\n"))
		}
	}
	_, err = Load(Options{File: "relay.yaml", Env: []string{"RELAY_DEFAULTS__SUPERVISOR__ROUTE_TRIP_AFTER=3"}})
	if want := "RELAY_DEFAULTS__SUPERVISOR__ROUTE_TRIP_AFTER: defaults.supervisor.route_trip_after: unknown key: its name is route_trip.of"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	for supervisor, want := range map[string]string{
		"{route_trip_after: 3, route_trip: {of: 3}}": "relay.yaml:6: routes[1].supervisor.route_trip_after: is the former name of route_trip.of, which is set, too: remove route_trip_after",
		"{route_trip_after: many}":                   "relay.yaml:6: routes[1].supervisor.route_trip.of: must be a whole number",
		"{route_trip_after: -1}":                     "relay.yaml:6: routes[1].supervisor.route_trip.of: must be at least 0 (got -1)",
	} {
		if _, err := load(supervisor); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", supervisor, err, want)
		}
	}
}
