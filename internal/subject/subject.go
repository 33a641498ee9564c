// Package subject knows the grammar of NATS subjects: tokens between dots, * for one token, > for one or more at the end.
//
// Stored subjects are bytes from strangers: they may hold wildcards and control bytes, so nothing here assumes that a
// literal subject is well-formed.
package subject

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Matches tells whether the literal subject lies in the pattern.
func Matches(pattern, literal string) bool {
	for {
		p, prest, pmore := strings.Cut(pattern, ".")
		l, lrest, lmore := strings.Cut(literal, ".")
		if p == ">" && !pmore {
			return true
		}
		if p != "*" && p != l {
			return false
		}
		if !pmore || !lmore {
			return pmore == lmore
		}
		pattern, literal = prest, lrest
	}
}

// Covers tells whether every subject that matches narrow matches wide too.
func Covers(wide, narrow string) bool {
	w, n := strings.Split(wide, "."), strings.Split(narrow, ".")
	for i, t := range w {
		if t == ">" && i == len(w)-1 {
			return len(n) > i
		}
		if i >= len(n) || n[i] == ">" || t != "*" && t != n[i] {
			return false
		}
	}
	return len(w) == len(n)
}

// Overlaps tells whether some subject matches both patterns.
func Overlaps(a, b string) bool {
	for {
		x, xrest, xmore := strings.Cut(a, ".")
		y, yrest, ymore := strings.Cut(b, ".")
		if x == ">" || y == ">" {
			return true
		}
		if x != y && x != "*" && y != "*" {
			return false
		}
		if !xmore || !ymore {
			return xmore == ymore
		}
		a, b = xrest, yrest
	}
}

// Intersect is the pattern of the subjects that match both patterns; ok is false when there are none.
func Intersect(a, b string) (both string, ok bool) {
	if !Overlaps(a, b) {
		return "", false
	}
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	var out []string
	for i := 0; i < len(x) && i < len(y); i++ {
		switch {
		case x[i] == ">":
			return strings.Join(append(out, y[i:]...), "."), true
		case y[i] == ">":
			return strings.Join(append(out, x[i:]...), "."), true
		case x[i] == "*":
			out = append(out, y[i])
		default:
			out = append(out, x[i])
		}
	}
	return strings.Join(out, "."), true
}

// Compare orders patterns by how specific they are: negative when a is the more specific one. Tokens are compared from
// the left: a literal goes before *, and * before >.
func Compare(a, b string) int {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := 0; i < len(x) && i < len(y); i++ {
		if d := rank(x[i]) - rank(y[i]); d != 0 {
			return d
		}
	}
	return len(y) - len(x)
}

func rank(token string) int {
	switch token {
	case "*":
		return 1
	case ">":
		return 2
	}
	return 0
}

// ValidatePattern says what is wrong with a subject that may hold wildcards.
func ValidatePattern(s string) error {
	for rest, more := s, true; more; {
		var t string
		t, rest, more = strings.Cut(rest, ".")
		switch {
		case t == "":
			return fmt.Errorf("%q has an empty token", s)
		case t == ">" && more:
			return fmt.Errorf("%q: > may only be the last token", s)
		case t != "*" && t != ">" && strings.ContainsAny(t, "*>"):
			return fmt.Errorf("%q: wildcards are whole tokens", s)
		case strings.ContainsFunc(t, func(r rune) bool { return r <= ' ' || r == 0x7f }):
			return fmt.Errorf("%q holds white space or a control byte", s)
		}
	}
	return nil
}

// MaxLen is the longest subject that relay publishes to, in bytes: past the server's 4,096-byte control line nats.go
// loses its connection for good, and the line holds a reply subject and sizes too.
const MaxLen = 3500

// ValidateLiteral says what is wrong with a subject to publish to: wildcards, empty tokens, white space, control bytes,
// more than [MaxLen] bytes, or a name that belongs to the server ($…, _INBOX).
func ValidateLiteral(s string) error {
	if err := ValidatePattern(s); err != nil {
		return err
	}
	switch {
	case strings.ContainsAny(s, "*>"):
		return fmt.Errorf("%q holds a wildcard", s)
	case ServersOwn(s):
		return fmt.Errorf("%q belongs to the server", s)
	case len(s) > MaxLen:
		return fmt.Errorf("subject of %d bytes is longer than %d", len(s), MaxLen)
	}
	return nil
}

// ServersOwn tells whether a subject, or pattern, begins with a name that belongs to the server: $JS, $KV and the like, or
// _INBOX.
func ServersOwn(s string) bool { return strings.HasPrefix(s, "$") || strings.HasPrefix(s, "_INBOX") }

