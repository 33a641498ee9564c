package fingerprint

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

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
