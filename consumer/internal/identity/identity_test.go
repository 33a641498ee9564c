package identity

import (
	"testing"

	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"
)

// While there is no doubt every delivery passes whose number goes up; all others are held, once, until the server has answered what was asked since.
func TestWatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		opened := rapid.Uint64Range(0, 5).Draw(t, "opened at")
		var w Watch
		w.Begin(opened)
		last, asked := max(1, opened), false
		var held *nats.Msg
		doubted := false
		t.Repeat(map[string]func(*rapid.T){
			"delivered": func(t *rapid.T) {
				if doubted {
					t.Skip("nothing is looked at")
				}
				m, number := new(nats.Msg), rapid.Uint64Range(1, 12).Draw(t, "number")
				want := number <= last
				if got := w.Delivered(m, number); got != want {
					t.Fatalf("delivery %d after %d: %v, want %v", number, last, got, want)
				}
				if want {
					doubted, held = true, m
				} else {
					last = number
				}
			},
			"deleted": func(*rapid.T) {
				w.Deleted()
				doubted = true
			},
			"asks": func(t *rapid.T) {
				if got := w.Asks(); got != (doubted && !asked) {
					t.Fatalf("it asks: %v; doubted %v, asked %v", got, doubted, asked)
				}
				asked = asked || doubted
			},
			"answered": func(t *rapid.T) {
				over, m := w.Answered()
				if over != asked || over && m != held {
					t.Fatalf("over: %v with %p, want %v with %p", over, m, asked, held)
				}
				if !over {
					return
				}
				if held != nil {
					last = 0
				}
				doubted, asked, held = false, false, nil
				if m != nil && w.Delivered(m, 1) {
					t.Fatal("it is held once more")
				} else if m != nil {
					last = 1
				}
			},
			"": func(t *rapid.T) {
				if w.IsDoubted() != doubted {
					t.Fatalf("doubted: %v, want %v", w.IsDoubted(), doubted)
				}
			},
		})
	})
}

// The first delivery of a durable that never delivered anything may be the first one of another durable.
func TestWatch_theFirstDelivery(t *testing.T) {
	for opened, want := range map[uint64]bool{0: true, 1: true, 2: true} {
		var w Watch
		w.Begin(opened)
		if got := w.Delivered(new(nats.Msg), 1); got != want {
			t.Errorf("of a durable opened at %d: %v", opened, got)
		}
	}
	var w Watch
	w.Begin(0)
	if w.Delivered(new(nats.Msg), 2) {
		t.Error("the second delivery raises doubt: another instance had the first one")
	}
}
