package snippet

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"":                        "",
		"plain":                   "plain",
		"\n two\r\n\tlines \n":    "two lines",
		"\x1b[31mred\x1b[0m\a":    "[31mred [0m",
		"nul\x00bell":             "nul bell",
		"bad\xff\xfeutf8":         "bad\uFFFD\uFFFDutf8",
		"rtl\u202Eoverride":       "rtl\uFFFDoverride",
		"line\u2028separator é 🙂": "line separator é 🙂",
	} {
		if got := Head([]byte(in), 100); got != want {
			t.Errorf("Head(%q) = %q, want %q", in, got, want)
		}
		if got := Tail([]byte(in), 100); got != want {
			t.Errorf("Tail(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestHeadAndTail_cutBetweenCharacters(t *testing.T) {
	text := []byte(strings.Repeat("é", 10))
	if got, want := Head(text, 5), "ééé…"; got != want {
		t.Errorf("Head = %q, want %q", got, want)
	}
	if got, want := Tail(text, 5), "…éé"; got != want {
		t.Errorf("Tail = %q, want %q", got, want)
	}
}

func FuzzSnippet(f *testing.F) {
	f.Add([]byte("a\x80\x80\x80\x80\x80b"), 3)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		if n < 0 || n > 1000 {
			return
		}
		for _, s := range []string{Head(b, n), Tail(b, n)} {
			// Every byte may become a U+FFFD of three.
			if !utf8.ValidString(s) || len(s) > 3*(n+utf8.UTFMax)+len("…") || strings.ContainsAny(s, "\n\r\x00\x1b") {
				t.Fatalf("%q of %q cut to %d", s, b, n)
			}
		}
	})
}
