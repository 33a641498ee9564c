package fingerprint

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// extent is what a word has.
type extent struct {
	n                            int
	digits, upper, other, joined bool // other: letters that are not ASCII; joined: marks
	at                           bool // @
}

// wordLen measures the word at the beginning of s. The marks of UUIDs, decimals, e-mail and IP addresses are part
// of a word between two of its bytes.
func wordLen(s string) (x extent) {
	for x.n < len(s) {
		c := s[x.n]
		switch class[c] {
		case letter:
			x.upper = x.upper || c <= 'Z'
			x.n++
			continue
		case digit:
			x.digits = true
			x.n++
			continue
		case beyond:
			r, n := utf8.DecodeRuneInString(s[x.n:])
			if !isWordRune(r) {
				return x
			}
			x.other = true
			x.n += n
			continue
		}
		if c == '_' {
			x.joined = true
			x.n++
			continue
		}
		if c == '-' && x.digits && x.upper && x.n+2 < len(s) && s[x.n+1] == '-' && wordByte(s[x.n+2]) { // an id that was drawn
			x.n, x.joined = x.n+2, true
			continue
		}
		if x.n == 0 || x.n+1 >= len(s) || !wordByte(s[x.n+1]) {
			return x
		}
		switch c {
		case '.', '-', '@', ':', '+':
		default:
			return x
		}
		if (c == ':' || c == '+') && !isDigit(s[x.n+1]) && !(c == '+' && mailFollows(s[x.n+1:])) { // error:text; but host:port, and times
			return x
		}
		x.joined, x.at = true, x.at || c == '@'
		x.n++
	}
	return x
}

// mailFollows tells ada+orders@example.org from a+b.
func mailFollows(s string) bool {
	for i := range min(len(s), 64) {
		if s[i] == '@' {
			return true
		}
		if !wordByte(s[i]) && strings.IndexByte(".-+", s[i]) < 0 {
			return false
		}
	}
	return false
}

// class is what a byte is.
var class = func() (t [256]byte) {
	for c := range 256 {
		switch {
		case c >= '0' && c <= '9':
			t[c] = digit
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
			t[c] = letter
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			t[c] = blank
		case c >= utf8.RuneSelf:
			t[c] = beyond
		}
	}
	return t
}()

const (
	digit byte = iota + 1
	letter
	blank
	beyond // not ASCII
)

func isDigit(c byte) bool    { return class[c] == digit }
func isLetter(c byte) bool   { return class[c] == letter || class[c] == beyond }
func isHexDigit(c byte) bool { return isDigit(c) || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' }
func wordByte(c byte) bool   { return class[c] == digit || isLetter(c) || c == '_' }
func plainByte(c byte) bool  { return class[c] == digit || class[c] == letter || c == '_' }
func isWordRune(r rune) bool { return unicode.IsLetter(r) || unicode.IsMark(r) }
