// Package snippet makes what a stranger wrote, a reply or the output of a program, fit for an error text: short, one
// line, valid UTF-8, and nothing in it that a terminal or a page would obey.
package snippet

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Head returns about the first n bytes of b.
func Head(b []byte, n int) string {
	if len(b) <= n {
		return clean(b)
	}
	return clean(b[:cut(b, n)]) + "…"
}

// cut moves an index off the middle of a character, forwards, within reason: the bytes may be no text at all.
func cut(b []byte, i int) int {
	for end := min(i+utf8.UTFMax, len(b)); i < end && !utf8.RuneStart(b[i]); i++ {
	}
	return i
}

// clean replaces runs of white space and control characters by one space, and what cannot be shown by U+FFFD.
func clean(b []byte) string {
	var out strings.Builder
	space := false
	for _, r := range string(b) {
		if unicode.IsSpace(r) || unicode.IsControl(r) {
			space = out.Len() > 0
			continue
		}
		if space {
			out.WriteByte(' ')
			space = false
		}
		if !unicode.IsPrint(r) { // U+202E and the like turn the rest of the line about
			r = utf8.RuneError
		}
		out.WriteRune(r)
	}
	return out.String()
}
