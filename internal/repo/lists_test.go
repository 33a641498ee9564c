package repo

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/relaymq/relay/internal/control"
)

func text(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The page of metrics lists all states that a route can be in.
func TestDocs_metricsNameEveryStateOfARoute(t *testing.T) {
	t.Parallel()
	row := regexp.MustCompile("(?m)^\\| `relay_route_state` .*$").FindString(text(t, "docs/metrics.md"))
	for _, state := range control.States {
		if !strings.Contains(row, "`"+state+"`") {
			t.Errorf("docs/metrics.md does not say of relay_route_state that it may be %s", state)
		}
	}
}

// The page for operators and the design list all streams, buckets and object stores that relay makes.
func TestDocs_nameEveryStreamOfRelays(t *testing.T) {
	t.Parallel()
	made := regexp.MustCompile(`strings\.ToUpper\(.*\) ?\+ "(_[A-Z_]+)"`)
	names := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root:
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		source, err := os.ReadFile(path)
		for _, m := range made.FindAllSubmatch(source, -1) {
			names[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(names) < 13 {
		t.Errorf("names found: %v", names)
	}
	operate, design := text(t, "docs/operate.md"), text(t, "docs/design.md")
	for name := range names {
		if !strings.Contains(operate, "`RELAY"+name+"`") {
			t.Errorf("docs/operate.md does not say that relay makes RELAY%s", name)
		}
		if !strings.Contains(design, "`<SERVICE>"+name+"`") && !strings.Contains(design, ", `"+name+"`") {
			t.Errorf("docs/design.md does not say what bounds <SERVICE>%s", name)
		}
	}
}
