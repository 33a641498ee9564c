package http

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
)

// target is a URL that may have placeholders for tokens of the subject: in labels of its host, its path and its query. What they
// stand for is escaped by its place, so that a message can choose no more than the text of that place.
type target struct {
	scheme string
	user   *url.Userinfo
	port   string // with the colon
	host   []piece
	path   []piece // escaped
	query  []piece
	fixed  *url.URL // nil with placeholders
}

// piece is text, or a token of the subject.
type piece struct {
	text  string
	token int // from 1; 0: text; -1: the whole subject
}

// parseTarget says what is wrong with a URL without repeating any of it: net/url quotes the part that it cannot parse, which
// may be half a password.
func parseTarget(s string) (*target, error) {
	if s == "" {
		return nil, errors.New("is required")
	}
	// For net/url a placeholder is a word that occurs nowhere else.
	word := "placeholder"
	for strings.Contains(strings.ToLower(s), word) {
		word += "x"
	}
	plain, tokens, err := replacePlaceholders(s, word)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(plain)
	switch {
	case err != nil && !strings.Contains(s, "://"): // 127.0.0.1:8080 is no scheme
		return nil, errors.New("must begin with http:// or https://")
	case err != nil:
		return nil, errors.New("is not a URL (special characters in user info must be percent-encoded)")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("must begin with http:// or https://")
	case u.Hostname() == "":
		return nil, errors.New("has no host")
	case u.Fragment != "":
		return nil, errors.New("has a fragment, which is never sent")
	case u.User != nil && strings.Contains(u.User.String(), word):
		return nil, errors.New("has a placeholder in its user info: it may stand in the host, the path and the query")
	}
	t := &target{scheme: u.Scheme, user: u.User}
	u.User = nil
	if u.Port() != "" {
		t.port = ":" + u.Port()
	}
	next := 0
	cut := func(s string) (pieces []piece) {
		for i, text := range strings.Split(s, word) {
			if i > 0 {
				pieces = append(pieces, piece{token: tokens[next]})
				next++
			}
			if text != "" {
				pieces = append(pieces, piece{text: text})
			}
		}
		return pieces
	}
	host := u.Hostname()
	if strings.Contains(host, word) {
		host = strings.ToLower(host) // as the tokens in it
	}
	t.host, t.path, t.query = cut(host), cut(u.EscapedPath()), cut(u.RawQuery)
	if !t.hostChosen() {
		if _, err := netip.ParseAddr(host); err != nil && isNumber(host) {
			return nil, errors.New("has a number as its host, which resolvers read in different ways: write an address such as 192.0.2.1")
		}
	} else {
		if slices.ContainsFunc(t.host, func(p piece) bool { return p.token < 0 }) {
			return nil, errors.New("has {subject} in its host: only tokens, such as {2}, may stand there")
		}
		// What is wrong with the shortest token, which makes no number, is wrong with every message.
		if err := checkHost(strings.ReplaceAll(host, word, "n")); err != nil {
			return nil, fmt.Errorf("has a host with a placeholder that no token makes valid: %w", err)
		}
	}
	if next == 0 {
		t.fixed = u
	}
	return t, nil
}

// replacePlaceholders puts the word in place of each {1}, {2}, … and {subject}.
func replacePlaceholders(s, word string) (plain string, tokens []int, err error) {
	var b strings.Builder
	for {
		text, rest, found := strings.Cut(s, "{")
		name, after, closed := strings.Cut(rest, "}")
		if strings.Contains(text, "}") || found && !closed {
			return "", nil, errors.New("holds { or } outside a placeholder: write %7B and %7D for these characters")
		}
		b.WriteString(text)
		if !found {
			return b.String(), tokens, nil
		}
		n, errNumber := strconv.Atoi(name)
		switch {
		case name == "subject":
			n = -1
		case errNumber != nil || n < 1 || n > 999 || strconv.Itoa(n) != name:
			return "", nil, errors.New("has an unknown placeholder: use {1}, {2}, … for tokens of the subject, or {subject}")
		}
		tokens = append(tokens, n)
		b.WriteString(word)
		s = after
	}
}

