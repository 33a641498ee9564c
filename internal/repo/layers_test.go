package repo

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// layers are what each package of relay's core may import of the others; see "Layout" in docs/design.md. What is under internal/ at
// the root is for all.
var layers = map[string][]string{
	"ack":                         {},
	"event":                       {},
	"schedule":                    {},
	"supervisor":                  {},
	"client":                      {},
	"dlq":                         {"ack"},
	"consumer":                    {"ack", "dlq", "event", "supervisor", "consumer/internal/*"},
	"consumer/internal/suspects":  {"supervisor"},
	"consumer/internal/*":         {},
	"consumer/handler":            {"consumer"},
	"consumer/handler/internal/*": {"consumer", "consumer/handler", "supervisor"},
	"consumer/handler/stock":      {"consumer/handler", "consumer/handler/*"},
	"consumer/handler/*":          {"consumer", "consumer/handler", "consumer/handler/internal/*"},
}

// Imports point down, and no room of the consumer knows another one: so each can be read, and tested, by itself.
func TestImports_pointDown(t *testing.T) {
	t.Parallel()
	const module = "github.com/relaymq/relay/"
	packages := 0
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		file, err = filepath.Rel(root, file)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(file))
		allowed, ok := layers[dir]
		if !ok {
			if allowed, ok = layers[path.Dir(dir)+"/*"]; !ok {
				return nil
			}
		}
		packages++
		source, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, i := range source.Imports {
			name, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			other, own := strings.CutPrefix(name, module)
			if !own || strings.HasPrefix(other, "internal/") || slices.Contains(allowed, other) || slices.Contains(allowed, path.Dir(other)+"/*") {
				continue
			}
			t.Errorf("%s imports %s; of relay's packages %s may import %q", file, other, dir, allowed)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if packages < 100 {
		t.Errorf("only %d files were looked at", packages)
	}
}
