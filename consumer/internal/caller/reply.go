package caller

import (
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// Outcome is what a caller is told became of its message.
type Outcome string

// The outcomes.
const (
	Done      Outcome = "done"
	Dead      Outcome = "dead"
	Dropped   Outcome = "dropped"
	Expired   Outcome = "expired"
	Forgotten Outcome = "forgotten"
)

// Reply says what became of a message.
type Reply struct {
	ID       string // of the message
	Outcome  Outcome
	Attempts int
	// Replay is the number of its replay; 0: it was not replayed. The outcome of a replay is no copy of that of the first delivery.
	Replay int
	Error  string // of an outcome that is not Done; it may be empty
	// Of a message that is Done: what its handler returned. Header may be nil, and is written to.
	Header nats.Header
	Data   []byte
	Cut    bool // Data is not all of it
}

// To makes the message for that subject.
func (r Reply) To(subject string) *nats.Msg {
	h := r.Header
	if h == nil {
		h = nats.Header{}
	}
	if r.Cut {
		h.Set(HeaderTruncated, "true")
	}
	copyID := r.ID + "." + string(r.Outcome)
	if r.Replay > 0 {
		copyID += "." + strconv.Itoa(r.Replay)
	}
	h.Set(HeaderID, r.ID)
	h.Set(HeaderOutcome, string(r.Outcome))
	h.Set(HeaderAttempts, strconv.Itoa(r.Attempts))
	h.Set("Nats-Msg-Id", copyID)
	if r.Outcome != Done && r.Error != "" {
		h.Set(HeaderError, r.Error)
	}
	return &nats.Msg{Subject: subject, Header: h, Data: r.Data}
}

// maxHeldBytes bounds the bodies of messages of a route that are held until their callers are told: they are room that is kept from others.
const maxHeldBytes = 4 << 20

// Holding are the messages of a route that are not acknowledged before their callers are told. The zero value holds none.
type Holding struct {
	held    sync.WaitGroup
	bytes   atomic.Int64 // of their bodies
	telling atomic.Int32
}

// Hold holds a message until its caller is told, but not longer than the time until then: an absent caller, or one for whose message there is no room,
// has one try. Why is the error of its outcome. It completes the telling: release is called when the message need not be held any more, and over with what became of the reply.
func (h *Holding) Hold(t *Telling, size int, why error, release func(), over func(Told)) *Telling {
	if held := h.bytes.Add(int64(size)); held > maxHeldBytes || errors.Is(why, ErrAbsent) {
		t.Until = time.Now()
	}
	h.held.Add(1)
	h.telling.Add(1)
	t.Released = func() {
		h.bytes.Add(-int64(size))
		release()
		h.held.Done()
	}
	t.Over = func(told Told) {
		h.telling.Add(-1)
		over(told)
	}
	return t
}

// Telling is how many callers are being told.
func (h *Holding) Telling() int { return int(h.telling.Load()) }

// Bytes is the size of the bodies that are held.
func (h *Holding) Bytes() int { return int(h.bytes.Load()) }

// Wait waits until none is held.
func (h *Holding) Wait() { h.held.Wait() }
