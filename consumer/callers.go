package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/consumer/internal/caller"
	"github.com/relaymq/relay/internal/away"
	"github.com/relaymq/relay/internal/subject"
	"github.com/relaymq/relay/internal/teeth"
	"github.com/relaymq/relay/internal/trouble"
	"github.com/relaymq/relay/supervisor"
)

// Work that nobody wants any more is not started, and whoever asked for it learns what became of it. A message says who that is by
// its headers; see the package caller. The gates stand where the message arrives (its deadline), and before each attempt:
//
//	still wanted? ── slot: Do ── deadline over? ── Handle ── verdict ─▶ Settle ── reply ── ack
//	     └ forgotten (asking.go)      └ expired
//
// A gate says nothing of the key: what is expired or forgotten leaves its group as if its lease were lost, and is settled here.
// A replay is an operator's decision: it is started whatever its deadline is, and without a question.

// ErrForgotten is the cause with which the context of a handler is cancelled when the caller of its message does not want it any
// more; see [Interest]. What the handler returns then does not count, unless it is a success, [Dead] or [Drop].
var ErrForgotten = errors.New("its caller does not want the message any more")

var errCrowded = errors.New("too many messages wait for the answers of their callers")

// Why a message is forgotten whose caller did not say so.
var (
	errAbsent = fmt.Errorf("%w: nobody has received relay's question for %v", ErrForgotten, caller.Reconnecting)
	errSilent = fmt.Errorf("%w: it did not answer relay's question in time (interest.unknown: drop)", ErrForgotten)
)

var errExpired = errors.New("its deadline passed before it started")

// call is the caller of a message on its way.
type call struct {
	caller.Call
	// end is set by a gate: what becomes of the message.
	end atomic.Pointer[gateEnd]
	// Of the attempt that was started last. They are read once it succeeded, and not after one that was given up.
	number int
	result *Result
	// What its caller said before the attempt that is to come, and whether it is one of those that are handed back a few at a time.
	heard  heard
	inLine atomic.Bool
	// gone is why an attempt was cancelled.
	gone atomic.Pointer[gateEnd]
	// checked is when the gates were asked that let the attempt start that runs.
	checked time.Time
}

// gateEnd is why a gate ends a message.
type gateEnd struct {
	outcome string
	err     error
}

var (
	endExpired  = gateEnd{outcomeExpired, errExpired}
	endUnwanted = gateEnd{outcomeForgotten, ErrForgotten} // its caller is there, and said so
	endAbsent   = gateEnd{outcomeForgotten, errAbsent}
	endSilent   = gateEnd{outcomeForgotten, errSilent}
)

// What a caller is told became of its message.
const (
	outcomeDone      = "done"
	outcomeDead      = "dead"
	outcomeDropped   = "dropped"
	outcomeExpired   = "expired"
	outcomeForgotten = "forgotten"
)

// callers is what a route has to do with callers.
type callers struct {
	policy    caller.Policy
	held      sync.WaitGroup // messages whose outcome is being told, and that are not acknowledged before
	heldBytes atomic.Int64   // of their bodies
	telling   atomic.Int32   // outcomes that are being told
	asking    *caller.Waiting
	silent    atomic.Int32 // slots with a question that is not answered at once
	refused   trouble.Seldom
}

// ownInboxes begin the inboxes of instances, operators and viewers, when they are apart from those of callers.
func ownInboxes(prefix string) []string {
	root, apart := strings.CutSuffix(prefix, subject.InstanceInbox)
	if !apart {
		return nil
	}
	return []string{prefix, root + ".operator", root + ".viewer"}
}

func (r Route) callerPolicy(own ...string) caller.Policy {
	return caller.Policy{Reply: r.Caller.Reply, Interest: r.Caller.Interest, Own: own}
}

const (
	// lastAnswer is how long the answer to a question may take that is asked last; see [Msg.StillWanted].
	lastAnswer = 250 * time.Millisecond
)

// asks tells whether messages of the route may have a question asked.
func (r Route) asks() bool { return len(r.Caller.Interest) > 0 }

// slotTime is how long an attempt may hold its slot: a question does not spend the attempt's time.
func (r Route) slotTime() time.Duration {
	if r.asks() {
		return r.Timeout + r.Interest.Timeout
	}
	return r.Timeout
}

// readCall finds out what the headers of the message ask for.
func (m *message) readCall(stored time.Time) {
	rt := m.route
	c, refused := rt.callers.policy.Read(m.header, stored)
	if c != nil {
		m.call = &call{Call: *c}
	}
	for _, r := range refused {
		rt.count.refused.Add(1)
		if others, ok := rt.callers.refused.May(time.Now()); ok {
			rt.log.Warn("refused a header of the caller; the message is handled without it", m.attrs("header", r.Header, "error", r.Err, "others", others)...)
		}
	}
}