// Inbox tells whether a subject is an inbox, on which somebody waits for an answer: one of _INBOX, of _INBOX_ and a name, or one that begins like
// own, the prefix of the inboxes of this connection (empty: _INBOX). Whoever answers a question publishes with rights of its own to a subject that somebody
// else chose, and the server does not ask whether that one may publish there.
func Inbox(s, own string) bool {
	first, rest, more := strings.Cut(s, ".")
	if !more || rest == "" || len(s) > MaxLen {
		return false
	}
	if first == "_INBOX" || strings.HasPrefix(first, "_INBOX_") {
		return true
	}
	own = strings.TrimSuffix(own, InstanceInbox)
	return own != "" && strings.HasPrefix(s, own+".")
}

// Inboxes is the pattern of all inboxes that begin as those of a connection do, of its service, instances and commands alike. own is the prefix of its
// inboxes; without one there is none.
func Inboxes(own string) (pattern string, ok bool) {
	tokens := strings.Split(strings.TrimSuffix(own, InstanceInbox), ".")
	if n := len(tokens); n > 2 && (tokens[n-2] == "operator" || tokens[n-2] == "viewer") {
		tokens = tokens[:n-2]
	}
	return strings.Join(tokens, ".") + ".>", own != ""
}

// Reserved are patterns of the subjects of a service of relay. Dead letters with a prefix of their own, and inboxes, are not among them.
func Reserved(service string) (patterns []string) {
	for _, what := range []string{"ctl", "dlq", "due", "event", "later", "park", "part"} {
		patterns = append(patterns, service+"."+what+".>")
	}
	return patterns
}

// InstanceInbox ends the prefix of the inboxes of relay's instances; those of its commands have another end.
const InstanceInbox = ".run"

// Template builds a string from the tokens of a subject: {1} is the first token, {subject} all of it, anything else
// stands for itself.
type Template struct {
	parts []part
}

type part struct {
	text  string
	token int // 1-based; 0 for text, -1 for the whole subject
}

// ParseTemplate reads a template; an error names the placeholder at fault.
func ParseTemplate(s string) (Template, error) {
	var t Template
	for s != "" {
		open := strings.IndexByte(s, '{')
		if open < 0 {
			t.parts = append(t.parts, part{text: s})
			break
		}
		if open > 0 {
			t.parts = append(t.parts, part{text: s[:open]})
		}
		name, rest, found := strings.Cut(s[open+1:], "}")
		if !found {
			return Template{}, fmt.Errorf("%q: { without }", s)
		}
		n, err := parsePlaceholder(name)
		if err != nil {
			return Template{}, err
		}
		t.parts = append(t.parts, part{token: n})
		s = rest
	}
	return t, nil
}

func parsePlaceholder(name string) (int, error) {
	if name == "subject" {
		return -1, nil
	}
	n := 0
	for _, r := range name {
		if r < '0' || r > '9' || n > 999 {
			n = 0
			break
		}
		n = n*10 + int(r-'0')
	}
	if n == 0 {
		return 0, fmt.Errorf("unknown placeholder {%s}: use {1}, {2}, … for tokens or {subject}", name)
	}
	return n, nil
}

// ErrNoToken is what Expand returns when the subject has fewer tokens than the template names.
var ErrNoToken = errors.New("the subject has too few tokens for the template")

// Expand fills the template from a literal subject.
func (t Template) Expand(literal string) (string, error) {
	if len(t.parts) == 1 { // most are fixed, or one token
		return t.parts[0].of(literal)
	}
	var b strings.Builder
	for _, p := range t.parts {
		text, err := p.of(literal)
		if err != nil {
			return "", err
		}
		b.WriteString(text)
	}
	return b.String(), nil
}

// of is the part for a subject.
func (p part) of(literal string) (string, error) {
	switch {
	case p.token == 0:
		return p.text, nil
	case p.token < 0:
		return literal, nil
	}
	for n, rest, more := 1, literal, true; more; n++ {
		var token string
		if token, rest, more = strings.Cut(rest, "."); n == p.token {
			return token, nil
		}
	}
	return "", ErrNoToken
}

// Tokens are the positions of the tokens that the template names, the first being 1; -1 stands for the whole subject.
func (t Template) Tokens() (list []int) {
	for _, p := range t.parts {
		if p.token != 0 {
			list = append(list, p.token)
		}
	}
	return list
}

// Pattern is the template as a subject pattern: a placeholder in a token makes that token *, and {subject}, or a token
// that could hold dots, makes the rest >.
func (t Template) Pattern() string {
	var b strings.Builder
	for _, p := range t.parts {
		switch {
		case p.token == 0:
			b.WriteString(p.text)
		case p.token < 0:
			b.WriteByte('>')
		default:
			b.WriteByte('*')
		}
	}
	tokens := strings.Split(b.String(), ".")
	for i, tok := range tokens {
		if strings.Contains(tok, ">") {
			return strings.Join(append(tokens[:i], ">"), ".")
		}
		if strings.Contains(tok, "*") {
			tokens[i] = "*"
		}
	}
	return strings.Join(tokens, ".")
}

var nameRule = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// IsName tells whether text may name a service, a route, a durable, a limit or a schedule: 1 to 64 letters, digits, - or _. It is then one token of
// a subject, and may be a key of a bucket.
func IsName(text string) bool { return nameRule.MatchString(text) }
