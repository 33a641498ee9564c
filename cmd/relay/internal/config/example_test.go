package config

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler/exec"
)

const exampleFile = "../../../../config.example.yaml"

var sameSecret = cmp.Comparer(func(a, b Secret) bool { return a.Reveal() == b.Reveal() })

func execHandler(t *testing.T, c exec.Config) Handler {
	t.Helper()
	s, err := exec.Kind.Decode(func(into any) error { *into.(*exec.Config) = c; return nil })
	if err != nil {
		t.Fatal(err)
	}
	return Handler{Settings: s, given: []string{"exec"}}
}

// What the example writes out is what relay does without it.
func TestExample_hasTheDefaults(t *testing.T) {
	got, err := Load(Options{File: exampleFile})
	if err != nil {
		t.Fatal(err)
	}
	want := defaults()
	want.Source = got.Source
	want.NATS.Embedded.Listen = "127.0.0.1:4222" // make run is for two terminals
	want.Streams = []Stream{{Name: "ORDERS", Subjects: []string{"orders.>"}}}
	billing := Route{
		Route:   consumer.Route{Name: "billing", Subjects: []string{"orders.*.created"}, Start: consumer.Start{Policy: "all"}},
		Handler: execHandler(t, exec.Config{Command: []string{"sh", "testdata/demo/handler.sh", "billing"}}),
	}
	want.Routes = append([]Route{billing.withDefaults("relay")}, got.Routes[1:]...)
	if diff := cmp.Diff(&want, got, sameSecret, cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(Source{}, consumer.Route{})); diff != "" {
		t.Errorf("(-default +example):\n%s", diff)
	}
	var names []string
	for _, r := range got.Routes {
		names = append(names, r.Name+" "+strings.Join(r.Handler.given, " "))
	}
	if diff := cmp.Diff([]string{"billing exec", "shipping exec", "audit discard"}, names); diff != "" {
		t.Errorf("the routes of the demo: %s", diff)
	}
}

// line is one key of the example, which may be commented out: #key: value   # comment
var line = regexp.MustCompile(`^( *)(#)?(- )?([a-z][a-z_0-9]*):(?: (.*?))?(?: +# (.*))?$`)

type exampleKey struct {
	path, value, comment string
}

// exampleKeys reads the example line by line, up to the routes of the demo. A comment stands behind its key, or above it.
func exampleKeys(t *testing.T) []exampleKey {
	t.Helper()
	data, err := os.ReadFile(exampleFile)
	if err != nil {
		t.Fatal(err)
	}
	var (
		keys    []exampleKey
		indents []int
		names   []string
		above   []string
		demo    bool
	)
	for text := range strings.Lines(string(data)) {
		text = strings.TrimRight(text, "\n")
		if len(text) > 120 {
			t.Errorf("longer than 120: %s", text)
		}
		if c, ok := strings.CutPrefix(strings.TrimSpace(text), "# "); ok {
			above = append(above, c)
			continue
		}
		m := line.FindStringSubmatch(text)
		switch {
		case m == nil:
			above = nil
			continue
		case m[1] == "" && m[2] == "":
			demo = false
		case m[4] == "name" && m[5] == "shipping":
			demo = true
		}
		if demo {
			continue
		}
		indent := len(m[1]) + len(m[3])
		for len(indents) > 0 && indents[len(indents)-1] >= indent {
			indents, names = indents[:len(indents)-1], names[:len(names)-1]
		}
		indents, names = append(indents, indent), append(names, m[4])
		comment := m[6]
		if comment == "" {
			comment = strings.Join(above, " ")
		}
		above = nil
		if names[0] == "limits" && len(names) > 1 {
			if len(names) == 2 {
				continue // a name that somebody chose
			}
			keys = append(keys, exampleKey{"limits." + names[2], strings.TrimSpace(m[5]), comment})
			continue
		}
		keys = append(keys, exampleKey{strings.Join(names, "."), strings.TrimSpace(m[5]), comment})
	}
	return keys
}

