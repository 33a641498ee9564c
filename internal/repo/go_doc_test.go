package repo

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// public are the packages for programs.
var public = []string{"ack", "client", "consumer", "dlq", "event", "relaytest", "schedule", "supervisor"}

// What go doc and pkg.go.dev show of a type that is another name for one of an internal package is the comment, and no more: neither its fields nor
// its methods. So the comment names the fields.
func TestPublic_regressionGoDocShowsWhatATypeHas(t *testing.T) {
	t.Parallel()
	// A status has more fields than a comment can hold: they are those of relay status --json, and the comment says so.
	asJSON := map[string]bool{"Status": true, "RouteStatus": true, "ConfigStatus": true, "ConfigDigest": true}
	seen := 0
	for _, dir := range public {
		for _, file := range parsed(t, filepath.Join(root, dir)) {
			imports := make(map[string]string)
			for _, i := range file.Imports {
				path := strings.Trim(i.Path.Value, `"`)
				name := path[strings.LastIndex(path, "/")+1:]
				if i.Name != nil {
					name = i.Name.Name
				}
				imports[name] = path
			}
			for _, d := range file.Decls {
				decl, ok := d.(*ast.GenDecl)
				if !ok || decl.Tok != token.TYPE {
					continue
				}
				for _, s := range decl.Specs {
					spec := s.(*ast.TypeSpec)
					of, ok := spec.Type.(*ast.SelectorExpr)
					if !ok || !spec.Name.IsExported() || spec.Assign == token.NoPos {
						continue
					}
					path, inside := strings.CutPrefix(imports[of.X.(*ast.Ident).Name], "github.com/relaymq/relay/")
					if !inside || !strings.Contains(path, "internal") {
						continue
					}
					seen++
					text := spec.Doc.Text()
					if text == "" {
						text = decl.Doc.Text()
					}
					for _, field := range fieldsOf(t, filepath.Join(root, path), of.Sel.Name) {
						if !asJSON[spec.Name.Name] && !strings.Contains(text, field) {
							t.Errorf("%s.%s is %s.%s, and its comment does not name the field %s", dir, spec.Name.Name, path, of.Sel.Name, field)
						}
					}
				}
			}
		}
	}
	if seen == 0 {
		t.Error("there are none any more: delete this test")
	}
}

// parsed are the files of a package but for its tests.
func parsed(t *testing.T, dir string) (list []*ast.File) {
	t.Helper()
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if !strings.HasSuffix(n.Name(), ".go") || strings.HasSuffix(n.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, n.Name()), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, f)
	}
	return list
}

// fieldsOf are the exported fields of a struct; none of any other type.
func fieldsOf(t *testing.T, dir, name string) (list []string) {
	t.Helper()
	found := false
	for _, f := range parsed(t, dir) {
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || spec.Name.Name != name {
				return true
			}
			found = true
			if s, ok := spec.Type.(*ast.StructType); ok {
				for _, field := range s.Fields.List {
					for _, n := range field.Names {
						if n.IsExported() {
							list = append(list, n.Name)
						}
					}
				}
			}
			return false
		})
	}
	if !found {
		t.Errorf("%s has no type %s", dir, name)
	}
	return list
}
