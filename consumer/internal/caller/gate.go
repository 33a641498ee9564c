package caller

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/internal/teeth"
	"github.com/relaymq/relay/internal/transient"
)

// A message whose publisher asked for something passes gates: is its deadline over, and does its caller still want it? They stand where the message
// arrives (its deadline), and before each attempt. A replay is an operator's decision: it is started whatever its deadline is, and without a question.

const (
	// crowdedMin and crowdedMax bound how long a message stays away for which there was no room, and as long again at random.
	crowdedMin = 500 * time.Millisecond
	crowdedMax = 30 * time.Second
	// HeardLately is how long an answer counts at most; see [Rules.YesCounts].
	HeardLately = time.Second
	// maxUnheard is how often a caller who does not answer is asked before one attempt.
	maxUnheard = 2
	// lastAnswer is how long the answer to a question may take that is asked last; see [Gate.StillWanted].
	lastAnswer = 250 * time.Millisecond
)

var (
	// ErrForgotten says that the caller does not want the message any more.
	ErrForgotten = errors.New("its caller does not want the message any more")
	// ErrAbsent is an ErrForgotten of a caller who did not say so.
	ErrAbsent = fmt.Errorf("%w: nobody has received relay's question for %v", ErrForgotten, Reconnecting)
	// ErrExpired says that the deadline was over before the message started.
	ErrExpired = errors.New("its deadline passed before it started")

	errSilent  = fmt.Errorf("%w: it did not answer relay's question in time (interest.unknown: drop)", ErrForgotten)
	errCrowded = errors.New("too many messages wait for the answers of their callers")
	errAgain   = errors.New("asking the caller again")
)

// End is why a message never starts again.
type End struct{ Err error }

// Expired tells whether its deadline was over; else it is forgotten.
func (e *End) Expired() bool { return e.Err == ErrExpired }

var (
	expired  = &End{ErrExpired}
	unwanted = &End{ErrForgotten} // its caller is there, and said so
	absent   = &End{ErrAbsent}
	silent   = &End{errSilent}
)

// Decision is what becomes of a message at a gate.
type Decision struct {
	Start bool          // it may
	End   *End          // it never does
	Err   error         // why it does not now
	Again time.Duration // with Err: when it is to be asked about again; zero: the attempt was interrupted
}

var (
	start    = Decision{Start: true}
	askAgain = Decision{Err: errAgain, Again: AskAgain}
)

// Gates are what the messages of a route share.
type Gates struct {
	cfg     WaitingConfig
	waiting *Waiting
	silent  atomic.Int32 // slots with a question that is not answered at once
}

// NewGates returns those of a route.
func NewGates(cfg WaitingConfig) *Gates { return &Gates{cfg: cfg, waiting: NewWaiting(cfg)} }

// Asking is how many messages wait for an answer, in a slot or without one.
func (g *Gates) Asking() int { return g.waiting.Len() + int(g.silent.Load()) }

// Room is [Waiting.Room].
func (g *Gates) Room() int { return g.waiting.Room() }

// Close is [Waiting.Close].
func (g *Gates) Close() { g.waiting.Close() }

// About is the message that a gate is for.
type About struct {
	ID      func() string
	Subject string
	Size    int // in bytes
	Replay  bool
}

// Gate stands before one message. It belongs to whoever has the message, but for [Gate.Asked] and what is called at the end of a question.
type Gate struct {
	Call
	gates *Gates
	about About

	end atomic.Pointer[End]
	// What its caller said before the attempt that is to come, and whether it is one of those that are handed back a few at a time.
	heard  heard
	inLine atomic.Bool
	// gone is why an attempt was cancelled.
	gone atomic.Pointer[End]
	// checked is when the gate was asked that let the attempt start that runs, and saidYes that its caller had answered.
	checked time.Time
	saidYes bool
}

// heard is what is known of a message that is about to start.
type heard struct {
	yes   bool
	at    time.Time // zero: nothing
	times int       // without an answer
}

// Gate is for a message with that call.
func (g *Gates) Gate(c Call, about About) *Gate { return &Gate{Call: c, gates: g, about: about} }

// Ended is why the message never starts again; nil: it may.
func (g *Gate) Ended() *End { return g.end.Load() }

