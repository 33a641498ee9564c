package config

import (
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

func TestSuggest(t *testing.T) {
	route := newBook(nil).root.field("routes").elem
	for name, want := range map[string]string{
		"subject": "subjects", "ackWait": "ack_wait", "ack-wait": "ack_wait", "timout": "timeout", "TIMEOUT": "timeout",
		"conccurency": "concurrency", "max_attempts": "retry.max_attempts", "maxAttempts": "retry.max_attempts",
		"kye": "key", "bytes": "stash.bytes", "dog": "", "": "", "x": "",
	} {
		if got := suggest(route, name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	word := rapid.StringMatching(`[abc]{0,6}`)
	rapid.Check(t, func(t *rapid.T) {
		a, b := word.Draw(t, "a"), word.Draw(t, "b")
		d := distance(a, b)
		if (d == 0) != (a == b) || d != distance(b, a) || d > max(len(a), len(b)) || d < max(len(a), len(b))-min(len(a), len(b)) {
			t.Fatalf("%q to %q: %d", a, b, d)
		}
	})
	if d := distance("polciy", "policy"); d != 1 {
		t.Errorf("neighbours swapped: %d", d)
	}
}

// A field of a type that a file cannot set would be a key that nobody can use.
func TestKeyOf_refusesOtherTypes(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	newBook(nil).keyOf(reflect.TypeFor[chan int](), "x")
}
