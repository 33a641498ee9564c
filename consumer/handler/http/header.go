package http

import (
	"maps"
	"mime"
	nethttp "net/http"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/handler/internal/headerlist"
)

// Bounds of what is copied from a message's headers.
const (
	maxForwardedValue = 8 << 10
	maxForwardedAll   = 32 << 10
)

// forward copies the allowed headers of a message. Names are compared without case: NATS keeps the publisher's spelling,
// and the same header may be there in several.
func forward(to nethttp.Header, from nats.Header, allowed headerlist.List) {
	if allowed.Empty() {
		return
	}
	room := maxForwardedAll
	for _, name := range sortedKeys(from) { // in order, so that every attempt leaves out the same
		if !allowed.Has(name) || !validName(name) || ownHeader(name) || neverForwarded(name) {
			continue
		}
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		if canonical == "Content-Type" { // always there, once
			continue
		}
		for _, value := range from[name] {
			size := len(canonical) + len(value)
			if len(value) > maxForwardedValue || size > room || !validValue(value) {
				continue
			}
			room -= size
			to.Add(canonical, value)
		}
	}
}

// defaultType says nothing of the body, which is not looked at: its type would change with its content.
const defaultType = "application/octet-stream"

// contentType is the message's own Content-Type when that is a media type. It is for those who have asked for it: a publisher
// could otherwise choose how the endpoint reads a body (as a form, as XML), or pass a filter that goes by type.
func contentType(h nats.Header) string {
	best, typ := "", defaultType
	for name, values := range h {
		if len(values) == 0 || !strings.EqualFold(name, "Content-Type") || best != "" && name > best {
			continue
		}
		value := values[0]
		if _, _, err := mime.ParseMediaType(value); err == nil && len(value) <= maxForwardedValue && validValue(value) {
			best, typ = name, value // the same one in every attempt
		}
	}
	return typ
}

// deadline is t as RFC 3339 in UTC with milliseconds. That layout is no case of its own for the package time, which
// takes longer to format it than the one with whole seconds.
func deadline(t time.Time) string {
	t = t.UTC()
	b := t.AppendFormat(make([]byte, 0, len("2006-01-02T15:04:05.000Z")), time.RFC3339)
	ms := t.Nanosecond() / int(time.Millisecond)
	return string(append(b[:len(b)-1], '.', byte('0'+ms/100), byte('0'+ms/10%10), byte('0'+ms%10), 'Z'))
}

// escape makes any bytes a header value that can be turned back: what is not printable ASCII, and the percent sign, is
// percent-encoded.
func escape(s string) string {
	plain := func(c byte) bool { return c > ' ' && c < 0x7f && c != '%' }
	i := 0
	for i < len(s) && plain(s[i]) {
		i++
	}
	if i == len(s) {
		return s
	}
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	b.WriteString(s[:i])
	for ; i < len(s); i++ {
		if c := s[i]; plain(c) {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
}

// validName tells whether s is a token of RFC 9110, which header names are.
func validName(s string) bool {
	for i := range len(s) {
		c := s[i]
		alphanumeric := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alphanumeric && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}

// validValue tells whether s may be a header value: no control bytes but tab.
func validValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
