package dlq

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// normalWord is what stands for a word, or, if part is set, for a part of one. What joins several words is taken apart unless it
// is something known.
//
// Numbers and ids have one placeholder: an id that happens to have digits only must not look like another kind of thing.
func normalWord(w string, part bool) string {
	if strings.IndexByte(w, '@') > 0 {
		return "<addr>"
	}
	if strings.IndexFunc(w, func(r rune) bool { return r >= '0' && r <= '9' }) < 0 {
		if part && calendar(w) { // 02-Jan-2026
			return "<time>"
		}
		if allHex(w) && len(w) >= 8 {
			return "<*>"
		}
		return w
	}
	if unit := strings.TrimLeft(w, "0123456789"); len(unit) < len(w) && units[strings.ToLower(unit)] {
		return "<*>" + unit // 64KiB
	}
	host, port, hasPort := strings.Cut(w, ":")
	switch {
	case names[strings.ToLower(w)]:
		return w
	case sourceFile(host) && number(port):
		return host + ":<*>"
	case dateOrClock(w):
		return "<time>"
	case len(w) >= 36 && uuid(w[:36]) && (len(w) == 36 || !wordByte(w[36])):
		if len(w) == 36 {
			return "<*>"
		}
		return "<*>" + w[36:37] + normalWord(w[37:], true)
	case ipv4(host), hasPort && number(port) && !sourceFile(host) && strings.ContainsFunc(host, func(r rune) bool { return r >= 'a' && r <= 'z' }):
		return "<addr>"
	case decimal(w):
		return "<*>"
	case duration(w):
		return "<duration>"
	case random(w):
		return "<*>"
	}
	if at := strings.IndexAny(w, ".-:+_"); at > 0 && at+1 < len(w) {
		// order-17, ord_8Fk2Lm, db-3.internal
		return normalWord(w[:at], true) + w[at:at+1] + normalWord(w[at+1:], true)
	}
	return "<*>"
}

// names have digits and are no ids.
var names = set("utf8 utf16 utf32 x509 http1 http2 http3 h2 h2c sha1 sha224 sha256 sha384 sha512 md5 crc32 base32 base64 int8 int16 int32 int64 " +
	"uint8 uint16 uint32 uint64 float32 float64 ipv4 ipv6 s3 ec2 k8s oauth2 tls1 p256 p384 ed25519 v1 v2 v3 v4 pkcs1 pkcs8 pkcs12 rs256 hs256 es256")

// units may follow a number without a space. No hex digit is among them: 12345d may be an id.
var units = set("kb mb gb tb kib mib gib tib")

var months = set("jan feb mar apr may jun jul aug sep oct nov dec january february march april june july august september october november december")

var weekdays = set("mon tue wed thu fri sat sun monday tuesday wednesday thursday friday saturday sunday")

func set(words string) map[string]bool {
	m := make(map[string]bool)
	for w := range strings.FieldsSeq(words) {
		m[w] = true
	}
	return m
}

// calendar tells whether w is the name of a month or a weekday. May, Sat and Sun are words too: see dateFollows.
func calendar(w string) bool {
	if len(w) < 3 || len(w) > 9 || w[0] < 'A' || w[0] > 'Z' {
		return false
	}
	w = strings.ToLower(w)
	return months[w] || weekdays[w]
}

// dateFollows tells whether a name in a calendar goes on as a date: Jan 2, or Mon, 02 Jan, or Mon Jan 2.
func dateFollows(after string) bool {
	rest := strings.TrimLeft(after, " ,")
	if rest == "" || len(rest) == len(after) {
		return false
	}
	return isDigit(rest[0]) || isLetter(rest[0]) && calendar(rest[:wordLen(rest)])
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
	_, err := strconv.ParseFloat(w, 64)
	return err == nil
}

// duration is one that Go prints.
func duration(w string) bool {
	if !isDigit(w[0]) || strings.Trim(w, "0123456789.nuµmsh") != "" {
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

// random is an id that was drawn with - among its letters: one of its parts mixes digits, capitals and small letters, and
// another one may have letters only.
func random(w string) bool {
	if !strings.Contains(w, "-") || strings.ContainsAny(w, ".:+") {
		return false
	}
	for p := range strings.FieldsFuncSeq(w, func(r rune) bool { return r == '-' || r == '_' }) {
		if len(p) >= 5 && strings.ContainsAny(p, "0123456789") && strings.ToLower(p) != p && strings.ToUpper(p) != p {
			return true
		}
	}
	return false
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
	if n < 3 || strings.Count(s[:n], ":") < 2 || n < len(s) && wordByte(s[n]) {
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