// hostChosen tells whether a message has a part in the host.
func (t *target) hostChosen() bool {
	return slices.ContainsFunc(t.host, func(p piece) bool { return p.token != 0 })
}

// expand is the URL for a message on subj, whose host must be among hosts when there are any. What it refuses it refuses every time.
func (t *target) expand(subj string, hosts []string) (*url.URL, error) {
	if t.fixed != nil {
		return t.fixed, nil
	}
	tokens := strings.Split(subj, ".")
	fill := func(pieces []piece, escape func(string) string) (string, error) {
		var b strings.Builder
		for _, p := range pieces {
			switch {
			case p.token == 0:
				b.WriteString(p.text)
			case p.token < 0:
				b.WriteString(escape(subj))
			case p.token > len(tokens):
				return "", fmt.Errorf("the subject has no token {%d}", p.token)
			default:
				b.WriteString(escape(tokens[p.token-1]))
			}
		}
		return b.String(), nil
	}
	host, err := fill(t.host, strings.ToLower)
	if err != nil {
		return nil, err
	}
	if t.hostChosen() {
		if err := checkHost(host); err != nil {
			return nil, err
		}
		if len(hosts) > 0 && !slices.ContainsFunc(hosts, func(h string) bool { return hostMatches(h, host) }) {
			return nil, fmt.Errorf("the host %s is not in hosts", host)
		}
	}
	raw, err := fill(t.path, percent)
	if err != nil {
		return nil, err
	}
	path, err := url.PathUnescape(raw)
	if err != nil {
		return nil, errors.New("the path cannot be unescaped")
	}
	// Many a server resolves these segments, also when they are escaped.
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "." || segment == ".." {
			return nil, errors.New("the subject gives the path a . or .. segment")
		}
	}
	query, err := fill(t.query, percent)
	if err != nil {
		return nil, err
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return &url.URL{Scheme: t.scheme, Host: host + t.port, Path: path, RawPath: raw, RawQuery: query}, nil
}

// labels are the characters of a host's labels.
const labels = "abcdefghijklmnopqrstuvwxyz0123456789-"

// checkHost refuses a host, in lower case, that is not made of labels, or that some resolver takes for an address.
func checkHost(host string) error {
	if len(host) > 253 {
		return errors.New("the host is longer than 253 bytes")
	}
	for label := range strings.SplitSeq(host, ".") {
		switch {
		case label == "":
			return errors.New("the host has an empty label (a dot at its beginning or end, or two in a row)")
		case len(label) > 63:
			return errors.New("a label of the host is longer than 63 bytes")
		case strings.Trim(label, labels) != "":
			return errors.New("a label of the host may hold letters, digits and hyphens only")
		case label[0] == '-' || label[len(label)-1] == '-':
			return errors.New("a label of the host begins or ends with a hyphen")
		}
	}
	if isNumber(host) {
		return errors.New("the host is a number")
	}
	return nil
}

// isNumber tells whether a host may be read as an address by inet_aton(3), which takes 127.1, 0x7f000001 and 017700000001.
func isNumber(host string) bool {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	last := host[strings.LastIndexByte(host, '.')+1:]
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return last != "" && strings.Trim(last, "0123456789") == ""
}

// hostMatches tells whether a host is the one of an entry of hosts, in which * stands for one label.
func hostMatches(entry, host string) bool {
	want, got := strings.Split(strings.ToLower(entry), "."), strings.Split(host, ".")
	if len(want) != len(got) {
		return false
	}
	for i := range want {
		if want[i] != "*" && want[i] != got[i] {
			return false
		}
	}
	return true
}

// mayBe tells whether some token makes a host of an entry of hosts. A token is at least one character of one label.
func (t *target) mayBe(entry string) bool {
	var host strings.Builder
	for _, p := range t.host {
		if p.token != 0 {
			host.WriteString("?*")
		} else {
			host.WriteString(p.text)
		}
	}
	want, made := strings.Split(strings.ToLower(entry), "."), strings.Split(host.String(), ".")
	if len(want) != len(made) {
		return false
	}
	for i := range want {
		if ok, _ := path.Match(made[i], want[i]); !ok && want[i] != "*" {
			return false
		}
	}
	return true
}

// percent encodes all that has a meaning anywhere in a URL.
func percent(s string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0 {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
}