// IsOver tells whether the deadline of the message is over.
func (g *Gate) IsOver(now time.Time) bool {
	return !g.Deadline.IsZero() && !now.Before(g.Deadline) && !g.about.Replay
}

// Expire has the message never start again, because its deadline is over.
func (g *Gate) Expire() { g.end.Store(expired) }

// AsksFirst tells whether the caller is asked before each attempt.
func (g *Gate) AsksFirst() bool { return g.Interest != "" && !g.about.Replay }

// Asked tells whether enough is known to start the message.
func (g *Gate) Asked(now time.Time) bool {
	h := &g.heard
	return !h.at.IsZero() && (h.yes || h.times >= maxUnheard || now.Sub(h.at) < HeardLately)
}

// Ask asks the caller. It does not block: then is called once, with what becomes of the message, which was given back so many times.
func (g *Gate) Ask(returns int, then func(Decision)) {
	g.Leave()
	if g.IsOver(time.Now()) {
		then(g.ends(expired))
		return
	}
	g.gates.waiting.Ask(&Question{
		ID: g.about.ID(), Interest: g.Interest, Subject: g.about.Subject, Size: g.about.Size, End: func(why Left) { then(g.answered(why, returns)) },
	})
}

// answered is what becomes of a message that waits for its caller no more.
func (g *Gate) answered(why Left, returns int) Decision {
	h := &g.heard
	switch why {
	case Wanted:
		*h = heard{yes: true, at: time.Now()}
	case Unheard:
		*h = heard{at: time.Now(), times: h.times + 1}
		g.inLine.Store(true)
	case Unwanted:
		return g.ends(unwanted)
	case Absent:
		return g.ends(absent)
	case Silent:
		return g.ends(silent)
	case Crowded:
		return Decision{Err: errCrowded, Again: g.crowdedOut(returns)}
	case Ended: // its group is draining
	}
	return start
}

func (g *Gate) ends(why *End) Decision {
	g.end.Store(why)
	return Decision{End: why}
}

// crowdedOut is how long a message stays away for which there was no room: twice as long each time, because the server delivers what
// comes again before what is new, and thousands that come and go would keep that out.
func (g *Gate) crowdedOut(returns int) time.Duration {
	d := min(max(g.gates.cfg.Rules().Timeout, crowdedMin)<<max(0, min(returns, 8)), crowdedMax)
	return d + rand.N(d)
}

// Leave notes that the message starts, or goes, if it is one of those that are handed back a few at a time.
func (g *Gate) Leave() {
	if g.inLine.Swap(false) {
		g.gates.waiting.Started()
	}
}

// MayStart decides before an attempt that has its slot. It blocks while the caller is asked, until ctx is done.
func (g *Gate) MayStart(ctx context.Context) Decision {
	g.Leave()
	h := g.heard
	g.heard, g.saidYes = heard{}, h.yes // the next attempt is another one
	timeout := func() time.Duration { return g.gates.cfg.Rules().Timeout }
	d := start
	switch {
	case g.IsOver(time.Now()):
		return g.ends(expired)
	case !g.AsksFirst() || teeth.Question():
	case h.at.IsZero():
		d = g.askInSlot(ctx, timeout(), g.unheard)
	case h.yes && time.Since(h.at) >= g.gates.cfg.Rules().YesCounts():
		d = g.askInSlot(ctx, min(Promptly, timeout()), g.believed)
	default:
		g.checked = h.at
		return d
	}
	g.checked = time.Now()
	return d
}

// StillWanted decides once more, for an attempt that had to wait after MayStart. It blocks as MayStart does, for lastAnswer at most.
func (g *Gate) StillWanted(ctx context.Context) Decision {
	counts := HeardLately
	if g.saidYes {
		counts = g.gates.cfg.Rules().YesCounts()
	}
	switch {
	case g.IsOver(time.Now()):
		return g.ends(expired)
	case !g.AsksFirst() || teeth.Question() || time.Since(g.checked) < counts:
		return start
	}
	d := g.askInSlot(ctx, min(lastAnswer, g.gates.cfg.Rules().Timeout), g.believed)
	g.checked = time.Now()
	return d
}

