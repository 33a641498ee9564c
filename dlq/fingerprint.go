package dlq

import (
	"net/http"
	"strconv"
	"strings"
)

// Fingerprint is an error without what differs from message to message, so that failures with the same cause have the same
// one: numbers and ids become <*>, dates and clock times <time>, durations <duration>, addresses <addr>, and what stands in
// quotes <text>.
//
// A status stays, for it says what went wrong, but only where it stands as one: after a word such as HTTP, status, exit,
// errno or answered, or before its own text (503 Service Unavailable). A number is nothing of the kind by its size: orders
// have numbers of three digits, too.
//
// It is for grouping and may change between versions of relay.
func Fingerprint(err string) string {
	var b strings.Builder
	b.Grow(len(err))
	s := scanner{text: err}
	for s.at < len(err) {
		b.WriteString(s.next())
	}
	return b.String()
}

// scanner goes through an error once.
type scanner struct {
	text string
	at   int
	// context is the word before that a number may be the status of, in lower case; else empty.
	context string
	// plainBefore says that the word before is any other one: in "coupon code 17" the code is no status.
	plainBefore bool
	digits      bool // the word before was a number
}

// next returns what stands for the next word or byte.
func (s *scanner) next() string {
	rest := s.text[s.at:]
	switch c := rest[0]; {
	case c == '"' || c == '`' || c == '\'' && (s.at == 0 || !wordByte(s.text[s.at-1])): // not the apostrophe of don't
		if n := quoted(rest); n > 0 {
			s.at += n
			s.word(rest[1 : n-1]) // {"status":503}
			return rest[:1] + "<text>" + rest[:1]
		}
	case c == '[' && bracketed(rest) > 0:
		s.at += bracketed(rest)
		s.word("")
		return "<addr>"
	case c == '-' && len(rest) > 1 && isDigit(rest[1]) && (s.at == 0 || !wordByte(s.text[s.at-1])):
		s.at++ // a sign
		return ""
	case c == ':' || isHexDigit(c) && (s.at == 0 || !wordByte(s.text[s.at-1])):
		if n := colons(rest); n > 0 {
			s.at += n
			s.word("")
			return "<addr>"
		}
		if c != ':' {
			return s.nextWord(rest)
		}
	case wordByte(c):
		return s.nextWord(rest)
	}
	s.at++
	switch rest[0] {
	case ' ', '\t', '=', '/', '#':
	case ':', '(', '[', '"', '\'', '`':
		s.plainBefore = false
	default:
		s.context, s.plainBefore = "", false // the word before belongs to something else
	}
	return rest[:1]
}

func (s *scanner) nextWord(rest string) string {
	n := wordLen(rest)
	w := rest[:n]
	// status:503 is no host with its port.
	if head, _, ok := strings.Cut(w, ":"); ok && contexts[strings.ToLower(head)] != 0 {
		n, w = len(head), head
	}
	s.at += n
	after := s.text[s.at:]
	if s.context == "sqlstate" && len(w) == 5 {
		s.word("")
		return w
	}
	if number(w) {
		keep := s.isStatus(w, after)
		if s.context == "http" && strings.HasSuffix(s.text[:s.at-n], "/") { // HTTP/2 503
			return "<*>"
		}
		s.context, s.plainBefore, s.digits = "", false, true
		if keep {
			return w
		}
		// 1,234,567
		for len(after) >= 4 && after[0] == ',' && number(after[1:4]) && (len(after) == 4 || !wordByte(after[4])) {
			s.at += 4
			after = after[4:]
		}
		return "<*>"
	}
	if s.context == "http" && w == "1.1" || w == "1.0" { // HTTP/1.1 503
		return "<*>"
	}
	if calendar(w) && (s.digits || dateFollows(after)) {
		s.digits = true
		return "<time>"
	}
	s.word(w)
	return normalWord(w, false)
}

// word notes a word that was read.
func (s *scanner) word(w string) {
	w = strings.ToLower(w)
	s.digits = w != "" && isDigit(w[0])
	switch contexts[w] {
	case 'c':
		if s.context == "" && s.plainBefore { // coupon code 17
			return
		}
		if s.context == "" {
			s.context = "code"
		}
	case 't':
		// responded with 503
	case 0:
		s.context, s.plainBefore = "", w != ""
	default:
		s.context, s.plainBefore = w, false
	}
}

// contexts are the words that a status may follow: s for any status of at most three digits, h for one of HTTP, e for one of
// HTTP that nothing else follows; t and c, code, pass on what came before.
var contexts = map[string]byte{
	"status": 's', "exit": 's', "exited": 's', "errno": 's', "signal": 's', "error": 's', "statuscode": 's', "status_code": 's', "http_status": 's',
	"http": 'h', "https": 'h', "answered": 'h', "responded": 'h', "replied": 'h', "response": 'h',
	"returned": 'e', "got": 'e', "received": 'e',
	"sqlstate": 'q', "with": 't', "code": 'c',
}

// isStatus tells whether a number stands as a status.
func (s *scanner) isStatus(w, after string) bool {
	n, err := strconv.Atoi(w)
	if err != nil || len(w) > 3 {
		return false
	}
	isHTTP := len(w) == 3 && n >= 100 && n <= 599
	switch contexts[s.context] {
	case 's', 'c':
		return true
	case 'h':
		return isHTTP
	case 'e':
		if isHTTP && (after == "" || strings.IndexByte(",;:.)]\n", after[0]) >= 0) {
			return true
		}
	}
	text := http.StatusText(n)
	return isHTTP && text != "" && !s.plainBefore && strings.HasPrefix(after, " "+text)
}

// quoted is the length of the text in quotes at the beginning of s, with them; 0 if they are never closed.
func quoted(s string) int {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case s[0]:
			return i + 1
		case '\\':
			i++
		}
	}
	return 0
}

// wordLen is the length of the word at the beginning of s. The marks of UUIDs, decimals, e-mail and IP addresses are part
// of a word between two of its bytes.
func wordLen(s string) int {
	n := 1
	for n < len(s) {
		switch c := s[n]; {
		case wordByte(c):
		case strings.IndexByte(".-@:+", c) >= 0 && n+1 < len(s) && wordByte(s[n+1]):
			if (c == ':' || c == '+') && !isDigit(s[n+1]) { // error:text; but host:port, and times
				return n
			}
		default:
			return n
		}
		n++
	}
	return n
}

func isDigit(c byte) bool    { return c >= '0' && c <= '9' }
func isLetter(c byte) bool   { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80 }
func isHexDigit(c byte) bool { return isDigit(c) || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' }
func wordByte(c byte) bool   { return isDigit(c) || isLetter(c) || c == '_' }
