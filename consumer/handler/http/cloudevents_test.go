package http

import (
	"maps"
	nethttp "net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/handler/internal/handlertest"
)

// What arrives at the endpoint of a message of each form.
func TestHandle_cloudEvents(t *testing.T) {
	got := make(chan map[string]string, 1)
	s := serve(t, func(_ nethttp.ResponseWriter, r *nethttp.Request) {
		m := map[string]string{}
		for name, values := range r.Header {
			if hasPrefix(name, "ce-") || name == "Content-Type" {
				m[strings.ToLower(name)] = strings.Join(values, "|")
			}
		}
		got <- m
	})
	binary := nats.Header{
		"ce-specversion": {"1.0"}, "CE-Id": {"7"}, "ce-source": {"/shop"}, "ce-type": {"order.paid"}, "ce-datacontenttype": {"text/xml"},
		"ce-subject": {"caf%C3%A9 \"50%25\" 100%"}, "Content-Type": {"text/plain"}, "ce-no_name": {"x"},
	}
	without := func(name string) nats.Header { h := maps.Clone(binary); delete(h, name); return h }
	with := func(name, value string) nats.Header {
		h := maps.Clone(binary)
		h[name] = []string{value}
		return h
	}
	passed := map[string]string{
		"ce-specversion": "1.0", "ce-id": "7", "ce-source": "/shop", "ce-type": "order.paid", "ce-subject": "caf%C3%A9%20%2250%25%22%20100%25",
		"content-type": "text/xml",
	}
	plain := map[string]string{"content-type": defaultType}
	made := map[string]string{
		"ce-specversion": "1.0", "ce-id": "ORDERS~billing~42~1", "ce-source": "/nats/ORDERS", "ce-type": "com.example.created", "ce-subject": "orders.eu.created",
		"ce-time": "2026-01-02T03:04:05.000000006Z", "content-type": "text/plain",
	}
	for name, c := range map[string]struct {
		header       nats.Header
		pass, binary map[string]string
	}{
		"binary":            {binary, passed, passed},
		"structured":        {nats.Header{"content-type": {"application/cloudevents+json"}}, map[string]string{"content-type": "application/cloudevents+json"}, map[string]string{"content-type": "application/cloudevents+json"}},
		"no type":           {without("ce-type"), plain, made},
		"no UTF-8":          {with("ce-subject", "%FF"), plain, made},
		"too large":         {with("ce-subject", strings.Repeat("x", maxForwardedValue+1)), plain, made},
		"plain":             {nats.Header{"Content-Type": {"text/plain"}}, plain, made},
		"type of the data":  {without("ce-datacontenttype"), mapWith(passed, "content-type", "text/plain"), mapWith(passed, "content-type", "text/plain")},
		"a smuggled header": {with("ce-subject", "a\r\nEvil: x"), mapWith(passed, "ce-subject", "a%0D%0AEvil:%20x"), mapWith(passed, "ce-subject", "a%0D%0AEvil:%20x")},
	} {
		for mode, want := range map[string]map[string]string{eventsPass: c.pass, eventsBinary: c.binary} {
			h := newHandler(t, Config{URL: s.URL, CloudEvents: mode, EventType: "com.example.{3}", ForwardHeaders: []string{"ce-*"}})
			m := handlertest.Message("orders.eu.created", []byte("{}"))
			m.Header = c.header
			if handlertest.Want(t, h.Handle(t.Context(), m), handlertest.Ack) {
				if diff := cmp.Diff(want, <-got); diff != "" {
					t.Errorf("%s, %s (-want +got):\n%s", name, mode, diff)
				}
			}
		}
	}
	h := newHandler(t, Config{URL: s.URL, CloudEvents: eventsBinary, EventType: "{9}", EventSource: "urn:shop"})
	m := handlertest.Message("a.\xff\n", nil)
	if handlertest.Want(t, h.Handle(t.Context(), m), handlertest.Ack) {
		if e := <-got; e["ce-type"] != "a.%EF%BF%BD%0A" || e["ce-source"] != "urn:shop" || e["content-type"] != defaultType {
			t.Error(e)
		}
	}
}

func mapWith(m map[string]string, key, value string) map[string]string {
	m = maps.Clone(m)
	m[key] = value
	return m
}

func TestConfig_cloudEvents(t *testing.T) {
	for want, c := range map[string]Config{
		"cloudevents: must be off":                {CloudEvents: "on"},
		"event_type: unknown placeholder {x}":     {CloudEvents: "binary", EventType: "{x}"},
		"event_source: must be a URI reference (": {CloudEvents: "binary", EventType: "x", EventSource: "%"},
	} {
		c.URL = "http://h"
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// What is encoded is a header value, and decodes to what it was.
func FuzzAttribute(f *testing.F) {
	for _, s := range []string{"", "a", "%", "%41", "é \"%\"", "\x00\r\n", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		encoded := encodeAttribute(s)
		if !validValue(encoded) || strings.ContainsAny(encoded, " \"") {
			t.Errorf("%q: %q is no header value", s, encoded)
		}
		if back, ok := decodeAttribute(encoded); back != s && ok {
			t.Errorf("%q comes back as %q", s, back)
		}
		_, _ = decodeAttribute(s)
	})
}
