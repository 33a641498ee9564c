package consumer

import (
	"math/rand/v2"
	"time"

	"github.com/relaymq/relay/consumer/internal/caller"
	"github.com/relaymq/relay/supervisor"
)

// The caller of a message is asked before each attempt, if it wants that. Package caller asks; here is what the answers mean for the message.

const (
	// maxAsking bounds the messages of a route that wait for an answer, or after it.
	maxAsking = supervisor.MaxWindow
	// crowdedMin and crowdedMax bound how long a message stays away for which there was no room, and as long again at random.
	crowdedMin = 500 * time.Millisecond
	crowdedMax = 30 * time.Second
	// heardLately is how long an answer counts. A yes that is older is asked for once more when its message starts; see recheck.
	heardLately = time.Second
	// maxUnheard is how often a caller who does not answer is asked before one attempt.
	maxUnheard = 2
)

// heard is what is known of a message that is about to start. It belongs to whoever has the message.
type heard struct {
	yes   bool
	at    time.Time // zero: nothing
	times int       // without an answer
}

// newAsking is where messages of the route wait for their callers.
func (rt *route) newAsking() *caller.Waiting {
	return caller.NewWaiting(caller.WaitingConfig{
		Line: rt.relay.line, Most: maxAsking, More: rt.more,
		Rules: func() caller.Rules {
			return caller.Rules{Timeout: rt.cfg.Interest.Timeout, Drop: rt.cfg.Interest.Unknown == UnknownDrop, Slots: rt.now().Concurrency}
		},
		Count: func(c caller.Counted) { rt.count.answers[c].Add(1) },
	})
}

// asksFirst tells whether the caller of the message is asked before each attempt.
func (m *message) asksFirst() bool { return m.call != nil && m.call.Interest != "" && !m.isReplay() }

var _ supervisor.Asker = (*message)(nil)

// Asked tells whether enough is known to start the message. It is called under the group's lock.
func (m *message) Asked(now time.Time) bool {
	h := &m.call.heard
	return !h.at.IsZero() && (h.yes || h.times >= maxUnheard || now.Sub(h.at) < heardLately)
}

// Ask asks the caller of the message, and has the group take it back afterwards.
func (m *message) Ask(g *supervisor.Group) {
	m.leaveLine()
	if m.isOver(time.Now()) {
		g.Answered(&m.Message, m.stopAt(&endExpired))
		return
	}
	m.route.callers.asking.Ask(&caller.Question{
		ID: m.id(), Interest: m.call.Interest, Subject: m.subject, Size: m.Size, End: func(why caller.Left) { g.Answered(&m.Message, m.answered(why)) },
	})
}

// answered is what becomes of a message that waits for its caller no more.
func (m *message) answered(why caller.Left) supervisor.Verdict {
	h := &m.call.heard
	switch why {
	case caller.Wanted:
		*h = heard{yes: true, at: time.Now()}
	case caller.Unheard:
		*h = heard{at: time.Now(), times: h.times + 1}
		m.call.inLine.Store(true)
	case caller.Unwanted:
		return m.stopAt(&endUnwanted)
	case caller.Absent:
		return m.stopAt(&endAbsent)
	case caller.Silent:
		return m.stopAt(&endSilent)
	case caller.Crowded:
		return supervisor.Verdict{Kind: supervisor.Snooze, Delay: m.crowdedOut(), Err: errCrowded}
	case caller.Ended: // its group is draining
	}
	return supervisor.Verdict{Kind: supervisor.Ack}
}

// crowdedOut is how long a message stays away for which there was no room: twice as long each time, because the server delivers what
// comes again before what is new, and thousands that come and go would keep that out.
func (m *message) crowdedOut() time.Duration {
	d := min(max(m.route.cfg.Interest.Timeout, crowdedMin)<<max(0, min(m.Returns, 8)), crowdedMax)
	return d + rand.N(d)
}

// leaveLine notes that the message starts, or goes, if it is one of those that are handed back a few at a time.
func (m *message) leaveLine() {
	if m.call.inLine.Swap(false) {
		m.route.callers.asking.Started()
	}
}