// paths are all keys there are.
func paths(k *key) (all []string) {
	for _, f := range k.fields {
		all = append(all, f.path)
		if f.name == "defaults" {
			all[len(all)-1] = f.name
			continue
		}
		if f.elem != nil {
			f = f.elem
		}
		all = append(all, paths(f)...)
	}
	return all
}

func TestExample_hasEveryKeyOnceWithItsComment(t *testing.T) {
	want := map[string]string{}
	for _, p := range paths(newBook(nil).root) {
		d := newBook(nil).docs[p]
		want[p] = d.text
		if d.values != nil {
			want[p] += " (" + orList(d.values) + ")"
		}
	}
	got := map[string]string{}
	for _, k := range exampleKeys(t) {
		if _, ok := got[k.path]; ok {
			t.Errorf("%s is there twice", k.path)
		}
		got[k.path] = k.comment
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("comments (-docs.go +example):\n%s", diff)
	}
}

// Lines that are commented out must work when somebody takes the # away.
func TestExample_commentedOutKeysWork(t *testing.T) {
	var file strings.Builder
	data, err := os.ReadFile(exampleFile)
	if err != nil {
		t.Fatal(err)
	}
	for text := range strings.Lines(string(data)) {
		if m := line.FindStringSubmatch(strings.TrimRight(text, "\n")); m != nil && m[2] != "" {
			text = strings.Replace(text, "#", "", 1)
		}
		file.WriteString(text)
	}
	_, err = newCollector("x").load([]byte(file.String()), Options{})
	// They exclude each other, and name files that are not here; nothing else may be wrong.
	var keys []string
	if faults, ok := err.(Faults); ok {
		for _, f := range faults {
			keys = append(keys, f.Key)
			if strings.Contains(f.Msg, "unknown") || strings.Contains(f.Msg, "must be") {
				t.Error(f)
			}
		}
	}
	want := []string{
		"nats.creds", "nats.nkey", "nats.password", "nats.tls.ca", "nats.tls.cert", "nats.tls.key", "nats.token", "nats.user",
		"routes[0].handler",
	}
	slices.Sort(keys)
	if diff := cmp.Diff(want, slices.Compact(keys), cmpopts.EquateEmpty()); diff != "" {
		t.Logf("%v", err)
		t.Errorf("faults of keys (-want +got):\n%s", diff)
	}
}

func TestDocs_areOfKeys(t *testing.T) {
	known := paths(newBook(nil).root)
	for p, d := range newBook(nil).docs {
		if !slices.Contains(known, p) {
			t.Errorf("%s is no key", p)
		}
		if d.text == "" {
			t.Errorf("%s says nothing", p)
		}
	}
}

// The values that docs.go lists are those that validation takes: each one loads, and any other is refused.
func TestDocs_valuesAreTheOnesAllowed(t *testing.T) {
	for path, d := range newBook(nil).docs {
		if d.values == nil {
			continue
		}
		for _, value := range append(slices.Clone(d.values), "neither") {
			set := []string{
				"streams=[{name: S, subjects: [s.>]}]",
				"routes=[{name: a, subjects: [s.*], handler: discard, retry: {delays: [1s]}, supervisor: {restart: {delays: [1s]}}}]",
				"dlq.max_bytes=1GiB",
				"schedules=[{name: a, every: 1s, subject: s.a}]",
				"limits={x: {concurrency: 1}}",
			}
			if strings.HasPrefix(path, "routes.handler.http.") {
				set[1] = "routes=[{name: a, subjects: [s.*], handler: {http: {url: 'http://127.0.0.1/'}}}]"
			}
			if strings.HasPrefix(path, "routes.handler.worker.") {
				set[1] = "routes=[{name: a, subjects: [s.*], handler: {worker: {command: [x]}}}]"
			}
			path := strings.Replace(strings.Replace(path, "routes.", "routes.0.", 1), "streams.", "streams.0.", 1)
			path = strings.Replace(path, "schedules.", "schedules.0.", 1)
			path = strings.Replace(path, "limits.", "limits.x.", 1)
			_, err := Load(Options{Set: append(set, fmt.Sprintf("%s=%s", path, value))})
			if known := value != "neither"; known != (err == nil) {
				t.Errorf("%s: %s: %v", path, value, err)
			}
		}
	}
}
