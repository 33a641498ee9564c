package fingerprint

import (
	"strings"
	"unicode/utf8"

	"github.com/relaymq/relay/internal/retry"
)

// Of is an error without what differs from message to message, so that failures with the same cause have the same
// one, and those with different causes have different ones.
//
// Words stay, also in quotes and in JSON: {"error":"card expired"} is its own fingerprint. Numbers and ids become <*>, dates and
// clock times <time>, durations <duration>, IP and e-mail addresses <addr>. Several of these in a row are one, so that lists of
// ids, and dates in any form, are one thing. In quotes stays what is words (a column of a database), and what has digits goes. Words that
// the text itself declares a value go, too: the name of a user or customer, and what a database calls an entry or a value.
//
// A status stays, for it says what went wrong, but only where it stands as one: after a word such as HTTP, status, exit,
// errno or answered, as the value of a key such as code, or before its own text (503 Service Unavailable). A number is nothing of the
// kind by its size: orders have numbers of three digits, too.
//
// Of a text that was cut, which is one of [retry.MaxErrorLen] bytes or one with an ellipsis at an end, only the part counts that is there
// however long the values in it are.
//
// It is for grouping and may change between versions of relay.
func Of(err string) string {
	s := scanner{out: make([]byte, 0, len(err)+32)}
	if i := strings.Index(err, "…"); i >= 0 && i+len("…") < len(err) && (i == 0 || err[i-1] == ' ') { // ends with what was written last
		if strings.HasPrefix(err[i+len("…"):], " ") { // and begins with what was written first, up to the middle of a word
			s.run(wholeWords(err[:i-min(i, 1)]), cutEnds)
		} else {
			s.run(err[:i], len(err))
		}
		tail := scanner{text: err[i+len("…"):]}
		tail.run(tail.text, len(err))
		return string(s.out) + "…" + lastPart(string(tail.out))
	}
	limit, isCut := len(err)*2, true
	switch {
	case len(err) > retry.MaxErrorLen-utf8.UTFMax:
		err, limit = wholeWords(err), cutLong
	case strings.HasSuffix(err, "…"):
		err, limit = wholeWords(strings.TrimSuffix(err, "…")), cutShort
		if len(err) > 2*cutEnds {
			limit = cutEnds
		}
	default:
		isCut = false
	}
	s.run(err, limit)
	if isCut && s.maskEnd > 0 && len(strings.TrimRight(string(s.out), " ")) == s.maskEnd { // a value that was cut may be cut off whole
		s.out = s.out[:s.maskFrom]
	}
	if isCut {
		return strings.TrimRight(string(s.out), " ")
	}
	return string(s.out)
}

// How many bytes of a fingerprint count of a text that was cut: at [retry.MaxErrorLen], or by a handler, after a KiB of an answer or of the
// beginning of an output; 256 bytes of an answer in versions before.
const (
	cutLong  = retry.MaxErrorLen / 2
	cutEnds  = 448
	cutShort = 192
	cutTail  = 128
)

// wholeWords leaves out the word in which a text was cut.
func wholeWords(s string) string {
	n := len(s)
	for n > 0 && s[n-1] != ' ' && s[n-1] != '"' && len(s)-n < 256 {
		n--
	}
	return strings.TrimRight(s[:n], " \"")
}

// lastPart is the end of a fingerprint whose beginning was cut.
func lastPart(print string) string {
	if len(print) > cutTail {
		print = print[len(print)-cutTail:]
	}
	_, words, ok := strings.Cut(print, " ")
	if !ok {
		return ""
	}
	return words
}
