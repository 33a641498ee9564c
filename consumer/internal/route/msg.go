package route

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/reply"
	"github.com/relaymq/relay/internal/limit"
	"github.com/relaymq/relay/internal/supervise"
)

// Msg is what a handler gets of an attempt and may keep. It belongs to the package of the handlers.
type Msg interface {
	// Attempt is in one piece of memory with it.
	Attempt() *supervise.Attempt
	// Give says what the attempt is of.
	Give(Given)
}

// Given is what a handler gets to know of a message.
type Given struct {
	ID       string
	Route    string
	Subject  string
	Data     []byte
	Header   nats.Header
	Attempt  int
	Stream   string
	Consumer string
	Sequence uint64
	Time     time.Time
	Replay   int
	Deadline time.Time
	Fence    uint64

	Result      *reply.Result               // nil: nobody waits for it
	Own         func() *limit.Limit         // the limit of the route alone, which may be made slower; nil: not by this message
	StillWanted func(context.Context) error // nil: nobody need be asked
}
