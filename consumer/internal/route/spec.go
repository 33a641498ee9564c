package route

import (
	"context"
	"time"

	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/consumer/internal/limits"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/consumer/internal/usercode"
	"github.com/relaymq/relay/internal/supervise"
	"github.com/relaymq/relay/internal/teeth"
	"github.com/relaymq/relay/supervisor"
)

// Spec is a route as it is to be: with its defaults, and checked by itself. What its fields mean is said where the package consumer has them.
type Spec struct {
	Name        string
	Subjects    []string
	Stream      string
	Durable     string
	Start       source.Start
	Concurrency int
	Limits      []string
	Rate        limits.Rate
	Burst       int
	Key         string
	Order       supervisor.Order
	Instances   string
	Partitions  int
	Timeout     time.Duration
	AckWait     time.Duration
	Retry       Retrying
	Supervisor  supervisor.Config
	Stash       supervise.Room
	DeadPrefix  string // of the subjects of its dead letters; empty: that of the service

	Reply, Interest  []string // patterns of the subjects that a caller may name
	MaxResult        int      // bytes
	ExpiredToLetters bool     // what expires before it starts becomes a dead letter
	Ask              Ask

	Batch    *Batching // nil: one message at a time
	Fallback *Substitute
	Code     Code

	// Fault is what is wrong with the route by itself.
	Fault error

	Part               *generations.Part // of what runs for one partition of a route; nil otherwise
	Life, FallbackLife *usercode.Life    // of the handlers, which all partitions share
}

// Retrying is when and how often a message that failed is tried again.
type Retrying struct {
	MaxAttempts int
	supervisor.Backoff
	MaxAge     time.Duration
	ParkAfter  time.Duration
	ParkMax    int
	MaxCrashes int
}

// Ask is how callers are asked whether their message is still wanted.
type Ask struct {
	Timeout     time.Duration
	DropUnknown bool // what becomes of a message whose caller does not answer: it is forgotten, or it starts
	Every       time.Duration
}

// Batching is how messages are gathered to batches.
type Batching struct {
	Size  int
	Wait  time.Duration
	Bytes int
}

// Substitute is the second handler of a route.
type Substitute struct {
	When        []string // as it is configured
	Waiting     bool
	Exhausted   bool
	Concurrency int
	Timeout     time.Duration
	Code        Code
}

// Code is what handles messages: a handler that all keys share, or what makes one for each key.
type Code struct {
	Shared any                           // nil: New makes them
	New    func(key string) (any, error) // nil: it is shared
	// Wrap puts batches, if there are any, and middleware around a handler. hung is how many batches were given up and have not returned; nil: there are
	// no batches.
	Wrap       func(handler any) (call Call, hung func() int)
	Check      func(ctx context.Context) error // whether it can work; nil: nobody can say
	Outside    bool                            // it does its work in another process
	OwnBytes   bool                            // it neither changes nor keeps the bytes of its messages
	Middleware bool                            // the route has some of its own
}

// Call is one attempt.
type Call func(ctx context.Context, m Msg) error

// Leased tells whether one instance at a time handles messages of the route.
func (r Spec) Leased() bool { return r.Instances == "one" && !teeth.Alone() }
