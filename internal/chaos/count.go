package chaos

import (
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/chaos/ledger"
)

// What the ledgers say so far.

// FirstStart is the first start of a handler after t, zero when there is none yet.
func (w *World) FirstStart(t time.Time) (first time.Time) {
	_ = w.ledgers.Refresh()
	for _, run := range w.ledgers.Runs {
		if run.Start.After(t) && (first.IsZero() || run.Start.Before(first)) {
			first = run.Start
		}
	}
	return first
}

// Starts is how many handlers have started so far, Done how many messages were handled.
func (w *World) Starts() int {
	if err := w.ledgers.Refresh(); err != nil {
		w.T.Fatal(err)
	}
	return len(w.ledgers.Runs)
}

// Ends counts handlers that ended well.
func (w *World) Ends() (n int) {
	if err := w.ledgers.Refresh(); err != nil {
		w.T.Fatal(err)
	}
	for _, run := range w.ledgers.Runs {
		if run.OK {
			n++
		}
	}
	return n
}

// Running are the handlers that run now.
func (w *World) Running() (n int) {
	if err := w.ledgers.Refresh(); err != nil {
		w.T.Fatal(err)
	}
	for _, run := range w.ledgers.Runs {
		if run.End.IsZero() {
			n++
		}
	}
	return n
}

// HandOver is the longest time from a fault until what ran at it, and was cut or not told, started again.
func (w *World) HandOver(at time.Time) (longest time.Duration) {
	byID := make(map[string][]*ledger.Run)
	for _, run := range w.ledgers.Runs {
		byID[run.ID] = append(byID[run.ID], run)
	}
	for _, list := range byID {
		for i, run := range list {
			ran := run.Start.Before(at) && (run.End.IsZero() || run.End.After(at))
			if ran && i+1 < len(list) {
				longest = max(longest, list[i+1].Start.Sub(at))
			}
		}
	}
	return longest
}

// header is a shorthand of rows about headers.
func header(pairs ...string) nats.Header {
	h := nats.Header{}
	for i := 0; i+1 < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}
