package fingerprint

import (
	"net/http"
	"strconv"
	"strings"
	"unicode"
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

// scanner goes through an error once.
type scanner struct {
	text string
	at   int
	out  []byte

	// The last placeholder written is out[maskFrom:maskEnd].
	maskFrom, maskEnd int
	mask              kind

	// context is the word before that a number may be the status of, folded; else empty.
	context string
	// plainBefore says that the word before is any other one: in "coupon code 17" the code is no status.
	plainBefore bool
	digits      bool // the word before was a number
	before      byte // what the word before announces, of [announces]; else 0
	lower       bool // the word before had no capitals
}

// kind is a placeholder. Of several in a row the highest stays.
type kind byte

const (
	anID kind = iota
	anAddr
	aDuration
	aTime
)

var placeholders = [...]string{anID: "<*>", anAddr: "<addr>", aDuration: "<duration>", aTime: "<time>"}

// hide writes a placeholder. Only marks between it and the last one: the two are one.
func (s *scanner) hide(k kind) {
	if s.maskEnd > 0 && len(s.out)-s.maskEnd <= 4 && onlyMarks(s.out[s.maskEnd:]) {
		s.out, k = s.out[:s.maskFrom], max(k, s.mask)
	}
	s.maskFrom, s.mask = len(s.out), k
	s.out = append(s.out, placeholders[k]...)
	s.maskEnd = len(s.out)
}

func onlyMarks(b []byte) bool {
	for _, c := range b {
		switch c {
		case ' ', ',', '-', '.', '/', '+', ':', ';', '|', '_', '"', '\'', '\\':
		default:
			return false
		}
	}
	return true
}

func (s *scanner) keep(text string) { s.out = append(s.out, text...) }

// run reads a text until the fingerprint has limit bytes.
func (s *scanner) run(text string, limit int) {
	if strings.Contains(text, `\u`) {
		text = unescape(text)
	}
	s.text, s.at = text, 0
	for s.at < len(text) && len(s.out) < limit {
		s.next()
	}
}

// unescape writes the letters for \u00fc and \\u00fc.
func unescape(text string) string {
	var b strings.Builder
	for {
		i := strings.Index(text, `\u`)
		if i < 0 || len(text) < i+6 {
			b.WriteString(text)
			return b.String()
		}
		n, err := strconv.ParseUint(text[i+2:i+6], 16, 16)
		if err != nil || n < ' ' {
			b.WriteString(text[:i+2])
			text = text[i+2:]
			continue
		}
		b.WriteString(strings.TrimRight(text[:i], `\`))
		b.WriteRune(rune(n))
		text = text[i+6:]
	}
}

// next reads the next word or mark.
func (s *scanner) next() {
	rest := s.text[s.at:]
	c := rest[0]
	if c >= utf8.RuneSelf {
		switch r, n := utf8.DecodeRuneInString(rest); {
		case unicode.IsDigit(r):
			s.at += n
			s.hide(anID)
			s.word("")
			return
		case strings.ContainsRune("«„“‘", r) && s.announced(rest, r, n):
			return
		case unicode.IsSpace(r):
			s.at += n
			s.space()
			return
		case !isWordRune(r):
			s.at += n
			s.keep(rest[:n])
			s.context, s.plainBefore, s.before = "", false, 0
			return
		}
		s.nextWord(rest)
		return
	}
	isStart := s.at == 0 || !plainByte(s.text[s.at-1])
	switch class[c] {
	case digit, letter:
		if isHexDigit(c) && isStart {
			if n := colons(rest); n > 0 {
				s.at += n
				s.hide(anAddr)
				s.word("")
				return
			}
		}
		s.nextWord(rest)
		return
	case blank:
		s.at++
		s.space()
		return
	}
	switch c {
	case '"', '`', '\'', '(':
		if isStart && s.announced(rest, rune(c), 1) {
			return
		}
	case '[', ':':
		n := 0
		if c == '[' {
			n = bracketed(rest)
		} else if isStart {
			n = colons(rest)
		}
		if n > 0 {
			s.at += n
			s.hide(anAddr)
			s.word("")
			return
		}
	case '-', '$':
		if len(rest) > 1 && isDigit(rest[1]) && isStart { // a sign, or money
			s.at++
			return
		}
		if c == '-' && s.maskEnd > 0 && s.maskEnd == len(s.out) && (len(rest) == 1 || rest[1] != '>' && !wordByte(rest[1])) { // of an id
			s.at++
			return
		}
	case '/', '+':
		if isStart {
			if n := blob(rest); n > 0 {
				s.at += n
				s.hide(anID)
				s.word("")
				return
			}
		}
	case '\\':
		if len(rest) > 3 && rest[1] == 'x' && isHexDigit(rest[2]) && isHexDigit(rest[3]) {
			s.at += 4
			s.hide(anID)
			return
		}
		if len(rest) > 1 && strings.IndexByte("nrtbf", rest[1]) >= 0 { // a line ends in a string in JSON
			s.at += 2
			s.keep(rest[:2])
			s.context, s.plainBefore, s.before = "", false, 0
			return
		}
	case '%':
		if len(rest) > 2 && isHexDigit(rest[1]) && isHexDigit(rest[2]) && !isStart {
			s.at += 3
			s.keep(rest[:3])
			return
		}
	}
	s.at++
	s.keep(rest[:1])
	if c == '>' && !isStart { // <code>5</code>
		return
	}
	switch c {
	case '=', '/', '#', '\\':
	case ':', '(', '[', '"', '\'', '`':
		s.plainBefore = false
	default:
		s.context, s.plainBefore, s.before = "", false, 0 // the word before belongs to something else
	}
}

// space writes one space for several.
func (s *scanner) space() {
	if n := len(s.out); n > 0 && s.out[n-1] != ' ' {
		s.out = append(s.out, ' ')
	}
}

// announced reads what stands in quotes or parentheses, if that is declared to be a value: of Key (name)=(Ada), Duplicate entry
// 'Ada', user "ada" and "customer":"Ada Lovelace". It tells whether it did. A word in quotes after any other word is read as
// elsewhere.
func (s *scanner) announced(rest string, open rune, n int) bool {
	if s.before == 0 && (open != '(' || !strings.HasSuffix(s.text[:s.at], ")=")) {
		return false // as nearly always
	}
	const most = 200
	end := strings.IndexRune(rest[n:min(len(rest), most)], closing[open])
	if open == '\'' {
		for end > 0 && n+end+1 < len(rest) && wordByte(rest[n+end+1]) { // 'O'Brien'
			more := strings.IndexByte(rest[n+end+1:min(len(rest), most)], '\'')
			if more < 0 {
				return false
			}
			end += 1 + more
		}
	}
	if end <= 0 {
		return false
	}
	inside := rest[n : n+end]
	before := strings.TrimRight(s.text[max(0, s.at-4):s.at], " ")
	isValue := false
	switch {
	case open == '(':
		isValue = strings.HasSuffix(before, ")=") || s.before == 'r'
	case s.before == 'v':
		isValue = true
	case (s.before == 'p' || s.before == 'n') && (strings.HasSuffix(before, ":") || strings.HasSuffix(before, "=")):
		isValue = nameLen(inside) == len(inside) && strings.Contains(inside, " ")
	case s.before == 'p':
		isValue = nameLen(inside) == len(inside) || wordLen(inside).n == len(inside)
	}
	if !isValue || s.at == 0 {
		return false
	}
	s.keep(rest[:n])
	s.hide(anID)
	s.at += n + end
	s.word("")
	return true
}

// empty says that there is no value.
var empty = set("null nil None undefined NULL")

var closing = map[rune]rune{'"': '"', '\'': '\'', '`': '`', '(': ')', '«': '»', '„': '“', '“': '”', '‘': '’'}

func (s *scanner) nextWord(rest string) {
	size := wordLen(rest)
	w := rest[:size.n]
	n := 0
	if size.joined || len(w) < len(rest) && (rest[len(w)] == '/' || rest[len(w)] == '+' || rest[len(w)] == '=') {
		n = blob(rest)
	}
	if n = max(n, jwtLen(rest)); n > 0 && n >= len(w) {
		s.at += n
		s.hide(anID)
		s.word("")
		return
	}
	if size.joined && !isDigit(w[0]) {
		if head, _, ok := strings.Cut(w, ":"); ok {
			if known, _ := announced(head); known != 0 {
				w, size = head, wordLen(head) // status:503 is no host with its port
			}
		}
	}
	if s.before == 'p' && size.upper && s.text[s.at-1] == ' ' { // customer Ada Lovelace is locked, but Customer Not Found
		n := nameLen(rest)
		if s.lower && n > 0 || strings.IndexByte(rest[:n], ' ') > 0 && n+1 < len(rest) && rest[n] == ' ' && rest[n+1] >= 'a' && rest[n+1] <= 'z' {
			s.at += n
			s.hide(anID)
			s.word("")
			return
		}
	}
	if s.before == 'p' && s.text[s.at-1] == '=' && !empty[w] && !strings.HasPrefix(rest[len(w):], "(") { // user=ada
		s.at += len(w)
		s.hide(anID)
		s.word("")
		return
	}
	s.at += len(w)
	after := s.text[s.at:]
	if s.isCode(w, size) {
		s.keep(w)
		s.word("")
		return
	}
	if size.digits && number(w) {
		s.number(w, after)
		return
	}
	if s.context == "http" && (w == "1.1" || w == "1.0") { // HTTP/1.1 503
		s.hide(anID)
		return
	}
	if !size.digits && (size.upper && calendar(w) && (s.digits || dateFollows(after)) || s.digits && monthsElsewhere[strings.ToLower(w)]) {
		s.hide(aTime)
		s.digits = true
		s.zone()
		return
	}
	if !size.digits && !size.joined && !size.other && s.digits && s.maskEnd == len(s.out)-1 && counted[w] { // 1 row, 2 rows
		s.keep(w)
		s.keep("s")
		s.word(w)
		return
	}
	s.digits = false
	s.normal(w, size)
	s.word(w)
	if s.maskEnd == len(s.out) { // it ended with a number
		s.digits = true
		if s.mask == aTime {
			s.zone()
		} else {
			s.unit()
		}
	}
}

// number reads a number.
func (s *scanner) number(w, after string) {
	isVersion := s.context == "http" && s.text[s.at-len(w)-1] == '/' // HTTP/2 503
	isStatus := !isVersion && s.isStatus(w, after)
	if isVersion {
		s.hide(anID)
		return
	}
	s.context, s.plainBefore, s.before, s.digits = "", false, 0, true
	if isStatus {
		s.keep(w)
		return
	}
	// 1,234,567
	for len(after) >= 4 && after[0] == ',' && number(after[1:4]) && (len(after) == 4 || !wordByte(after[4])) {
		s.at += 4
		after = after[4:]
	}
	s.hide(anID)
	s.unit()
}

// unit reads the unit behind a number: 5 seconds, 1.2 GB, 12.50 EUR. It may change with the number.
func (s *scanner) unit() {
	rest := s.text[s.at:]
	if strings.HasPrefix(rest, "%") && (len(rest) == 1 || !isHexDigit(rest[1])) {
		s.at++
		return
	}
	word := strings.TrimPrefix(rest, " ")
	n := 0
	for _, micro := range []string{"µ", "μ"} {
		if strings.HasPrefix(word, micro) {
			n = len(micro)
		}
	}
	for n < len(word) && n < 12 && class[word[n]] == letter {
		n++
	}
	if n == 0 || n < len(word) && plainByte(word[n]) {
		return
	}
	if k, ok := units[word[:n]]; ok {
		s.at += len(rest) - len(word) + n
		s.hide(k)
	}
}

// zone reads what may follow a time: PM, UTC, GMT+0200.
func (s *scanner) zone() {
	rest := s.text[s.at:]
	word := strings.TrimPrefix(rest, " ")
	n := 0
	for n < len(word) && n < 5 && class[word[n]] == letter {
		n++
	}
	if n < 2 || !zones[word[:n]] {
		return
	}
	if m := n; m+5 <= len(word) && (word[m] == '+' || word[m] == '-') && number(word[m+1:m+5]) {
		n += 5
	}
	if n == len(word) || !plainByte(word[n]) {
		s.at += len(rest) - len(word) + n
		s.digits = true
		s.zone()
	}
}

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
