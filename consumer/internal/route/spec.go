package route

import (
	"time"

	"github.com/relaymq/relay/consumer/internal/generations"
	"github.com/relaymq/relay/consumer/internal/limits"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/consumer/internal/usercode"
	"github.com/relaymq/relay/internal/supervise"
	"github.com/relaymq/relay/internal/teeth"
	"github.com/relaymq/relay/supervisor"
)

// Spec is a route as it is to be, with its defaults; Fault is what is wrong with it. What the fields mean is said in package consumer.
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
	Retry       Retry
	Supervisor  supervisor.Config
	Stash       supervise.Room
	DeadPrefix  string // of the subjects of its dead letters; empty: that of the service

	Reply, Interest  []string // patterns of the subjects that a caller may name
	MaxResult        int      // bytes
	ExpiredToLetters bool     // what expires before it starts becomes a dead letter
	Ask              Ask

	Batch    *Batch // nil: one message at a time
	Fallback *Fallback
	Code     Code

	// Fault is what is wrong with the route by itself.
	Fault error

	Part               *generations.Part // of what runs for one partition of a route; nil otherwise
	Life, FallbackLife *usercode.Life    // of the handlers, which all partitions share
}

// Retry is when and how often a message that failed is tried again.
type Retry struct {
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

// Batch is how messages are gathered to batches.
type Batch struct {
	Size  int
	Wait  time.Duration
	Bytes int
}

// Fallback is the second handler of a route.
type Fallback struct {
	When        []string // as it is configured
	Waiting     bool
	Exhausted   bool
	Concurrency int
	Timeout     time.Duration
	Code        Code
}

// Leased tells whether one instance at a time handles messages of the route.
func (r Spec) Leased() bool { return r.Instances == InstancesOne && !teeth.Alone() }

// InstancesOne has one instance at a time handle messages of a route.
const InstancesOne = "one"
