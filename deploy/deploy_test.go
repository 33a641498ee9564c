// Package deploy has what others run beside relay: alert rules for Prometheus and a board for Grafana.
package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// metrics are those of docs/metrics.md, which a test of package consumer compares with what relay really has, with their labels.
func metrics(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) < 5 || !strings.HasPrefix(strings.TrimSpace(cells[1]), "`relay_") {
			continue
		}
		name := strings.Trim(cells[1], " `")
		known[name] = append(regexp.MustCompile("[a-z_]+").FindAllString(cells[3], -1), "job", "instance")
		if strings.TrimSpace(cells[2]) == "histogram" {
			known[name+"_bucket"] = append(known[name], "le")
		}
	}
	if len(known) < 40 {
		t.Fatalf("docs/metrics.md has %d metrics", len(known))
	}
	return known
}

var (
	metricName = regexp.MustCompile(`relay_[a-z_]+`)
	selector   = regexp.MustCompile(`(relay_[a-z_]+)\{([^}]*)\}`)
	labelName  = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!=|!~|=)`)
	grouping   = regexp.MustCompile(`(?:by|on) \(([^)]*)\)`)
	shownLabel = regexp.MustCompile(`\$labels\.([a-z_]+)`)
)

// check refuses a query about metrics or labels that relay does not have.
func check(t *testing.T, what, expr string, known map[string][]string) {
	t.Helper()
	names := metricName.FindAllString(expr, -1)
	if len(names) == 0 {
		t.Errorf("%s asks for no metric of relay: %s", what, expr)
	}
	var labels []string
	for _, name := range names {
		if known[name] == nil {
			t.Errorf("%s: there is no metric %s", what, name)
		}
		labels = append(labels, known[name]...)
	}
	for _, m := range selector.FindAllStringSubmatch(expr, -1) {
		for _, l := range labelName.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(known[m[1]], l[1]) {
				t.Errorf("%s: %s has no label %s", what, m[1], l[1])
			}
		}
	}
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		for l := range strings.SplitSeq(m[1], ",") {
			if !slices.Contains(labels, strings.TrimSpace(l)) {
				t.Errorf("%s: no label %s in %s", what, l, expr)
			}
		}
	}
}

func TestRules_askForWhatThereIs(t *testing.T) {
	known := metrics(t)
	b, err := os.ReadFile("prometheus/relay.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			n++
			check(t, r.Alert, r.Expr, known)
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s does not say what it means and what to do", r.Alert)
			}
			// A label that the query groups away would be empty in the text.
			by := grouping.FindStringSubmatch(r.Expr)
			for _, m := range shownLabel.FindAllStringSubmatch(fmt.Sprint(r.Annotations), -1) {
				if by != nil && !strings.Contains(by[1], m[1]) {
					t.Errorf("%s shows the label %s, which its query has not", r.Alert, m[1])
				}
			}
		}
	}
	if n < 10 {
		t.Errorf("%d rules", n)
	}
}

func TestBoard_asksForWhatThereIs(t *testing.T) {
	known := metrics(t)
	b, err := os.ReadFile("grafana/relay.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Type, Query string }
		}
	}
	if err := json.Unmarshal(b, &board); err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, p := range board.Panels {
		if seen[p.ID] || len(p.Targets) == 0 {
			t.Errorf("panel %q: the id %d twice, or no query", p.Title, p.ID)
		}
		seen[p.ID] = true
		for _, q := range p.Targets {
			check(t, p.Title, q.Expr, known)
		}
	}
	for _, v := range board.Templating.List {
		if v.Type == "query" {
			check(t, v.Query, v.Query, known)
		}
	}
}
