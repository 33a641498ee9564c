package snippet

import (
	"math/rand/v2"
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
		var e Ends
		for _, b := range []byte(in) {
			_, _ = e.Write([]byte{b})
		}
		if got := e.String(); got != want {
			t.Errorf("Ends of %q: %q, want %q", in, got, want)
		}
	}
}

func TestHead_cutBetweenCharacters(t *testing.T) {
	text := []byte(strings.Repeat("é", 10))
	if got, want := Head(text, 5), "ééé…"; got != want {
		t.Errorf("Head = %q, want %q", got, want)
	}
}

// However it is written, what is kept is the beginning and the end, of whole characters.
func TestEnds(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var e Ends
		var all []byte
		e.Reset()
		for range r.IntN(20) {
			b := []byte(strings.Repeat("aé€🙂", r.IntN(200)))
			b = b[:r.IntN(len(b)+1)]
			all = append(all, b...)
			if n, err := e.Write(b); n != len(b) || err != nil {
				t.Fatal(n, err)
			}
		}
		if e.Empty() != (len(all) == 0) {
			t.Fatal("Empty of", len(all))
		}
		got, want := e.String(), clean(all)
		if len(all) > maxHead+maxTail {
			head, tail := all[:maxHead], all[len(all)-maxTail:]
			want = clean(head) + " … " + clean(tail)
			trim := func(s string) string { return strings.ReplaceAll(s, "\uFFFD", "") }
			if trim(got) != trim(want) || len(got) > len(want) || strings.Count(got, "\uFFFD") > strings.Count(clean(all), "\uFFFD") {
				t.Fatalf("%q, want %q", got, want)
			}
			continue
		}
		if got != want {
			t.Fatalf("of %d bytes: %q, want %q", len(all), got, want)
		}
	}
}

func FuzzSnippet(f *testing.F) {
	f.Add([]byte("a\x80\x80\x80\x80\x80b"), 3)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		if n < 0 || n > 1000 {
			return
		}
		for _, s := range []string{Head(b, n), endsOf(b)} {
			// Every byte may become a U+FFFD of three.
			if !utf8.ValidString(s) || len(s) > 3*(max(n, maxHead+maxTail)+utf8.UTFMax)+len(" … ") || strings.ContainsAny(s, "\n\r\x00\x1b") {
				t.Fatalf("%q of %q cut to %d", s, b, n)
			}
		}
	})
}

func endsOf(b []byte) string {
	var e Ends
	_, _ = e.Write(b)
	return e.String()
}
