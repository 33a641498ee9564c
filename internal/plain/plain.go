// Package plain makes text from strangers safe to show. Subjects, keys, headers, bodies and errors come from whoever may
// publish; shown as they are, they could move the cursor, hide what stands before them, or turn the direction of a line.
//
// Every command, the log and the answers of the admin listener use it for what comes from outside.
package plain

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// shown tells what may stand as it is: what Unicode calls printable. Control characters (C0, DEL and C1), marks of direction
// and of zero width, and the line and paragraph separators are not.
func shown(r rune) bool { return r != utf8.RuneError && unicode.IsPrint(r) }

// Text is s for one line: what may not be shown becomes \u and four digits, a byte that is not UTF-8 \ufffd.
func Text(s string) string { return escape(s, shown) }

// Lines is s for a place where line ends are welcome: they stay, a tab becomes four spaces, and the rest is as in [Text].
func Lines(s string) string {
	s = strings.ReplaceAll(s, "\r\n", "\n")
	s = strings.ReplaceAll(s, "\t", "    ")
	return escape(s, func(r rune) bool { return r == '\n' || shown(r) })
}

func escape(s string, keep func(rune) bool) string {
	i := strings.IndexFunc(s, func(r rune) bool { return !keep(r) })
	if i < 0 {
		return s
	}
	var b strings.Builder
	b.WriteString(s[:i])
	for _, r := range s[i:] {
		if keep(r) {
			b.WriteRune(r)
		} else {
			writeEscape(&b, r)
		}
	}
	return b.String()
}

// writeEscape writes r as JSON would.
func writeEscape(w io.Writer, r rune) {
	if r > 0xffff {
		high, low := utf16.EncodeRune(r)
		fmt.Fprintf(w, `\u%04x\u%04x`, high, low)
		return
	}
	fmt.Fprintf(w, `\u%04x`, r)
}

// JSON writes v as JSON and a line end, on one line if indent is empty. What may not be shown is escaped in strings, which
// does not change their value. It leaves <, > and & as they are.
func JSON(w io.Writer, v any, indent string) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return err
	}
	// encoding/json escapes C0 and the separators itself; DEL and what is above ASCII occurs in strings only.
	out := b.Bytes()
	if bytes.IndexFunc(out, func(r rune) bool { return r != '\n' && !shown(r) }) >= 0 {
		out = []byte(escape(string(out), func(r rune) bool { return r == '\n' || shown(r) }))
	}
	_, err := w.Write(out)
	return err
}

// And is the list as a sentence has it: a, b and c.
func And(list []string) string {
	switch len(list) {
	case 0:
		return ""
	case 1:
		return list[0]
	}
	s := list[0]
	for _, f := range list[1 : len(list)-1] {
		s += ", " + f
	}
	return s + " and " + list[len(list)-1]
}
