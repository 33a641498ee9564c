package route

import (
	"context"
	"strings"
	"time"

	"github.com/relaymq/relay/consumer/internal/caller"
	"github.com/relaymq/relay/consumer/internal/outcome"
	"github.com/relaymq/relay/consumer/internal/reply"
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

// call is the caller of a message on its way.
type call struct {
	*caller.Gate
	// Of the attempt that was started last. They are read once it succeeded, and not after one that was given up.
	number int
	result *reply.Result
}

// maxAsking bounds the messages of a route that wait for an answer, or after it.
const maxAsking = supervise.MaxWindow

// callers is what a route has to do with callers.
type callers struct {
	policy  caller.Policy
	Holding caller.Holding // messages that are not acknowledged before their outcome is told
	Gates   *caller.Gates
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

// callerPolicy is what callers may ask of the route; own are subjects that they may never name.
func (r Spec) callerPolicy(own ...string) caller.Policy {
	return caller.Policy{Reply: r.Reply, Interest: r.Interest, Own: own}
}

// asks tells whether messages of the route may have a question asked.
func (r Spec) asks() bool { return len(r.Interest) > 0 }

// slotTime is how long an attempt may hold its slot: a question does not spend the attempt's time.
func (r Spec) slotTime() time.Duration {
	if r.asks() {
		return r.Timeout + r.Ask.Timeout
	}
	return r.Timeout
}

// newGates stand before the attempts of the route.
func (rt *Route) newGates() *caller.Gates {
	return caller.NewGates(caller.WaitingConfig{
		Line: rt.Home.Line, Most: maxAsking, More: rt.more,
		Rules: func() caller.Rules {
			return caller.Rules{Timeout: rt.Spec.Ask.Timeout, Every: rt.Spec.Ask.Every, Drop: rt.Spec.Ask.DropUnknown, Slots: rt.Now().Concurrency}
		},
		Count: func(c caller.Counted) { rt.Count.Answers[c].Add(1) },
	})
}

// readCall finds out what the headers of the message ask for.
func (m *Message) readCall(stored time.Time) {
	rt := m.route()
	c, refused := rt.Callers.policy.Read(m.Header, stored)
	if c != nil {
		m.call = &call{Gate: rt.Callers.Gates.Gate(*c, caller.About{ID: m.ID, Subject: m.Subject, Size: m.Size, Replay: outcome.IsReplay(&m.Unsettled)})}
	}
	for _, r := range refused {
		rt.Count.Refused.Add(1)
		if others, ok := rt.Callers.refused.Allow(time.Now()); ok {
			rt.Log.Warn("refused a header of the caller; the message is handled without it", m.Attrs("header", r.Header, "error", r.Err, "others", others)...)
		}
	}
}

// decided is the verdict on a message that does not start.
func (m *Message) decided(d caller.Decision) supervise.Verdict {
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

var _ supervise.Asker = (*Message)(nil)

// Asked tells whether enough is known to start the message. It is called under the group's lock.
func (m *Message) Asked(now time.Time) bool { return m.call.Asked(now) }

// Ask asks the caller of the message, and has the group take it back afterwards.
func (m *Message) Ask(g *supervise.Group) {
	m.call.Ask(m.Returns, func(d caller.Decision) { g.Answered(&m.Message, m.decided(d)) })
}

// notWanted is what Msg.StillWanted of package consumer returns for a message that is not to start. It becomes the verdict.
type notWanted struct{ verdict supervise.Verdict }

func (n *notWanted) Error() string {
	return "the message must not start: its deadline has passed, or its caller does not want it any more"
}

// stillWanted asks the gate once more, for an attempt that had to wait after it was asked.
func (m *Message) stillWanted(ctx context.Context) error {
	if d := m.call.StillWanted(ctx); !d.Start {
		return &notWanted{m.decided(d)}
	}
	return nil
}

// attempt prepares an attempt whose caller may want its result, or want it no more. stop is called at its end.
func (m *Message) attempt(ctx context.Context, number int) (watched context.Context, result *reply.Result, stop func()) {
	c := m.call
	c.number = number
	ctx, unwatch := c.Watch(ctx)
	if c.ReplyTo == "" {
		return ctx, nil, unwatch
	}
	result = reply.New(m.maxResult())
	c.result = result
	return ctx, result, func() {
		result.Close()
		unwatch()
	}
}

// forgotten tells whether an attempt ended because its caller did not want it any more. A handler that came to an answer all the
// same is believed.
func forgotten(ctx context.Context, v supervise.Verdict) bool {
	return (v.Kind == supervise.Retry || v.Kind == supervise.Snooze) && context.Cause(ctx) == caller.ErrForgotten
}

// gated is what becomes of a message that leaves its group: what a gate said, if one did.
func (m *Message) gated(o supervise.Outcome) supervise.Outcome {
	end := m.call.Ended()
	if end == nil || o.Action != supervise.LetGo {
		return o
	}
	o.Action, o.Err, o.Why = supervise.DropMessage, end.Err, ""
	if end.Expired() {
		if m.route().Spec.ExpiredToLetters {
			o.Action, o.Reason = supervise.DeadLetter, supervise.ReasonExpired
		}
		m.route().Count.Expired.Add(1)
	} else {
		m.route().Count.Forgotten.Add(1)
	}
	return o
}
