package events

import (
	"strings"
	"unicode/utf8"

	"github.com/relaymq/relay/event"
)

// What strangers wrote is cut to so many bytes.
const (
	maxText = 512
	maxName = 256
)

// bounded cuts what may be long.
func bounded(d event.Data) event.Data {
	d.Text, d.Why, d.Key, d.Subject, d.By, d.User = cut(d.Text, maxText), cut(d.Why, maxText), cut(d.Key, maxName), cut(d.Subject, maxName), cut(d.By, maxName), cut(d.User, maxName)
	return d
}

// cut also makes it valid UTF-8, which JSON is.
func cut(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\ufffd")
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit] + "…"
}