// isReplay tells whether an operator had the message replayed.
func (m *message) isReplay() bool { return m.origin != nil && m.origin.Replay > 0 }

// isOver tells whether the deadline of the message is over.
func (m *message) isOver(now time.Time) bool {
	c := m.call
	return c != nil && !c.Deadline.IsZero() && !now.Before(c.Deadline) && !m.isReplay()
}

// stopAt has the message leave its group without a start, for good.
func (m *message) stopAt(end *gateEnd) supervisor.Verdict {
	m.call.end.Store(end)
	return supervisor.Verdict{Kind: supervisor.Lost, Gone: true}
}

// askLater has the question asked once more, soon.
func askLater() supervisor.Verdict {
	return supervisor.Verdict{Kind: supervisor.Snooze, Delay: caller.AskAgain, Err: errors.New("asking the caller again")}
}

// mayStart asks the gates that stand before an attempt. With false the message is not started, and the verdict says why.
func (m *message) mayStart(ctx context.Context) (supervisor.Verdict, bool) {
	m.leaveLine()
	h := m.call.heard
	m.call.heard = heard{} // the next attempt is another one
	switch {
	case m.isOver(time.Now()):
		return m.stopAt(&endExpired), false
	case !m.asksFirst() || teeth.Question():
		m.call.checked = time.Now()
		return supervisor.Verdict{}, true
	case h.at.IsZero():
		v, may := m.askInSlot(ctx, m.route.cfg.Interest.Timeout, false)
		m.call.checked = time.Now()
		return v, may
	case h.yes && time.Since(h.at) >= heardLately:
		v, may := m.askInSlot(ctx, min(caller.Promptly, m.route.cfg.Interest.Timeout), true)
		m.call.checked = time.Now()
		return v, may
	}
	m.call.checked = h.at
	return supervisor.Verdict{}, true
}

// notWanted is what [Msg.StillWanted] returns for a message that is not to start. It becomes the verdict.
type notWanted struct{ verdict supervisor.Verdict }

func (n *notWanted) Error() string {
	return "the message must not start: its deadline has passed, or its caller does not want it any more"
}

// stillWanted asks the gates once more, for an attempt that had to wait after they were asked.
func (m *message) stillWanted(ctx context.Context) error {
	switch {
	case m.isOver(time.Now()):
		return &notWanted{m.stopAt(&endExpired)}
	case !m.asksFirst() || teeth.Question() || time.Since(m.call.checked) < heardLately:
		return nil
	}
	v, may := m.askInSlot(ctx, min(lastAnswer, m.route.cfg.Interest.Timeout), true)
	m.call.checked = time.Now()
	if !may {
		return &notWanted{v}
	}
	return nil
}

// StillWanted checks once more whether the message should start: has its deadline passed, and does its caller still want it? A handler whose
// messages wait for something of its own, such as a free process, calls it just before the work begins, and returns its error unchanged; no
// attempt is spent then. relay makes the same check before it calls the handler, so other handlers do not need it, and without a wait of a
// second it returns at once. It blocks as long as the caller takes to answer, for 250ms or interest.timeout at most; whoever does not answer
// is taken to want the message still.
func (m *Msg) StillWanted(ctx context.Context) error {
	if m.gate == nil {
		return nil
	}
	return m.gate(ctx)
}