// askInSlot asks the caller of a message that has its slot already: a probe, one that runs alone, one of the fallback's, or one whose
// caller said yes a while ago. Silence says what becomes of it when the caller does not answer in time.
func (g *Gate) askInSlot(ctx context.Context, timeout time.Duration, silence func(*Asked) Decision) Decision {
	line, count, id := g.gates.cfg.Line, g.gates.cfg.Count, g.about.ID()
	asked, err := line.Ask(g.Interest, id, g.about.Subject)
	if err != nil {
		count(CountedAgain)
		return askAgain
	}
	defer asked.Close()
	answer, ok := asked.Wait(ctx, min(Promptly, timeout))
	if rest := timeout - Promptly; !ok && rest > 0 && ctx.Err() == nil {
		// Callers who never answer must leave slots to the others.
		if n := g.gates.silent.Add(1); int(n) > max(1, g.gates.cfg.Rules().Slots/2) {
			g.gates.silent.Add(-1)
			count(CountedAgain)
			return askAgain
		}
		answer, ok = asked.Wait(ctx, rest)
		g.gates.silent.Add(-1)
	}
	switch now := time.Now(); {
	case ctx.Err() != nil:
		return Decision{Err: context.Cause(ctx)}
	case !ok:
		return silence(asked)
	case answer == Yes:
		count(CountedYes)
		line.There(id)
		return start
	case answer == No:
		count(CountedNo)
		return g.ends(unwanted)
	case line.Gone(id, now):
		count(CountedNobody)
		return g.ends(absent)
	}
	count(CountedAgain)
	return askAgain
}

// believed has a message start whose caller said yes a while ago, and does not answer now: that yes counts.
func (g *Gate) believed(*Asked) Decision {
	g.gates.cfg.Count(CountedUnknown)
	return start
}

// unheard is what becomes of a message whose caller said nothing, neither now nor before.
func (g *Gate) unheard(asked *Asked) Decision {
	count := g.gates.cfg.Count
	if asked.Interrupted() {
		count(CountedAgain)
		return askAgain
	}
	count(CountedUnknown)
	if g.gates.cfg.Rules().Drop {
		return g.ends(silent)
	}
	return start
}

// Watch asks the caller now and then while the handler runs, if the route wants that, and ends the returned context with [ErrForgotten] when it does
// not want the message any more. stop ends the asking, and waits for that.
func (g *Gate) Watch(ctx context.Context) (watched context.Context, stop func()) {
	g.gone.Store(nil)
	every := g.gates.cfg.Rules().Every
	if every == 0 || !g.AsksFirst() {
		return ctx, func() {}
	}
	watched, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		var last *Asked // the question that was answered last: its caller may take that back
		defer func() { last.Close() }()
		for {
			select {
			case <-watched.Done():
				return
			case answer := <-last.Later():
				if answer != No {
					continue
				}
				g.gone.Store(unwanted)
			case <-tick.C:
				last.Close()
				if last = g.stillThere(watched); last != nil || g.gone.Load() == nil {
					continue
				}
			}
			cancel(ErrForgotten)
			return
		}
	}()
	return watched, func() {
		cancel(nil)
		<-done
	}
}

// Forgotten has the message never start again after an attempt that Watch ended.
func (g *Gate) Forgotten() Decision { return g.ends(g.gone.Load()) }

// stillThere asks the caller whether it still wants the message that runs, and notes it when it does not. No answer means that it does. It
// returns the question when that was answered.
func (g *Gate) stillThere(ctx context.Context) *Asked {
	line, id := g.gates.cfg.Line, g.about.ID()
	for ctx.Err() == nil {
		asked, err := line.Ask(g.Interest, id, g.about.Subject)
		if err != nil {
			return nil
		}
		answer, ok := asked.Wait(ctx, g.gates.cfg.Rules().Timeout)
		if ok && answer == Yes {
			line.There(id)
			return asked
		}
		asked.Close()
		switch {
		case !ok:
			return nil
		case answer == No:
			g.gone.Store(unwanted)
			return nil
		case line.Gone(id, time.Now()):
			g.gone.Store(absent)
			return nil
		}
		transient.Pause(ctx, AskAgain) // it may be reconnecting
	}
	return nil
}
