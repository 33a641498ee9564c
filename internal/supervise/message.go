package supervise

import (
	"context"
	"time"
)

// Work is a message on its owner's side.
type Work interface {
	// Do is one attempt, the first one being number 1, with the given child. It may block until ctx is done, and may
	// panic.
	Do(ctx context.Context, number int, child any) Verdict
	// Settle ends the message; it is called once. It must not block.
	Settle(Outcome)
	// Away is called before Settle, once or twice, for a message that leaves and may be called back. It must not block, and not return nil.
	Away() Away
	// Remember stores the failure of a message that stays in the group, as if it left with RetryLater. It must not block.
	// It calls stored once: with true when Outcome.Attempts and FirstFailure are stored, with false when the lease was lost
	// before that. The message neither starts nor is settled until then.
	Remember(o Outcome, stored func(ok bool))
}

// Away is what a Group keeps of a message that it gave back. There may be tens of thousands: it should not keep the message.
type Away interface {
	// CallBack asks for the message to come at that time already; the zero time is now. It must not block, may be called before Settle
	// has returned, and does nothing when the message has come already.
	CallBack(due time.Time)
}

// Preparer is a Work of a message that runs alone, and before which something must be done each time. The attempt's clock does
// not run for that.
type Preparer interface {
	// Prepare is called before each attempt. It may block for some seconds. With false there is no attempt, and the verdict is that
	// of one.
	Prepare() (Verdict, bool)
}

// Message is one delivery on its way through a Group. The owner fills the exported fields and leaves them alone once
// it is delivered.
type Message struct {
	Work Work
	Key  string
	// Sequence orders the messages of a key.
	Sequence uint64
	// Replayed says that Sequence is of another stream than those of the other messages; HoldAbove does not apply.
	Replayed bool
	// Size in bytes of what memory holds of the message: body, headers and subjects. It counts for the bound of the stash.
	Size int
	// Attempts counts the handler starts that failed.
	Attempts int
	// FirstFailure is zero when there was none.
	FirstFailure time.Time
	// LastErr is the last failure, if it is known. It is shown while the message waits.
	LastErr error
	// Due is when the message's own delay is over; zero means it is.
	Due time.Time
	// Returns counts how often the message came and went without a start.
	Returns int
	// First is used for the first attempt here; without it, or for a later one, memory is allocated.
	First *Attempt
	// Alone messages start only while nothing else runs; see Group.StartAlone.
	Alone bool
	// Asks says that Work is an Asker.
	Asks bool

	probes    int      // failed probes, which spend no attempt
	called    bool     // it is here because it was called back
	guest     bool     // it is in the stash, beyond its bound
	unsaved   bool     // Attempts or FirstFailure changed here, and the owner has not heard of it
	storing   bool     // the owner is storing its last failure; see remember.go
	parting   *Outcome // its settlement, which waits for that
	arrived   time.Time
	numbering numbering     // Sequence is of this one, when the message was delivered; see Group.Renumbered
	refused   *refusal      // the fallback failed it, or put it off
	place     node[Message] // in a line of its key
}

// judged tells whether a handler failed with m before.
func (m *Message) judged() bool { return m.Attempts > 0 || m.probes > 0 || !m.FirstFailure.IsZero() }

// past is what is known of a message from its earlier attempts.
type past uint8

const (
	unjudged past = iota + 1 // nobody has judged it yet
	failedBefore
)

func (m *Message) past() past {
	if m.judged() {
		return failedBefore
	}
	return unjudged
}

// Attempt is memory for one attempt, and is its context. Handlers may keep that context, so an Attempt must not be used
// again.
type Attempt struct{ run run }

func (m *Message) newRun() *run {
	if a := m.First; a != nil {
		m.First = nil
		return &a.run
	}
	return new(run)
}

// Action is what is to become of a message that leaves the group.
type Action uint8

// The actions there are.
const (
	GiveBack    Action = iota // to JetStream, to come again at Outcome.Due; no attempt was spent
	RetryLater                // the same, after a failure: Outcome.Attempts and FirstFailure are to be remembered
	AckMessage                // it is done
	DropMessage               // it is done, and nobody handled it
	DeadLetter                // to the dead letters, for Outcome.Reason
	LetGo                     // nothing: the lease is lost, or the handler still has it
)

// Why a message is dead-lettered.
const (
	ReasonExhausted = "exhausted"
	ReasonDead      = "dead"
	ReasonExpired   = "expired"
	ReasonGaveUp    = "gave_up"
	ReasonCrash     = "crash" // the owner's: it ends the process it runs in
)

// Outcome is how a message leaves the group.
type Outcome struct {
	Action Action
	// Due is when to come again. Zero, for GiveBack, means at once: the instance shuts down. RetryLater always says when.
	Due time.Time
	// Attempts and FirstFailure are those of the message now.
	Attempts     int
	FirstFailure time.Time
	// Err is the last failure, Stack where it panicked.
	Err   error
	Stack []byte
	// Reason of a DeadLetter.
	Reason string
	// Snoozed says that it was the handler who gave it back.
	Snoozed bool
	// Aside says that the message goes away because something else waits, and that it will be called back when that is over.
	Aside bool
	// Own is when the message's own delay is over, of one that goes aside: it may start from then on, also before Due.
	Own time.Time
	// Fallback says that it was the fallback who acknowledged or dropped it.
	Fallback bool
	// Why it is given back, in a few words.
	Why string

	inUse bool // a handler that does not return may still use its bytes: it must come again with its own
}
