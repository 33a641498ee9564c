package repo

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every fuzz target begins from inputs that are in the repository: of its own source, or in testdata/fuzz. Without any it finds
// its way from nothing each time, and `go test` runs it with nothing at all.
func TestFuzz_everyTargetHasACorpus(t *testing.T) {
	t.Parallel()
	targets := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && path != root):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Fuzz") {
				continue
			}
			targets++
			stored, _ := os.ReadDir(filepath.Join(filepath.Dir(path), "testdata", "fuzz", f.Name.Name))
			if len(stored) == 0 && !adds(f.Body) {
				t.Errorf("%s: %s has no corpus: call f.Add, or keep inputs in testdata/fuzz/%[2]s", path, f.Name.Name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if targets < 10 {
		t.Errorf("%d fuzz targets found", targets)
	}
}

// adds tells whether a fuzz target calls Add.
func adds(body *ast.BlockStmt) (found bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "Add" {
			found = true
		}
		return !found
	})
	return found
}