// askInSlot asks the caller of a message that has its slot already: a probe, one that runs alone, one of the fallback's, or one whose
// caller said yes a while ago. That yes counts when the caller does not answer at once.
func (m *message) askInSlot(ctx context.Context, timeout time.Duration, saidYes bool) (supervisor.Verdict, bool) {
	rt, line := m.route, m.route.relay.line
	asked, err := line.Ask(m.call.Interest, m.id(), m.subject)
	if err != nil {
		rt.count.answers[caller.CountedAgain].Add(1)
		return askLater(), false
	}
	defer asked.Close()
	answer, ok := asked.Wait(ctx, min(caller.Promptly, timeout))
	if rest := timeout - caller.Promptly; !ok && rest > 0 && ctx.Err() == nil {
		// Callers who never answer must leave slots to the others.
		if n := rt.callers.silent.Add(1); int(n) > max(1, rt.now().Concurrency/2) {
			rt.callers.silent.Add(-1)
			rt.count.answers[caller.CountedAgain].Add(1)
			return askLater(), false
		}
		answer, ok = asked.Wait(ctx, rest)
		rt.callers.silent.Add(-1)
	}
	switch now := time.Now(); {
	case ctx.Err() != nil:
		return supervisor.Verdict{Kind: supervisor.Retry, Err: context.Cause(ctx), NotStarted: true}, false
	case ok && answer == caller.Yes:
		rt.count.answers[caller.CountedYes].Add(1)
		line.There(m.id())
		return supervisor.Verdict{}, true
	case ok && answer == caller.No:
		rt.count.answers[caller.CountedNo].Add(1)
		return m.stopAt(&endUnwanted), false
	case ok && line.Gone(m.id(), now):
		rt.count.answers[caller.CountedNobody].Add(1)
		return m.stopAt(&endAbsent), false
	case !ok && saidYes:
		rt.count.answers[caller.CountedUnknown].Add(1)
		return supervisor.Verdict{}, true
	case ok || asked.Interrupted():
		rt.count.answers[caller.CountedAgain].Add(1)
		return askLater(), false
	}
	rt.count.answers[caller.CountedUnknown].Add(1)
	if rt.cfg.Interest.Unknown == UnknownDrop {
		return m.stopAt(&endSilent), false
	}
	return supervisor.Verdict{}, true
}

// attempt prepares an attempt whose caller may want its result, or want it no more. stop is called at its end.
func (m *message) attempt(ctx context.Context, msg *Msg) (watched context.Context, stop func()) {
	c, unwatch := m.call, func() {}
	c.number = msg.Attempt
	c.gone.Store(nil)
	if c.Interest != "" && m.route.cfg.Interest.Every > 0 && !m.isReplay() {
		ctx, unwatch = m.watch(ctx)
	}
	if c.ReplyTo == "" {
		return ctx, unwatch
	}
	result := RecordReply(msg, m.maxResult())
	c.result = result
	return ctx, func() {
		result.close()
		unwatch()
	}
}

// watch asks the caller now and then while the handler runs, and ends the returned context when it does not want the message any
// more. stop ends the asking, and waits for that.
func (m *message) watch(ctx context.Context) (watched context.Context, stop func()) {
	watched, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(m.route.cfg.Interest.Every)
		defer tick.Stop()
		var last *caller.Asked // the question that was answered last: its caller may take that back
		defer func() { last.Close() }()
		for {
			select {
			case <-watched.Done():
				return
			case answer := <-last.Later():
				if answer != caller.No {
					continue
				}
				m.call.gone.Store(&endUnwanted)
			case <-tick.C:
				last.Close()
				if last = m.stillThere(watched); last != nil || m.call.gone.Load() == nil {
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

// stillThere asks the caller whether it still wants the message that runs, and notes it when it does not. No answer means that it does. It
// returns the question when that was answered.
func (m *message) stillThere(ctx context.Context) *caller.Asked {
	line := m.route.relay.line
	for ctx.Err() == nil {
		asked, err := line.Ask(m.call.Interest, m.id(), m.subject)
		if err != nil {
			return nil
		}
		answer, ok := asked.Wait(ctx, m.route.cfg.Interest.Timeout)
		if ok && answer == caller.Yes {
			line.There(m.id())
			return asked
		}
		asked.Close()
		switch {
		case !ok:
			return nil
		case answer == caller.No:
			m.call.gone.Store(&endUnwanted)
			return nil
		case line.Gone(m.id(), time.Now()):
			m.call.gone.Store(&endAbsent)
			return nil
		}
		away.Pause(ctx, caller.AskAgain) // it may be reconnecting
	}
	return nil
}

// forgotten tells whether an attempt ended because its caller did not want it any more. A handler that came to an answer all the
// same is believed.
func forgotten(ctx context.Context, v supervisor.Verdict) bool {
	return (v.Kind == supervisor.Retry || v.Kind == supervisor.Snooze) && context.Cause(ctx) == ErrForgotten
}

// gated is what becomes of a message that leaves its group: what a gate said, if one did.
func (m *message) gated(o supervisor.Outcome) supervisor.Outcome {
	end := m.call.end.Load()
	if end == nil || o.Action != supervisor.LetGo {
		return o
	}
	o.Action, o.Err, o.Why = supervisor.DropMessage, end.err, ""
	if end.outcome == outcomeExpired {
		if m.route.cfg.Deadline.OnExpired == ExpiredDeadLetter {
			o.Action, o.Reason = supervisor.DeadLetter, supervisor.ReasonExpired
		}
		m.route.count.expired.Add(1)
	} else {
		m.route.count.forgotten.Add(1)
	}
	return o
}
