package fingerprint

import (
	"net/http"
	"strconv"
	"strings"
)

// word notes a word that was read.
func (s *scanner) word(w string) {
	s.digits, s.before, s.lower = false, 0, false
	kind, folded := announced(w)
	switch kind {
	case 'c':
		if s.context == "" && s.plainBefore { // coupon code 17
			return
		}
		if s.context == "error" {
			s.context = "errorcode"
		}
		if s.context == "" {
			s.context = "code"
		}
	case 't':
		// responded with 503
	case 0, 'p', 'n', 'v', 'r':
		s.context, s.plainBefore, s.before = "", w != "", kind
		s.lower = w != "" && w[0] >= 'a'
	default:
		s.context, s.plainBefore = folded, false
	}
}

// announces says what follows a word, in small letters and without _ and -. A status: s for one of at most three digits, h for one of HTTP, e for one of
// HTTP that nothing else follows, x for one behind error, k for a code of up to five digits, or of digits and letters if it is the value of a key; y for such a value only; c, code, is like k if no plain word is before it; t passes on what came
// before. p is a person, n a name if it is a key, v a value, r a row in parentheses.
var announces = func() map[string]announcer {
	m := make(map[string]announcer)
	for kind, words := range map[byte]string{
		's': "status exit exited signal",
		'x': "error", 'y': "reason type fault errortype",
		'k': "errno winerror statuscode httpstatus httpcode httpstatuscode errorcode errcode errornumber subcode errorsubcode returncode resultcode responsecode " +
			"exitcode exitstatus reasoncode faultcode vendorcode retcode rc grpcstatus grpccode sqlstate",
		'h': "http https answered responded replied response",
		'e': "returned got received",
		't': "with", 'c': "code",
		'p': "user username login customer client account member employee patient recipient owner author contact buyer seller payee driver student guest " +
			"tenant holder cardholder fullname customername displayname firstname lastname contactname accountholder",
		'n': "name", 'v': "entry value", 'r': "contains",
	} {
		for w := range strings.FieldsSeq(words) {
			m[w] = announcer{kind, w}
		}
	}
	return m
}()

type announcer struct {
	kind byte
	word string
}

// lengths has, for each first letter, the lengths of what [announces] knows, as bits.
var lengths = func() (bits [256]uint32) {
	for w := range announces {
		bits[w[0]] |= 1 << len(w)
		bits[w[0]-'a'+'A'] = bits[w[0]]
	}
	return bits
}()

// announced is the kind of a word, and how it stands in [announces].
func announced(w string) (byte, string) {
	if w == "" || len(w) > 20 || lengths[w[0]]&(1<<len(w)) == 0 && (lengths[w[0]] == 0 || strings.IndexByte(w, '_') < 0 && strings.IndexByte(w, '-') < 0) {
		return 0, ""
	}
	var room [24]byte
	b := fold(room[:0], w)
	a := announces[string(b)]
	return a.kind, a.word
}

// fold writes a word in small letters and without _ and -.
func fold(b []byte, w string) []byte {
	for i := range len(w) {
		switch c := w[i]; {
		case c >= 'A' && c <= 'Z':
			b = append(b, c+'a'-'A')
		case c != '_' && c != '-':
			b = append(b, c)
		}
	}
	return b
}

// isStatus tells whether a number stands as a status.
func (s *scanner) isStatus(w, after string) bool {
	n, err := strconv.Atoi(w)
	if err != nil || len(w) > 5 {
		return false
	}
	isHTTP := len(w) == 3 && n >= 100 && n <= 599
	isAlone := after == "" || strings.IndexByte(",;:.)]}\n\"'<", after[0]) >= 0
	switch announces[s.context].kind {
	case 'k':
		return true
	case 's', 'c':
		return len(w) <= 3 || s.isValue(w)
	case 'x': // error 5: try later; Error 1062 (23000)
		return isAlone || strings.HasPrefix(after, " (") || s.statusText(n, after)
	case 'h':
		return isHTTP
	case 'e':
		if isHTTP && isAlone {
			return true
		}
	}
	return isHTTP && !s.plainBefore && s.statusText(n, after)
}

func (s *scanner) statusText(n int, after string) bool {
	text := http.StatusText(n)
	trimmed := strings.TrimLeft(after, ": -])")
	return text != "" && len(trimmed) < len(after) && strings.HasPrefix(trimmed, text)
}

// isValue tells whether the word that ends here is the value of a key: code=5, "code": "5".
func (s *scanner) isValue(w string) bool {
	before := strings.TrimRight(s.text[max(0, s.at-len(w)-4):s.at-len(w)], ` "'-\`)
	return strings.HasSuffix(before, ":") || strings.HasSuffix(before, "=") || strings.HasSuffix(before, ">")
}

// isCode tells whether a word with digits and letters is a code of a failure: "code":"42P01".
func (s *scanner) isCode(w string, size extent) bool {
	if s.context == "" || !size.digits || size.other || len(w) > 12 {
		return false
	}
	if s.context == "sqlstate" && len(w) == 5 {
		return true
	}
	if number(w) {
		return false
	}
	k := announces[s.context].kind
	after := s.text[s.at:]
	isWhole := k == 'k' || k == 'c' || (k == 'x' || k == 'y') && (after == "" || strings.IndexByte("\"'<\\", after[0]) >= 0)
	return isWhole && (strings.ToUpper(w) == w || strings.HasPrefix(w, "0x")) && !strings.ContainsAny(w, ".:+@") && s.isValue(w)
}
