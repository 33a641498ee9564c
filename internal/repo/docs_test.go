package repo

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	namedTest = regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9_]+)`")
	testFunc  = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Za-z0-9_]+)\(`)
)

var row = regexp.MustCompile(`(?m)^\| (S-\d\d) \| [^|]+ \| (yes|partly|not) \| ([^|]+) \|$`)

// The checklist has every row once, in order. What is held names a test, or the file that says so, and the rest says why not.
func TestSecurity_theChecklistIsWhole(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := row.FindAllStringSubmatch(string(text), -1)
	if len(rows) != 51 {
		t.Fatalf("%d rows, want 51", len(rows))
	}
	for i, r := range rows {
		if want := fmt.Sprintf("S-%02d", i+1); r[1] != want {
			t.Errorf("%s stands where %s belongs", r[1], want)
		}
		words := strings.TrimSpace(namedTest.ReplaceAllString(r[3], ""))
		if r[2] == "yes" && !namedTest.MatchString(r[3]) || r[2] != "yes" && len(words) < 20 {
			t.Errorf("%s: %s: %s", r[1], r[2], r[3])
		}
	}
}

// Every surface names the test of what holds it.
func TestSecurity_everySurfaceHasItsTest(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "## Surfaces")
	table, _, _ = strings.Cut(table, "\n## ")
	n := 0
	for line := range strings.SplitSeq(table, "\n") {
		if cells := strings.Split(line, "|"); len(cells) == 7 && strings.TrimSpace(cells[2]) != "" && !strings.HasPrefix(line, "| surface") && !strings.HasPrefix(line, "| ---") {
			if n++; !namedTest.MatchString(cells[5]) {
				t.Errorf("no test: %s", line)
			}
		} else if strings.HasPrefix(line, "|") && len(cells) != 7 {
			t.Errorf("%d cells: %s", len(cells), line)
		}
	}
	if n < 30 {
		t.Errorf("%d surfaces", n)
	}
}

// tests are the names of all tests of the repository.
func tests(t *testing.T) map[string]bool {
	t.Helper()
	have := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range testFunc.FindAllSubmatch(source, -1) {
			have[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return have
}

// Each check of docs/security.md names the test that makes it: one that is there.
func TestSecurity_everyCheckHasItsTest(t *testing.T) {
	t.Parallel()
	have := tests(t)
	text, err := os.ReadFile(filepath.Join(root, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := namedTest.FindAllSubmatch(text, -1)
	if len(named) < 50 {
		t.Fatalf("%d tests are named", len(named))
	}
	for _, m := range named {
		if !have[string(m[1])] {
			t.Errorf("there is no test %s", m[1])
		}
	}
}
