package console

import (
	"strings"
	"testing"
)

func TestShow_bodies(t *testing.T) {
	for in, want := range map[string]struct{ tree, hex, cut bool }{
		`{"a": 1}`: {tree: true}, `[1]`: {tree: true}, `"text"`: {}, `{"a": 1} x`: {}, "plain": {}, "\xff\x00": {hex: true}, "": {},
		strings.Repeat("[", 200) + strings.Repeat("]", 200): {}, strings.Repeat("é", maxShown): {cut: true}, strings.Repeat("\x00", maxShown): {hex: true, cut: true},
		"[" + strings.Repeat("1,", maxNodes) + "1]": {},
		"name: \xc3": {hex: true}, // its last byte was not shown
	} {
		if b := show([]byte(in)); (b.Tree != nil) != want.tree || b.Hex != want.hex || b.Cut != want.cut || b.Size != len(in) {
			t.Errorf("%.20q: tree %v, hex %v, cut %v, %d bytes", in, b.Tree != nil, b.Hex, b.Cut, b.Size)
		}
	}
}

func FuzzShow(f *testing.F) {
	for _, s := range []string{`{"a": [1, "x", null]}`, "\xff", `{"a"`, "[[[[", "é"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if s := show(b); s.Size != len(b) || len(b) > 0 && s.Tree == nil && s.Text == "" && !s.Cut {
			t.Errorf("%q is shown as %+v", b, s)
		}
	})
}
