package fingerprint

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// normal writes what stands for a word. What joins several words is taken apart unless it is something known.
//
// Numbers and ids have one placeholder: an id that happens to have digits only must not look like another kind of thing.
func (s *scanner) normal(w string, size extent) {
	if size.at && isMail(w) {
		s.hide(anAddr)
		return
	}
	if !size.digits && !size.joined {
		if len(w) >= 8 && (allHex(w) || size.upper && isMixed(w)) {
			s.hide(anID)
			return
		}
		s.keep(w)
		return
	}
	if size.other && size.digits && !duration(w) { // 订单12345不存在
		s.byScript(w)
		return
	}
	if size.digits {
		if k, ok := known(w, size); ok {
			s.hide(k)
			return
		}
		if len(w) > 36 && uuid(w[:36]) && !wordByte(w[36]) {
			s.hide(anID)
			s.keep(w[36:37])
			s.normal(w[37:], wordLen(w[37:]))
			return
		}
		if host, port, ok := strings.Cut(w, ":"); ok && sourceFile(host) && number(port) {
			s.keep(host)
			s.keep(":")
			s.hide(anID)
			return
		}
	}
	s.parts(w, size)
}

// known is the placeholder of a word that is one thing.
func known(w string, size extent) (kind, bool) {
	switch {
	case !isDigit(w[0]):
		return anID, len(w) == 36 && uuid(w)
	case dateOrClock(w):
		return aTime, true
	case len(w) == 36 && uuid(w):
		return anID, true
	case size.joined && ipv4(w):
		return anAddr, true
	case decimal(w):
		return anID, true
	case duration(w):
		return aDuration, true
	}
	number := strings.TrimRight(w, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZµ")
	if unit := w[len(number):]; unit != "" && strings.Trim(number, "0123456789.") == "" { // 64KiB
		k, ok := units[unit]
		return k, ok
	}
	return anID, false
}

// parts writes a word of several parts: order-17, ord_8Fk2Lm, db-3.internal. A part with digits goes, and with it the parts beside it
// that are no words either, as in ORD-2024-0815, billing-7d9f8b6c5-xkwzl and V1StGXR8_Z5jdHi6B-myT.
func (s *scanner) parts(w string, size extent) {
	type part struct {
		from, to int
		hide     bool
		kind     kind
	}
	var room [16]part
	list := room[:0]
	hidden := false
	for from := 0; from <= len(w); {
		to := from
		for to < len(w) && strings.IndexByte(".-:+_@", w[to]) < 0 {
			to++
		}
		p := part{from: from, to: to}
		if text := w[from:to]; text != "" {
			p.hide, p.kind = hidePart(text), anID
			if !p.hide && from > 0 && w[from-1] == '_' && len(text) >= 8 { // cus_NffrFeUfNVHibQ
				p.hide = hasInner(text) && oddCase(text)+rarePairs(text) > 0
			}
			hidden = hidden || p.hide
		}
		list = append(list, p)
		from = to + 1
	}
	if hidden {
		isDrawn := size.upper && (len(w) >= 40 || len(w) >= 16 && !strings.ContainsAny(w, ".:+@"))
		for i := range list {
			p := &list[i]
			text := w[p.from:p.to]
			if p.hide || text == "" || names[strings.ToLower(text)] {
				continue
			}
			left, right := i > 0 && list[i-1].hide, i+1 < len(list) && list[i+1].hide
			p.kind = anID
			switch {
			case !left && !right:
			case calendar(text) && !isUpper(text): // 02-Jan-2026
				p.hide, p.kind = true, aTime
			case i == 0 && len(text) <= 5 && w[p.to] == '-' && isUpper(text) && !standards[text]: // ORD-17
				p.hide = true
			case left && len(text) <= 4 && isUpper(text), len(text) >= 4 && !hasVowel(text) && w[max(p.from, 1)-1] != '.', size.upper && oddCase(text) > 0:
				p.hide = true
			case isDrawn && (left || right && i > 0) && (len(text) <= 3 || len(w) >= 40 && rarePairs(text) > 0):
				p.hide = true
			}
		}
	}
	for i, p := range list {
		if i > 0 {
			s.keep(w[p.from-1 : p.from])
		}
		text := w[p.from:p.to]
		switch {
		case p.hide:
			s.hide(p.kind)
		case isCamel(text):
			s.camel(text)
		default:
			s.keep(text)
		}
	}
}

// hidePart tells whether a part of a word is an id, and no word.
func hidePart(p string) bool {
	if !strings.ContainsAny(p, "0123456789") {
		return len(p) >= 8 && (allHex(p) || isMixed(p)) || len(p) >= 6 && !hasVowel(p) && strings.ToLower(p) == p
	}
	return !names[strings.ToLower(p)] && !isCamel(p)
}

// byScript writes a word with digits that has letters of ASCII and others: only the former can be ids.
func (s *scanner) byScript(w string) {
	for w != "" {
		n := 0
		for n < len(w) && (w[n] < 0x80) == (w[0] < 0x80) {
			n++
		}
		piece := w[:n]
		w = w[n:]
		if x := wordLen(piece); piece[0] < 0x80 && x.n == len(piece) && x.digits {
			s.normal(piece, x)
		} else {
			s.keep(piece)
		}
	}
}

// isCamel is Base64DecodeError or Order17Missing: words with a number between them.
func isCamel(w string) bool {
	i := strings.IndexAny(w, "0123456789")
	if i <= 0 {
		return false
	}
	j := i
	for j < len(w) && isDigit(w[j]) {
		j++
	}
	head, tail := w[:i], w[j:]
	return len(tail) >= 4 && tail[0] >= 'A' && tail[0] <= 'Z' && !strings.ContainsAny(tail, "0123456789") && strings.ToUpper(tail[1:4]) != tail[1:4] &&
		strings.ToLower(tail[1:4]) == tail[1:4] && oddCase(head)+oddCase(tail)+rarePairs(head)+rarePairs(tail) == 0 && hasVowel(tail) && len(head)+len(tail) >= 6
}

// camel writes such a word without its number.
func (s *scanner) camel(w string) {
	i := strings.IndexAny(w, "0123456789")
	s.keep(w[:i])
	s.hide(anID)
	s.keep(strings.TrimLeft(w[i:], "0123456789"))
}

// isMixed tells letters drawn from both cases from CamelCase and getURL.
func isMixed(w string) bool {
	if !hasInner(w) || strings.HasSuffix(w, "Error") || strings.HasSuffix(w, "Exception") {
		return false
	}
	odd, rare := oddCase(w), rarePairs(w)
	return odd >= 2 && odd*7 >= len(w) || rare >= 3 && rare*5 >= len(w) || odd >= 1 && rare >= 1 && odd+rare >= 3 && (odd+rare)*5 >= len(w) || len(w) >= 16 && odd+rare >= 3 && (odd+rare)*8 >= len(w)
}

// hasInner tells whether a word has small letters, and a capital behind its first letter.
func hasInner(w string) bool {
	small, inner := false, false
	for i := range len(w) {
		small = small || w[i] >= 'a' && w[i] <= 'z'
		inner = inner || i > 0 && w[i] >= 'A' && w[i] <= 'Z'
	}
	return small && inner
}

// rarePairs counts letters beside each other that hardly any word has. Where a capital follows a small letter another word may begin.
func rarePairs(w string) (n int) {
	for i := 1; i < len(w); i++ {
		a, b := w[i-1]|0x20, w[i]|0x20
		if a >= 'a' && a <= 'z' && b >= 'a' && b <= 'z' && (w[i] >= 'a' || w[i-1] < 'a') && rare[a-'a']&(1<<(b-'a')) != 0 {
			n++
		}
	}
	return n
}

// rare has, for each letter, those that follow it in less than 0.12 % of the words in Go's standard library, as bits.
var rare = func() (t [26]uint32) {
	for row := range strings.FieldsSeq("ahjoqz bhkmnqvwxz cjqwxz dhjkqz ejz fhjkqvwxz gbdfjkqvwxyz hbcfghjknpqvwxyz ihijkquwy jbcdfghijklmnopqrtvxyz kbcdhjkoqruvwxyz ljqwxz mfghjqrvwxz njqxz " +
		"ohjqyz pbjnqvwxz qabcdefghijkmnopqrstvwxyz rhjqxz sjqxz tjkqz uhjkquvwyz vbdghjknqrtuvwxyz wbcfgjkmqtuvwxyz xghjklnoqruwyz ybdfghjklqruwxyz zbcdfghjklmnopqrstuvwxy") {
		for _, c := range []byte(row[1:]) {
			t[row[0]-'a'] |= 1 << (c - 'a')
		}
	}
	return t
}()

// oddCase counts what is rare in words with capitals inside: a small letter between two capitals, several capitals before a
// small letter, a capital at the end behind a small letter.
func oddCase(w string) int {
	odd := 0
	for i := 1; i < len(w); i++ {
		isUp, wasUp := w[i] >= 'A' && w[i] <= 'Z', w[i-1] >= 'A' && w[i-1] <= 'Z'
		switch {
		case isUp && !wasUp && (i == len(w)-1 || i >= 2 && w[i-2] >= 'A' && w[i-2] <= 'Z' || i == 1):
			odd++
		case !isUp && wasUp && i >= 3 && w[i-2] >= 'A' && w[i-2] <= 'Z':
			odd++
		}
	}
	return odd
}

func isUpper(w string) bool  { return strings.ToUpper(w) == w }
func hasVowel(w string) bool { return strings.ContainsAny(w, "aeiouyAEIOUY") || !isASCII(w) }

func isASCII(w string) bool {
	for i := range len(w) {
		if w[i] >= 0x80 {
			return false
		}
	}
	return true
}

func isMail(w string) bool {
	_, host, _ := strings.Cut(w, "@")
	return strings.IndexByte(host, '.') > 0
}

// blob is the length of what is base64, with +, / or = in it, at the beginning of s; 0 if there is none.
func blob(s string) int {
	n := 0
	for n < len(s) && (class[s[n]] == digit || class[s[n]] == letter || strings.IndexByte("+/_-", s[n]) >= 0) {
		n++
	}
	body := s[:n]
	for n < len(s) && n < len(body)+2 && s[n] == '=' {
		n++
	}
	isSure := strings.IndexByte(body, '+') >= 0
	if n > len(body) && n >= 20 && (n == len(s) || !plainByte(s[n])) && hasInner("-"+body) && (strings.ContainsAny(body, "0123456789+/") || isMixed(body)) {
		return n
	}
	n = len(body)
	if n < 20 || !isSure && strings.IndexByte(body, '/') < 0 {
		return 0
	}
	drawn := 0
	for p := range strings.FieldsFuncSeq(body, func(r rune) bool { return strings.ContainsRune("+/_-", r) }) {
		hasDigit := strings.ContainsAny(p, "0123456789")
		if !isSure && !hasDigit && len(p) > 3 && oddCase(p) == 0 && hasVowel(p) && rarePairs(p) == 0 {
			return 0 // a word of a path
		}
		if hasDigit && strings.ToLower(p) != p && strings.ToUpper(p) != p || isMixed(p) {
			drawn += len(p)
		}
	}
	if drawn < 8 {
		return 0
	}
	return n
}

// jwtLen is the length of a JWT, which begins with {" in base64, at the beginning of s; 0 if there is none.
func jwtLen(s string) int {
	if !strings.HasPrefix(s, "eyJ") {
		return 0
	}
	n := 0
	for n < len(s) && (class[s[n]] == digit || class[s[n]] == letter || strings.IndexByte("._-", s[n]) >= 0) {
		n++
	}
	if n < 20 {
		return 0
	}
	return len(strings.TrimRight(s[:n], "."))
}

// nameLen is the length of the name of a person at the beginning of s: Ada Lovelace, J. van der Berg; 0 if there is none.
func nameLen(s string) int {
	n := 0
	for at := 0; at < len(s); {
		x := 0
		for x < len(s[at:]) && (isLetter(s[at+x]) || x > 0 && strings.IndexByte("-'.", s[at+x]) >= 0 && (s[at+x] != '.' || x == 1)) {
			x++
		}
		w := strings.TrimRight(s[at:at+x], "-'")
		r, _ := utf8.DecodeRuneInString(w)
		switch {
		case w == "":
			return n
		case n > 0 && particles[w]:
		case !unicode.IsUpper(r) || len(w) > 2 && isUpper(w) || noNames[w] || strings.HasSuffix(w, "Error") || strings.HasSuffix(w, "Exception"):
			return n
		default:
			n = at + len(w)
		}
		at += len(w)
		if at >= len(s) || s[at] != ' ' {
			if at < len(s) && (s[at] == ':' || wordByte(s[at])) {
				return 0
			}
			return n
		}
		at++
	}
	return n
}

// dateFollows tells whether a name in a calendar goes on as a date: Jan 2, or Mon, 02 Jan, or Mon Jan 2.
func dateFollows(after string) bool {
	rest := strings.TrimLeft(after, " ,")
	if rest == "" || len(rest) == len(after) {
		return false
	}
	return isDigit(rest[0]) || isLetter(rest[0]) && calendar(rest[:wordLen(rest).n])
}

func number(w string) bool {
	for i := range len(w) {
		if !isDigit(w[i]) {
			return false
		}
	}
	return w != ""
}

// decimal is 1.5, 1.2.3 or 1e+06.
func decimal(w string) bool {
	if !isDigit(w[0]) {
		return false
	}
	if strings.Trim(w, "0123456789.") == "" {
		return true
	}
	if strings.Trim(w, "0123456789.eE+-") != "" {
		return false
	}
	_, err := strconv.ParseFloat(w, 64)
	return err == nil
}

// duration is one that Go prints.
func duration(w string) bool {
	if !isDigit(w[0]) || isDigit(w[len(w)-1]) || strings.Trim(w, "0123456789.nuµmsh") != "" {
		return false
	}
	_, err := time.ParseDuration(w)
	return err == nil
}

// dateOrClock is something that begins with 2026-01-02, or with 15:04.
func dateOrClock(w string) bool {
	if len(w) >= 10 && number(w[:4]) && w[4] == '-' && number(w[5:7]) && w[7] == '-' && number(w[8:10]) && (len(w) == 10 || w[10] == 'T' || w[10] == 't' || w[10] == ':') {
		return true
	}
	if len(w) >= 4 && w[1] == ':' { // 9:05
		return isDigit(w[0]) && number(w[2:4]) && (len(w) == 4 || w[4] == ':')
	}
	return len(w) >= 5 && number(w[:2]) && w[2] == ':' && number(w[3:5]) && (len(w) == 5 || w[5] == ':')
}

func uuid(w string) bool {
	if len(w) != 36 || w[8] != '-' || w[13] != '-' || w[18] != '-' || w[23] != '-' {
		return false
	}
	for i := range len(w) {
		if w[i] != '-' && !isHexDigit(w[i]) {
			return false
		}
	}
	return true
}

func allHex(w string) bool {
	for i := range len(w) {
		if !isHexDigit(w[i]) {
			return false
		}
	}
	return true
}

// sourceFile tells app.go:12 from host.example:12.
func sourceFile(w string) bool {
	switch w[strings.LastIndexByte(w, '.')+1:] {
	case "go", "py", "js", "ts", "rb", "rs", "java", "php", "sh", "c", "cc", "cpp", "ex", "kt":
		return strings.Contains(w, ".")
	}
	return false
}

func ipv4(w string) bool {
	w, _, _ = strings.Cut(w, ":") // and its port
	if strings.Count(w, ".") != 3 {
		return false
	}
	for p := range strings.SplitSeq(w, ".") {
		if !number(p) || len(p) > 3 {
			return false
		}
	}
	return true
}

// bracketed is the length of an IPv6 address in brackets, with its port, at the beginning of s.
func bracketed(s string) int {
	end := strings.IndexByte(s, ']')
	if end < 3 || end > 60 || strings.Count(s[:end], ":") < 2 {
		return 0
	}
	if _, err := netip.ParseAddr(s[1:end]); err != nil {
		return 0
	}
	n := end + 1
	if n < len(s) && s[n] == ':' {
		for n++; n < len(s) && isDigit(s[n]); n++ {
		}
	}
	return n
}

// colons is the length of an IPv6 or hardware address at the beginning of s.
func colons(s string) int {
	n := 0
	for n < len(s) && n < 60 && (isHexDigit(s[n]) || s[n] == ':' || s[n] == '.') {
		n++
	}
	n = len(strings.TrimRight(s[:n], "."))
	if strings.HasSuffix(s[:n], ":") && !strings.HasSuffix(s[:n], "::") { // of the text around it
		n--
	}
	if n < 3 || strings.Count(s[:n], ":") < 2 || n < len(s) && plainByte(s[n]) {
		return 0
	}
	if _, err := netip.ParseAddr(s[:n]); err == nil {
		return n
	}
	if _, err := net.ParseMAC(s[:n]); err == nil {
		return n
	}
	return 0
}
