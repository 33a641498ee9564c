package dlq

import "strings"

// Fingerprint is an error without what differs from message to message, so that failures with the same cause have the same
// one: numbers become <n>, UUIDs <uuid>, hex <hex>, other words with digits <id>, addresses <addr>, and what stands in
// quotes <text>. A status stays, for it says what went wrong: three digits from 100 to 599 that stand alone, and a number
// after status, code, errno, exit or signal.
//
// It is for grouping and may change between versions of relay.
func Fingerprint(err string) string {
	var b strings.Builder
	b.Grow(len(err))
	before := "" // the word before
	for i := 0; i < len(err); {
		switch c := err[i]; {
		case c == '"' || c == '`' || c == '\'' && (i == 0 || !wordByte(err[i-1])): // not the apostrophe of don't
			if n := strings.IndexByte(err[i+1:], c); n >= 0 {
				b.WriteByte(c)
				b.WriteString("<text>")
				b.WriteByte(c)
				i += n + 2
				continue
			}
			b.WriteByte(c)
			i++
		case c == '[' && ipv6(err[i:]) > 0:
			b.WriteString("<addr>")
			i += ipv6(err[i:])
		case wordByte(c):
			n := wordLen(err[i:])
			word := err[i : i+n]
			switch before {
			case "status", "code", "errno", "exit", "signal":
				if number(word) && n <= 3 {
					b.WriteString(word)
					break
				}
				fallthrough
			default:
				b.WriteString(normalWord(word))
			}
			before = word
			i += n
		default:
			b.WriteByte(c)
			i++
		}
	}
	return b.String()
}

func isDigit(c byte) bool    { return c >= '0' && c <= '9' }
func isLetter(c byte) bool   { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80 }
func isHexDigit(c byte) bool { return isDigit(c) || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' }
func wordByte(c byte) bool   { return isDigit(c) || isLetter(c) || c == '_' }

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

// normalWord is what stands for a word. What joins several words is taken apart unless it is something known.
func normalWord(w string) string {
	if strings.IndexByte(w, '@') > 0 {
		return "<addr>"
	}
	if strings.IndexFunc(w, func(r rune) bool { return r >= '0' && r <= '9' }) < 0 {
		return w
	}
	host, port, hasPort := strings.Cut(w, ":")
	switch {
	case w == "x509":
		return w
	case sourceFile(host) && number(port):
		return host + ":<n>"
	case uuid(w):
		return "<uuid>"
	case ipv4(host), hasPort && number(port) && !sourceFile(host) && strings.ContainsFunc(host, func(r rune) bool { return r >= 'a' && r <= 'z' }):
		return "<addr>"
	case number(w):
		if len(w) == 3 && w >= "100" && w <= "599" {
			return w
		}
		return "<n>"
	case hexWord(w):
		return "<hex>"
	}
	if at := strings.IndexAny(w, ".-:+"); at > 0 {
		// 1.5s, 2026-01-02T03:04:05, order-17, app.go:12
		return normalWord(w[:at]) + w[at:at+1] + normalWord(w[at+1:])
	}
	if unit := strings.TrimLeft(w, "0123456789"); len(unit) < len(w) && len(unit) <= 3 && strings.Trim(unit, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ\xc2\xb5") == "" {
		return "<n>" + unit // 30s, 250ms, 64KiB
	}
	if letters := strings.TrimRight(w, "0123456789"); len(letters) < len(w) && letters == strings.TrimRight(letters, "_") && plain(letters) && len(w)-len(letters) <= 2 {
		return w // sha256 would be too long, but utf8, x509 and http2 are names
	}
	return "<id>"
}

// plain tells whether s has letters only.
func plain(s string) bool {
	for i := range len(s) {
		if !isLetter(s[i]) {
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

func number(w string) bool {
	for i := range len(w) {
		if !isDigit(w[i]) {
			return false
		}
	}
	return w != ""
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

// ipv6 is the length of an address in brackets, with its port, at the beginning of s.
func ipv6(s string) int {
	end := strings.IndexByte(s, ']')
	if end < 3 || end > 60 || strings.Count(s[:end], ":") < 2 {
		return 0
	}
	for _, c := range []byte(s[1:end]) {
		if !isHexDigit(c) && c != ':' && c != '.' && c != '%' {
			return 0
		}
	}
	n := end + 1
	if n < len(s) && s[n] == ':' {
		for n++; n < len(s) && isDigit(s[n]); n++ {
		}
	}
	return n
}

// hexWord is 0x… or at least eight digits of hex.
func hexWord(w string) bool {
	if strings.HasPrefix(w, "0x") || strings.HasPrefix(w, "0X") {
		w = "0000000" + w[2:]
	}
	if len(w) < 8 {
		return false
	}
	for i := range len(w) {
		if !isHexDigit(w[i]) {
			return false
		}
	}
	return true
}
