package archive

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

// Outcome is what became of a message.
type Outcome uint8

// The outcomes. Their numbers are stored.
const (
	Done     Outcome = 1 + iota
	Fallback         // done by the fallback of its route
	Dead
	Dropped
	Expired
	Forgotten
	outcomes
)

var names = [outcomes]string{Done: "done", Fallback: "done by the fallback", Dead: "dead-lettered", Dropped: "dropped", Expired: "expired", Forgotten: "forgotten"}

func (o Outcome) String() string {
	if o == 0 || o >= outcomes {
		return fmt.Sprintf("outcome %d", uint8(o))
	}
	return names[o]
}

// MaxResult is how many bytes of a result are kept.
const MaxResult = 4 << 10

// Record is what became of one message.
type Record struct {
	Route, Durable string
	Sequence       uint64
	Published      time.Time
	Ended          time.Time // to the millisecond
	Outcome        Outcome
	Reason         string // of a dead letter
	Attempts       int
	Replay         int    // how often it had been replayed
	Result         []byte // what its handler returned, cut to MaxResult
	Cut            bool   // it was longer
}

// A batch is the byte version, and records one after the other. Numbers are varints, and names, reasons and results begin with their
// length. Sequences and times are differences to the record before: that makes a record about nine bytes.
//
//	kind       outcome, and which of the optional fields there are
//	place      number of a pair of route and durable; the next free number: both names follow
//	sequence   difference
//	published  difference, nanoseconds
//	ended      difference, milliseconds
//	attempts
//	replay, reason, result
const version = 1

const (
	kindOutcome = 1<<3 - 1
	hasResult   = 1 << 3
	isCut       = 1 << 4
	hasReplay   = 1 << 5
	hasReason   = 1 << 6
	kindUnknown = 1 << 7
)

// place is what the records of a batch share with many others.
type place struct{ route, durable string }

// last is what differences are to.
type last struct {
	sequence         uint64
	published, ended int64
}

// batch is being filled. It is used again: what it has allocated stays.
type batch struct {
	stream  string
	data    []byte
	places  map[place]int
	place   place // of the record before
	placed  int
	last    last
	lowest  uint64
	highest uint64
	records uint64
}

func (b *batch) reset(stream string) {
	clear(b.places)
	data, places := b.data[:0], b.places
	if places == nil {
		places = make(map[place]int)
	}
	*b = batch{stream: stream, data: append(data, version), places: places, lowest: math.MaxUint64}
}

func (b *batch) add(r Record) {
	kind := byte(r.Outcome)
	if len(r.Result) > 0 {
		kind |= hasResult
	}
	if r.Cut {
		kind |= isCut
	}
	if r.Replay > 0 {
		kind |= hasReplay
	}
	if r.Reason != "" {
		kind |= hasReason
	}
	d := append(b.data, kind)
	switch p := (place{r.Route, r.Durable}); {
	case b.records > 0 && p == b.place:
		d = binary.AppendUvarint(d, uint64(b.placed))
	default:
		n, known := b.places[p]
		if !known {
			n = len(b.places)
			b.places[p] = n
		}
		b.place, b.placed = p, n
		d = binary.AppendUvarint(d, uint64(n))
		if !known {
			d = appendText(appendText(d, r.Route), r.Durable)
		}
	}
	now := last{r.Sequence, r.Published.UnixNano(), r.Ended.UnixMilli()}
	d = binary.AppendVarint(d, int64(now.sequence-b.last.sequence)) // wraps, and wraps back
	d = binary.AppendVarint(d, now.published-b.last.published)
	d = binary.AppendVarint(d, now.ended-b.last.ended)
	d = binary.AppendUvarint(d, uint64(max(r.Attempts, 0)))
	b.last = now
	if r.Replay > 0 {
		d = binary.AppendUvarint(d, uint64(r.Replay))
	}
	if r.Reason != "" {
		d = appendText(d, r.Reason)
	}
	if len(r.Result) > 0 {
		d = append(binary.AppendUvarint(d, uint64(len(r.Result))), r.Result...)
	}
	b.data = d
	b.lowest, b.highest, b.records = min(b.lowest, r.Sequence), max(b.highest, r.Sequence), b.records+1
}

func appendText(d []byte, s string) []byte {
	return append(binary.AppendUvarint(d, uint64(len(s))), s...)
}

var errBatch = errors.New("archive: not a batch of records")

// decode gives the records of a batch to each, until that returns false. What a batch holds is not to be trusted. Results are part of data.
func decode(data []byte, each func(Record) bool) error {
	if len(data) == 0 {
		return errBatch
	}
	if data[0] != version {
		return fmt.Errorf("archive: a batch of version %d, which this version of relay does not know", data[0])
	}
	d := decoder{rest: data[1:]}
	var places []place
	var was last
	for len(d.rest) > 0 {
		kind := d.rest[0]
		d.rest = d.rest[1:]
		n := d.number()
		if n == uint64(len(places)) {
			places = append(places, place{string(d.bytes()), string(d.bytes())})
		}
		if n >= uint64(len(places)) {
			return errBatch
		}
		was.sequence += uint64(d.difference())
		was.published += d.difference()
		was.ended += d.difference()
		r := Record{
			Route: places[n].route, Durable: places[n].durable, Sequence: was.sequence, Outcome: Outcome(kind & kindOutcome),
			Published: time.Unix(0, was.published).UTC(), Ended: time.UnixMilli(was.ended).UTC(), Attempts: d.count(), Cut: kind&isCut != 0,
		}
		if kind&hasReplay != 0 {
			r.Replay = d.count()
		}
		if kind&hasReason != 0 {
			r.Reason = string(d.bytes())
		}
		if kind&hasResult != 0 {
			r.Result = d.bytes()
		}
		if d.bad || kind&kindUnknown != 0 || r.Outcome == 0 || r.Outcome >= outcomes {
			return errBatch
		}
		if !each(r) {
			return nil
		}
	}
	return nil
}

type decoder struct {
	rest []byte
	bad  bool
}

func (d *decoder) number() uint64 {
	n, size := binary.Uvarint(d.rest)
	d.skip(size)
	return n
}

func (d *decoder) difference() int64 {
	n, size := binary.Varint(d.rest)
	d.skip(size)
	return n
}

// skip is over a number; what is none has no size.
func (d *decoder) skip(size int) {
	if size <= 0 {
		d.bad, d.rest = true, nil
		return
	}
	d.rest = d.rest[size:]
}

func (d *decoder) count() int {
	n := d.number()
	if n > math.MaxInt32 {
		d.bad = true
		return 0
	}
	return int(n)
}

func (d *decoder) bytes() []byte {
	n := d.number()
	if n > uint64(len(d.rest)) {
		d.bad, d.rest = true, nil
		return nil
	}
	var b []byte
	b, d.rest = d.rest[:n:n], d.rest[n:]
	return b
}
