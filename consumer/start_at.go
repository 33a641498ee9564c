package consumer

import "time"

// Where a durable begins that does not exist yet: [Route.Start].
var (
	// StartAll has it begin with the first message of the stream.
	StartAll = Start{Policy: "all"}
	// StartNew has it begin with what is published from now on.
	StartNew = Start{Policy: "new"}
)

// Since has it begin with what was stored at t or later.
func Since(t time.Time) Start { return Start{Policy: "since", Since: t} }

// FromSeq has it begin with the message of the stream that has this sequence. Sequences start at 1.
func FromSeq(seq uint64) Start { return Start{Policy: "seq", Seq: seq} }
