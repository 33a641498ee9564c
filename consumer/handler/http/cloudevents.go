package http

import (
	"fmt"
	"mime"
	nethttp "net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/internal/subject"
)

// What [Config].CloudEvents says.
const (
	eventsOff    = "off"
	eventsPass   = "pass"
	eventsBinary = "binary"
)

// eventFaults returns what is wrong with the keys of CloudEvents.
func (c Config) eventFaults() (errs []error) {
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !slices.Contains([]string{eventsOff, eventsPass, eventsBinary}, c.CloudEvents) {
		fault("cloudevents: must be off, pass or binary (got %q)", c.CloudEvents)
		return errs
	}
	if _, err := subject.ParseTemplate(c.EventType); err != nil {
		fault("event_type: %w", err)
	}
	if _, err := url.Parse(c.EventSource); err != nil {
		fault("event_source: must be a URI reference (got %q)", c.EventSource)
	}
	return errs
}

// event is a CloudEvent as it goes over HTTP in binary mode: its attributes by their names, but for datacontenttype.
type event struct {
	attributes  map[string]string
	contentType string // empty: none
}

// events makes CloudEvents of messages. The zero value makes none.
type events struct {
	mode   string
	typ    subject.Template
	source string // empty: /nats/<stream>
}

// header adds what m is as a CloudEvent. A message in binary mode keeps its attributes, and one in structured mode its body and its
// type. What is neither is made one, or sent as it stands. The bindings of CloudEvents 1.0 for NATS and HTTP differ in this: over NATS the
// type of the data is an attribute like others, and over HTTP it is Content-Type.
func (e *events) header(to nethttp.Header, m *consumer.Msg) {
	if e.mode == "" || e.mode == eventsOff {
		return
	}
	for name := range to { // forward_headers may have copied some, in the form of NATS
		if hasPrefix(name, "ce-") {
			delete(to, name)
		}
	}
	if typ := contentType(m.Header); isStructured(typ) {
		to["Content-Type"] = []string{typ}
		return
	}
	ev, ok := eventOf(m.Header)
	if !ok && e.mode == eventsBinary {
		ev = e.make(m)
	} else if !ok {
		return
	}
	for name, value := range ev.attributes {
		to[textproto.CanonicalMIMEHeaderKey("ce-"+name)] = []string{encodeAttribute(value)}
	}
	if ev.contentType != "" {
		to["Content-Type"] = []string{ev.contentType}
	}
}

// make makes an event of a message that is none.
func (e *events) make(m *consumer.Msg) event {
	typ, err := e.typ.Expand(m.Subject)
	if err != nil {
		typ = m.Subject // too few tokens
	}
	source := e.source
	if source == "" {
		source = "/nats/" + m.Stream
	}
	ev := event{attributes: map[string]string{
		"specversion": "1.0", "id": m.ID, "source": source, "type": valid(typ), "subject": valid(m.Subject), "time": m.Time.UTC().Format(time.RFC3339Nano),
	}}
	if typ := contentType(m.Header); typ != defaultType {
		ev.contentType = typ
	}
	return ev
}

// valid makes text of a subject, which may hold any byte.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// eventOf reads an event in binary mode out of a message's headers. It returns false for what lacks a required attribute, or is not
// encoded as it has to be: that is no event.
func eventOf(h nats.Header) (event, bool) {
	ev := event{attributes: map[string]string{}}
	room := maxForwardedAll
	for _, name := range sortedKeys(h) { // in order: of two spellings every attempt takes the same
		if !hasPrefix(name, "ce-") || len(h[name]) == 0 {
			continue
		}
		attribute := strings.ToLower(name[len("ce-"):])
		if attribute == "" || strings.Trim(attribute, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
			continue
		}
		value, ok := decodeAttribute(h[name][0])
		if room -= len(name) + len(value); !ok || len(value) > maxForwardedValue || room < 0 {
			return event{}, false
		}
		ev.attributes[attribute] = value
	}
	for _, required := range []string{"specversion", "id", "source", "type"} {
		if ev.attributes[required] == "" {
			return event{}, false
		}
	}
	typ, ok := ev.attributes["datacontenttype"]
	delete(ev.attributes, "datacontenttype")
	if !ok {
		typ = contentType(h)
	}
	if _, _, err := mime.ParseMediaType(typ); err == nil && validValue(typ) && typ != defaultType {
		ev.contentType = typ
	}
	return ev, true
}

// isStructured tells whether a media type says that the body is an event, or several.
func isStructured(typ string) bool {
	media, _, err := mime.ParseMediaType(typ)
	return err == nil && (strings.HasPrefix(media, "application/cloudevents+") || strings.HasPrefix(media, "application/cloudevents-batch+") || media == "application/cloudevents")
}

// encodeAttribute is the HTTP binding's 3.1.3.2: space, quotation mark, percent sign and all outside of printable ASCII are
// percent-encoded.
func encodeAttribute(s string) string {
	plain := func(c byte) bool { return c > ' ' && c < 0x7f && c != '"' && c != '%' }
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; plain(c) {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
}

// decodeAttribute decodes once. A percent sign that encodes nothing stands for itself. It returns false for what is not UTF-8 then.
func decodeAttribute(s string) (string, bool) {
	digit := func(c byte) (byte, bool) {
		switch {
		case c >= '0' && c <= '9':
			return c - '0', true
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			return c | 0x20 - 'a' + 10, true
		}
		return 0, false
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			hi, ok1 := digit(s[i+1])
			lo, ok2 := digit(s[i+2])
			if ok1 && ok2 {
				b.WriteByte(hi<<4 | lo)
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String(), utf8.ValidString(b.String())
}
