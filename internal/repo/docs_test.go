package repo

import (
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

// Each check of docs/security.md names the test that makes it: one that is there.
func TestSecurity_everyCheckHasItsTest(t *testing.T) {
	t.Parallel()
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
