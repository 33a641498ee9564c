package chaos

import (
	"testing"
	"time"

	"github.com/relaymq/relay/internal/chaos/ledger"
)

func TestMain(m *testing.M) { Main(m) }

// slots bounds the rows that run side by side: most of their time is waiting, and the machine may have two cores.
var slots = make(chan struct{}, 4)

// begin is the first line of a row.
func begin(t *testing.T) *World {
	t.Helper()
	t.Parallel()
	slots <- struct{}{}
	t.Cleanup(func() { <-slots })
	return New(t)
}

// of is a figure: the slice's, or the full one.
func of[T any](slice, full T) T {
	if Full {
		return full
	}
	return slice
}

// simple starts a server, the stream, an http handler.
func simple(w *World) *Handler {
	w.T.Helper()
	w.StartNATS(NATSConfig{})
	w.Connect()
	w.Stream()
	return w.StartHandler("")
}

// sleeping messages take so many milliseconds.
func sleeping(ms int) func(int) ledger.Script {
	return func(int) ledger.Script { return ledger.Script{Sleep: ms} }
}

// mixed messages: most succeed, one in every fails until its second attempt, one in 5×every always fails.
func mixed(ms, every int) func(int) ledger.Script {
	return func(i int) ledger.Script {
		switch {
		case i%(5*every) == 5*every-1:
			return ledger.Script{Sleep: ms, Do: "fail"}
		case i%every == every-1:
			return ledger.Script{Sleep: ms, Do: "fail", Until: 1}
		}
		return ledger.Script{Sleep: ms}
	}
}

// background runs f beside the row; wait ends when it has.
func background(f func()) (wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	return func() { <-done }
}

const ms = time.Millisecond
