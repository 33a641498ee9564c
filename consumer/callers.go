package consumer

import (
	"context"
	"strings"
	"time"

	"github.com/relaymq/relay/consumer/internal/caller"
	"github.com/relaymq/relay/consumer/internal/outcome"
	"github.com/relaymq/relay/internal/subject"
	"github.com/relaymq/relay/internal/supervise"
	"github.com/relaymq/relay/internal/trouble"
)

// Work that nobody wants any more is not started, and whoever asked for it learns what became of it. A message says who that is by
// its headers; see the package caller, which has the gates. Here is what they mean for the message:
//
//	still wanted? ── slot: Do ── deadline over? ── Handle ── verdict ─▶ Settle ── reply ── ack
//	     └ forgotten                  └ expired
//
// A gate says nothing of the key: what is expired or forgotten leaves its group as if its lease were lost, and is settled here.

// ErrForgotten is the cause with which the context of a handler is cancelled when the caller of its message does not want it any
// more; see [Interest]. What the handler returns then does not count, unless it is a success, [Dead] or [Drop].
var ErrForgotten = caller.ErrForgotten

// call is the caller of a message on its way.
type call struct {
	*caller.Gate
	// Of the attempt that was started last. They are read once it succeeded, and not after one that was given up.
	number int
	result *Result
}

// maxAsking bounds the messages of a route that wait for an answer, or after it.
const maxAsking = supervise.MaxWindow

// callers is what a route has to do with callers.
type callers struct {
	policy  caller.Policy
	holding caller.Holding // messages that are not acknowledged before their outcome is told
	gates   *caller.Gates
	refused trouble.Throttle
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

// asks tells whether messages of the route may have a question asked.
func (r Route) asks() bool { return len(r.Caller.Interest) > 0 }

// slotTime is how long an attempt may hold its slot: a question does not spend the attempt's time.
func (r Route) slotTime() time.Duration {
	if r.asks() {
		return r.Timeout + r.Interest.Timeout
	}
	return r.Timeout
}

// newGates stand before the attempts of the route.
func (rt *route) newGates() *caller.Gates {
	return caller.NewGates(caller.WaitingConfig{
		Line: rt.relay.line, Most: maxAsking, More: rt.more,
		Rules: func() caller.Rules {
			return caller.Rules{Timeout: rt.cfg.Interest.Timeout, Every: rt.cfg.Interest.Every, Drop: rt.cfg.Interest.Unknown == UnknownDrop, Slots: rt.now().Concurrency}
		},
		Count: func(c caller.Counted) { rt.count.Answers[c].Add(1) },
	})
}

// readCall finds out what the headers of the message ask for.
func (m *message) readCall(stored time.Time) {
	rt := m.route()
	c, refused := rt.callers.policy.Read(m.Header, stored)
	if c != nil {
		m.call = &call{Gate: rt.callers.gates.Gate(*c, caller.About{ID: m.ID, Subject: m.Subject, Size: m.Size, Replay: outcome.IsReplay(&m.Unsettled)})}
	}
	for _, r := range refused {
		rt.count.Refused.Add(1)
		if others, ok := rt.callers.refused.Allow(time.Now()); ok {
			rt.log.Warn("refused a header of the caller; the message is handled without it", m.Attrs("header", r.Header, "error", r.Err, "others", others)...)
		}
	}
}

// decided is the verdict on a message that does not start.
func (m *message) decided(d caller.Decision) supervise.Verdict {
	switch {
	case d.End != nil:
		return supervise.Verdict{Kind: supervise.Lost, Gone: true}
	case d.Again > 0:
		return supervise.Verdict{Kind: supervise.Snooze, Delay: d.Again, Err: d.Err}
	case d.Err != nil:
		return supervise.Verdict{Kind: supervise.Retry, Err: d.Err, NotStarted: true}
	}
	return supervise.Verdict{Kind: supervise.Ack}
}

var _ supervise.Asker = (*message)(nil)

// Asked tells whether enough is known to start the message. It is called under the group's lock.
func (m *message) Asked(now time.Time) bool { return m.call.Asked(now) }

// Ask asks the caller of the message, and has the group take it back afterwards.
func (m *message) Ask(g *supervise.Group) {
	m.call.Ask(m.Returns, func(d caller.Decision) { g.Answered(&m.Message, m.decided(d)) })
}

// notWanted is what [Msg.StillWanted] returns for a message that is not to start. It becomes the verdict.
type notWanted struct{ verdict supervise.Verdict }

func (n *notWanted) Error() string {
	return "the message must not start: its deadline has passed, or its caller does not want it any more"
}

// stillWanted asks the gate once more, for an attempt that had to wait after it was asked.
func (m *message) stillWanted(ctx context.Context) error {
	if d := m.call.StillWanted(ctx); !d.Start {
		return &notWanted{m.decided(d)}
	}
	return nil
}

// StillWanted checks once more whether the message should start: has its deadline passed, and does its caller still want it? A handler whose
// messages wait for something of its own, such as a free process, calls it just before the work begins, and returns its error unchanged; no
// attempt is spent then. relay makes the same check before it calls the handler, so other handlers do not need it, and without a wait of a
// second, or of interest.timeout after a yes, it returns at once. It blocks as long as the caller takes to answer, for 250ms or
// interest.timeout at most; whoever does not answer is taken to want the message still.
func (m *Msg) StillWanted(ctx context.Context) error {
	if m.gate == nil {
		return nil
	}
	return m.gate(ctx)
}

// attempt prepares an attempt whose caller may want its result, or want it no more. stop is called at its end.
func (m *message) attempt(ctx context.Context, msg *Msg) (watched context.Context, stop func()) {
	c := m.call
	c.number = msg.Attempt
	ctx, unwatch := c.Watch(ctx)
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

// forgotten tells whether an attempt ended because its caller did not want it any more. A handler that came to an answer all the
// same is believed.
func forgotten(ctx context.Context, v supervise.Verdict) bool {
	return (v.Kind == supervise.Retry || v.Kind == supervise.Snooze) && context.Cause(ctx) == ErrForgotten
}

// gated is what becomes of a message that leaves its group: what a gate said, if one did.
func (m *message) gated(o supervise.Outcome) supervise.Outcome {
	end := m.call.Ended()
	if end == nil || o.Action != supervise.LetGo {
		return o
	}
	o.Action, o.Err, o.Why = supervise.DropMessage, end.Err, ""
	if end.Expired() {
		if m.route().cfg.Deadline.OnExpired == ExpiredDeadLetter {
			o.Action, o.Reason = supervise.DeadLetter, supervise.ReasonExpired
		}
		m.route().count.Expired.Add(1)
	} else {
		m.route().count.Forgotten.Add(1)
	}
	return o
}
