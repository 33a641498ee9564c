package event

import (
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/eventkind"
)

func TestEvent_onTheWire(t *testing.T) {
	at := time.Date(2026, 11, 22, 3, 4, 5, 6, time.UTC)
	e := Event{
		ID: "x", Kind: eventkind.DeadLetter, Service: "relay", Instance: "a/b", Time: at,
		Data: Data{Route: "billing", Text: "dead", Count: 2, First: at, Why: "<script>\xff", Subject: "orders.1"},
	}
	if e.Subject() != "relay.event.dead_letter.billing" || (Event{Kind: eventkind.DLQFilling, Service: "relay"}).Subject() != "relay.event.dlq.filling.~" {
		t.Errorf("on %s", e.Subject())
	}
	b, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"specversion":"1.0","id":"x","source":"/relay/relay/a/b","type":"relay.dead_letter","subject":"billing","time":"2026-11-22T03:04:05.000000006Z","datacontenttype":"application/json",` +
		`"data":{"route":"billing","text":"dead","count":2,"first":"2026-11-22T03:04:05.000000006Z","why":"\u003cscript\u003e\ufffd","subject":"orders.1"}}`
	if string(b) != want {
		t.Errorf("got  %s\nwant %s", b, want)
	}
	var back Event
	if err := json.Unmarshal(b, &back); err != nil || back.Instance != "a/b" || back.Route != "billing" || back.Count != 2 {
		t.Errorf("%+v, %v", back, err)
	}
}

// The documentation of Kind has all kinds, and no other.
func TestKind_isDocumented(t *testing.T) {
	source, err := os.ReadFile("event.go")
	if err != nil {
		t.Fatal(err)
	}
	var listed []Kind
	for _, line := range regexp.MustCompile(`(?m)^//\t([a-z._]+) {2,}\S`).FindAllStringSubmatch(string(source), -1) {
		listed = append(listed, Kind(line[1]))
	}
	if !slices.Equal(listed, Kinds()) {
		t.Errorf("documented: %q\nthere are:  %q", listed, Kinds())
	}
}

func FuzzEvent_UnmarshalJSON(f *testing.F) {
	f.Add([]byte(`{"specversion":"1.0","type":"relay.audit","source":"/relay/a/b","data":{"text":"x"}}`))
	f.Add([]byte(`{"type":5}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var e Event
		if e.UnmarshalJSON(b) != nil {
			return
		}
		again, err := json.Marshal(e)
		if err != nil {
			return // a time beyond year 9999 has no text
		}
		var back Event
		if err := back.UnmarshalJSON(again); err != nil {
			t.Errorf("%s: %v", again, err)
		}
	})
}

// What strangers publish on the subjects of events is no event.
func TestEvent_UnmarshalJSON_strangers(t *testing.T) {
	const ours = `{"specversion":"1.0","type":"relay.audit","source":"/relay/a/b","data":{"text":"x"}}`
	if err := new(Event).UnmarshalJSON([]byte(ours)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string][2]string{
		"no JSON":                   {ours, `{`},
		"another version":           {`"1.0"`, `"0.3"`},
		"another type":              {`relay.audit`, `com.example.audit`},
		"another source":            {`/relay/a/b`, `/other/a/b`},
		"a source with no instance": {`/relay/a/b`, `/relay/a`},
		"a type that is no text":    {`"relay.audit"`, `5`},
	} {
		e := Event{ID: "as it was"}
		if err := e.UnmarshalJSON([]byte(strings.Replace(ours, c[0], c[1], 1))); !errors.Is(err, errNoEvent) || e.ID != "as it was" {
			t.Errorf("%s: %v, %+v", name, err, e)
		}
	}
}
