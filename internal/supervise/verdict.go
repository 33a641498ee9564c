package supervise

import (
	"fmt"
	"time"
)

// Kind is what a handler says of an attempt. The zero value is Retry, so that an answer that was not understood loses
// nothing.
type Kind uint8

// What a handler may say.
const (
	Retry  Kind = iota // later, by the message's policy or the delay the verdict names; spends an attempt
	Ack                // done
	Snooze             // later, after Delay; spends no attempt and says nothing of the key
	Dead               // never: to the dead letters now
	Drop               // never: acknowledged and counted
	Lost               // not from here: the lease is lost, and somebody else has the message
)

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

var kindNames = [...]string{"retry", "ack", "snooze", "dead", "drop", "lost"}

// Verdict is the end of one attempt as the supervisor sees it.
type Verdict struct {
	Kind Kind
	// Err says why, for every kind but Ack.
	Err error
	// Delay is how long to wait before the next attempt: of a Snooze always, of a Retry when above zero (the policy's
	// delay otherwise).
	Delay time.Duration
	// Pause asks that the key, or the route, by Config.RetryAfter, starts nothing until Delay is over.
	Pause bool
	// NotStarted says that the work never began, so that a Retry spends no attempt. It still counts as a failure of
	// the key.
	NotStarted bool
	// NoAnswer says, of a Retry, that nothing answered: what all messages depend on is away, and this one is not to blame. It spends an
	// attempt all the same. A route that got no answer several times in a row asks seldom.
	NoAnswer bool
	// StopChild ends the child after this attempt: a clean stop that it asked for.
	StopChild bool
	// Crashed says, of a Retry, that the child is gone, as after a panic: it was a process, and that has ended.
	Crashed bool
	// Gone says, of a Lost message, that it will not come again: what it was delivered from exists no more.
	Gone bool
	// FailRoute stops the whole route with Err as the reason: the cause is no message, and none spends an attempt. The route
	// tries again by itself, with the backoff of restart, and goes on when a message succeeds.
	FailRoute bool
	// Suspend says, of a Retry, that what answers wants no messages any more. The route is suspended, with Err as the reason, until
	// a message succeeds or an operator resumes it.
	Suspend bool
}
