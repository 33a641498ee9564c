package plain

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"":                          "",
		"orders.eu":                 "orders.eu",
		"café 漢字 🦑":                 "café 漢字 🦑",
		"a\nb\tc":                   `a\u000ab\u0009c`,
		"\x1b[31mred\x07":           `\u001b[31mred\u0007`,
		"\x7f\u009b2J":              `\u007f\u009b2J`,
		"\u202egnp.exe\u2066\u200f": `\u202egnp.exe\u2066\u200f`,
		"a\u2028b\u2029":            `a\u2028b\u2029`,
		"\xff\xfe":                  `\ufffd\ufffd`,
		"\U000e0041":                `\udb40\udc41`, // a tag character, which shows as nothing
	} {
		if got := Text(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
	if got, want := Lines("a\r\n\tb\x1b\r"), "a\n    b\\u001b\\u000d"; got != want {
		t.Errorf("lines: %q, want %q", got, want)
	}
}

// What JSON writes shows nothing that Text would escape, and says the same.
func FuzzJSON(f *testing.F) {
	f.Add("\x1b[31m\x7f\u009b\u202e\u2028\U000e0041<&>")
	f.Add("\xff")
	f.Fuzz(func(t *testing.T, s string) {
		var b strings.Builder
		if err := JSON(&b, map[string]string{"v": s}, ""); err != nil {
			t.Fatal(err)
		}
		line, ended := strings.CutSuffix(b.String(), "\n")
		if !ended || Text(line) != line {
			t.Errorf("%q", b.String())
		}
		var back map[string]string
		if err := json.Unmarshal([]byte(line), &back); err != nil || back["v"] != strings.ToValidUTF8(s, "\ufffd") && back["v"] != asJSON(s) {
			t.Errorf("%q came back as %q: %v", s, back["v"], err)
		}
	})
}

func asJSON(s string) (back string) {
	b, _ := json.Marshal(s)
	_ = json.Unmarshal(b, &back)
	return back
}

func TestAnd(t *testing.T) {
	t.Parallel()
	for want, list := range map[string][]string{"": nil, "a": {"a"}, "a and b": {"a", "b"}, "a, b and c": {"a", "b", "c"}} {
		if got := And(list); got != want {
			t.Errorf("%q became %q", list, got)
		}
	}
}
