package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/relaymq/relay/internal/supervise"
)

// Answers and Replies are how many kinds of them there are; [Config] names them.
const (
	Answers = 5
	Replies = 4
)

// RouteCount is what a route counts; its labels come from the configuration alone, never from messages.
type RouteCount struct {
	Verdicts [6]atomic.Uint64 // by supervise.Kind
	Settled  [6]atomic.Uint64 // by supervise.Action
	Moves    [5]atomic.Uint64 // of keys and the route, by supervise.State
	Naked    atomic.Uint64
	Parked   atomic.Uint64
	Fallback atomic.Uint64 // acknowledged by the fallback
	Kept     atomic.Uint64 // failed, and waits in the stash
	Aside    atomic.Uint64
	NotDead  atomic.Uint64 // dead letters that could not be stored
	// Of callers:
	Expired, Forgotten, Refused atomic.Uint64
	Answers                     [Answers]atomic.Uint64
	Replies                     [Replies]atomic.Uint64

	letters [len(reasons)]atomic.Uint64
	seconds prometheus.Histogram
	ages    prometheus.Histogram
}

var reasons = [...]string{
	supervise.ReasonExhausted, supervise.ReasonDead, supervise.ReasonExpired, supervise.ReasonGaveUp, "crash",
}

var actionNames = [...]string{
	supervise.GiveBack: "given_back", supervise.RetryLater: "retried", supervise.AckMessage: "acked",
	supervise.DropMessage: "dropped", supervise.DeadLetter: "dead", supervise.LetGo: "let_go",
}

// Acked are the messages that are done.
func (c *RouteCount) Acked() uint64 {
	return c.Settled[supervise.AckMessage].Load() + c.Fallback.Load()
}

// Retried are the failures that were to be tried again.
func (c *RouteCount) Retried() uint64 { return c.Settled[supervise.RetryLater].Load() + c.Kept.Load() }

// DeadLetters are the messages that were to become dead letters.
func (c *RouteCount) DeadLetters() uint64 { return c.Settled[supervise.DeadLetter].Load() }

// Stored are the dead letters that were stored.
func (c *RouteCount) Stored() (n uint64) {
	for i := range c.letters {
		n += c.letters[i].Load()
	}
	return n
}

// Dead counts a dead letter that was stored.
func (c *RouteCount) Dead(reason string) {
	for i, r := range reasons {
		if r == reason {
			c.letters[i].Add(1)
		}
	}
}

// Took counts an attempt by how long it took.
func (c *RouteCount) Took(d time.Duration) { c.seconds.Observe(d.Seconds()) }

// Through counts a message that ended by its age.
func (c *RouteCount) Through(age time.Duration) { c.ages.Observe(age.Seconds()) }

// DurableCount is what is counted of the deliveries of a durable. It goes on when the durable is opened again.
type DurableCount struct {
	Delivered atomic.Uint64
	Rebuilds  atomic.Uint64
	Late      atomic.Uint64 // arrived after their AckWait
	Strays    atomic.Uint64 // messages that no route here wants
}
