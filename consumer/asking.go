package consumer

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/relaymq/relay/consumer/internal/caller"
	"github.com/relaymq/relay/supervisor"
)

// A question takes no slot. When it is a message's turn for one, its caller is asked and the message waits here, with its lease, until
// the answer says what becomes of it:
//
//	                  ┌──── nobody, or the connection broke: a second later ───┐
//	its turn ── Ask ──┴▶ asked ──┬─ yes ─────────────────────▶ its turn again, and it starts
//	                             ├─ no, or nobody for long ──▶ forgotten
//	                             └─ no answer in time ── line ▶ its turn again, a few at a time
//
// Those whose caller did not answer come back a few at a time, lest thousands that were asked about together stand before the messages
// of others. What is here has a bound; messages beyond are given back, and their callers are not asked.

const (
	// maxAsking and maxAskingBytes bound what waits for an answer, or after it.
	maxAsking      = supervisor.MaxWindow
	maxAskingBytes = 16 << 20
	// maxYoung bounds the questions that were just asked: no more is pulled meanwhile. Callers who answer are so asked no faster than
	// they can, and those who do not hold up others for twice promptly at most.
	maxYoung = 2048
	// crowdedMin and crowdedMax bound how long a message stays away for which there was no room, and as long again at random.
	crowdedMin = 500 * time.Millisecond
	crowdedMax = 30 * time.Second
	// heardLately is how long an answer counts. A yes that is older is asked for once more when its message starts; see recheck.
	heardLately = time.Second
	// maxUnheard is how often a caller who does not answer is asked before one attempt.
	maxUnheard = 2
)

// asking is what of a route waits for its callers.
type asking struct {
	mu       sync.Mutex
	all      map[*question]struct{}
	bytes    int
	unheard  []*question // those without an answer in time, which wait for their turn
	absent   []*question // those whose caller was not there, and which are asked again; some have left since
	released int         // of those that had one, how many have not started yet
	feeding  bool
	ended    bool
	young    young
}

// young counts the questions without an answer that were asked in this period of time, and in the one before.
type young struct {
	period    int64
	now, past int
	waking    bool // the pull loops will be told that there is room
}

func (y *young) roll(now time.Time) {
	switch p := now.UnixNano() / int64(promptly); p - y.period {
	case 0:
	case 1:
		y.period, y.past, y.now = p, y.now, 0
	default:
		y.period, y.past, y.now = p, 0, 0
	}
}

// ended counts out a question of such a period.
func (y *young) ended(period int64) {
	switch y.period - period {
	case 0:
		y.now--
	case 1:
		y.past--
	}
}

// question is a message that waits here.
type question struct {
	m     *message
	group *supervisor.Group
	// Under the lock of asking:
	gone  bool // it is in absent
	turn  int  // counts what it waits for: what was for an earlier turn has no effect
	asked *caller.Asked
	timer *time.Timer
	began int64 // in which period of young it was asked; 0: it is not asked now
}

// heard is what is known of a message that is about to start. It belongs to whoever has the message.
type heard struct {
	yes   bool
	at    time.Time // zero: nothing
	times int       // without an answer
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
	a, q := &m.route.callers.asking, &question{m: m, group: g}
	a.mu.Lock()
	full, ended := a.full(m.Size), a.ended
	// Those whose callers were not there make room: their absence is remembered, and they are asked again when they come back.
	var outs []*question
	for full && !ended && len(a.absent) > 0 {
		out := a.absent[0]
		a.absent[0], a.absent = nil, a.absent[1:]
		if a.take(out) {
			out.stop()
			outs = append(outs, out)
		}
		full = a.full(m.Size)
	}
	if !full && !ended {
		if a.all == nil {
			a.all = map[*question]struct{}{}
		}
		a.all[q] = struct{}{}
		a.bytes += m.Size
	}
	a.mu.Unlock()
	for _, out := range outs {
		out.group.Answered(&out.m.Message, out.m.crowded())
	}
	switch {
	case ended:
		g.Answered(&m.Message, supervisor.Verdict{Kind: supervisor.Ack}) // which is draining
	case full:
		g.Answered(&m.Message, m.crowded())
	default:
		q.ask()
	}
}

// full tells whether there is no room for a message of that size. The lock is held.
func (a *asking) full(size int) bool {
	return len(a.all) >= maxAsking || a.bytes+size > maxAskingBytes && len(a.all) > 0
}

// crowded has a message come again later for which there is no room.
func (m *message) crowded() supervisor.Verdict {
	m.route.count.answers[answerAgain].Add(1)
	return supervisor.Verdict{Kind: supervisor.Snooze, Delay: m.crowdedOut(), Err: errCrowded}
}

// crowdedOut is how long a message stays away for which there was no room: twice as long each time, because the server delivers what
// comes again before what is new, and thousands that come and go would keep that out.
func (m *message) crowdedOut() time.Duration {
	d := min(max(m.route.cfg.Interest.Timeout, crowdedMin)<<max(0, min(m.Returns, 8)), crowdedMax)
	return d + rand.N(d)
}

// ask sends the question.
func (q *question) ask() {
	rt := q.m.route
	a := &rt.callers.asking
	a.mu.Lock()
	_, here := a.all[q]
	if here {
		q.turn++
		a.young.roll(time.Now())
		a.young.now++
		q.began = a.young.period
	}
	turn := q.turn
	a.mu.Unlock()
	if !here {
		return
	}
	c := q.m.call
	asked, err := rt.relay.line.AskThen(c.Interest, q.m.id(), q.m.subject, func(answer caller.Answer) { q.end(turn, answer, true) })
	a.mu.Lock()
	defer a.mu.Unlock()
	switch _, here := a.all[q]; {
	case !here || q.turn != turn: // the answer was quicker, or the route drains
		if asked != nil {
			asked.Close()
		}
	case err != nil:
		rt.count.answers[answerAgain].Add(1)
		q.stop()
		q.timer = time.AfterFunc(caller.AskAgain, q.ask)
	default:
		q.asked = asked
		q.timer = time.AfterFunc(rt.cfg.Interest.Timeout, func() { q.end(turn, 0, false) })
	}
}

// stop ends the turn of a question. The lock is held.
func (q *question) stop() (asked *caller.Asked) {
	if q.timer != nil {
		q.timer.Stop()
	}
	if q.began > 0 {
		q.m.route.callers.asking.young.ended(q.began)
	}
	asked, q.asked, q.timer, q.began = q.asked, nil, nil, 0
	q.turn++
	if asked != nil {
		asked.Close()
	}
	return asked
}

// end takes the answer to a question, or that there was none in time.
func (q *question) end(turn int, answer caller.Answer, ok bool) {
	m, rt := q.m, q.m.route
	a, line := &rt.callers.asking, rt.relay.line
	a.mu.Lock()
	if _, here := a.all[q]; !here || q.turn != turn {
		a.mu.Unlock()
		return
	}
	asked := q.stop()
	a.mu.Unlock()
	switch now := time.Now(); {
	case ok && answer == caller.Yes:
		rt.count.answers[answerYes].Add(1)
		line.There(m.id())
		m.call.heard = heard{yes: true, at: now}
		q.leave(supervisor.Verdict{Kind: supervisor.Ack})
	case ok && answer == caller.No:
		rt.count.answers[answerNo].Add(1)
		q.leave(m.stopAt(&endUnwanted))
	case ok && line.Gone(m.id(), now):
		rt.count.answers[answerNobody].Add(1)
		q.leave(m.stopAt(&endAbsent))
	case ok || asked.Interrupted():
		rt.count.answers[answerAgain].Add(1)
		a.mu.Lock()
		if _, here := a.all[q]; here {
			q.timer = time.AfterFunc(caller.AskAgain, q.ask)
			if ok && !q.gone {
				q.gone = true
				a.absent = append(a.absent, q)
			}
		}
		a.mu.Unlock()
	case rt.cfg.Interest.Unknown == UnknownDrop:
		rt.count.answers[answerUnknown].Add(1)
		q.leave(m.stopAt(&endSilent))
	default:
		rt.count.answers[answerUnknown].Add(1)
		a.mu.Lock()
		if _, here := a.all[q]; here {
			a.unheard = append(a.unheard, q)
		}
		a.mu.Unlock()
		rt.feed()
	}
}

// take counts a question out. It returns false when that was done. The lock is held.
func (a *asking) take(q *question) bool {
	if _, here := a.all[q]; !here {
		return false
	}
	delete(a.all, q)
	a.bytes -= q.m.Size
	for len(a.absent) > 0 && !a.here(a.absent[0]) {
		a.absent[0], a.absent = nil, a.absent[1:]
	}
	return true
}

// here tells whether a question is still open. The lock is held.
func (a *asking) here(q *question) bool {
	_, here := a.all[q]
	return here
}

// leave hands the message back to its group.
func (q *question) leave(v supervisor.Verdict) {
	a := &q.m.route.callers.asking
	a.mu.Lock()
	mine := a.take(q)
	a.mu.Unlock()
	if mine {
		q.group.Answered(&q.m.Message, v)
	}
}

// feed hands back messages whose callers did not answer, while fewer of them than the route has slots wait to start.
func (rt *route) feed() {
	a := &rt.callers.asking
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.feeding {
		return // whoever feeds looks again
	}
	for a.feeding = true; len(a.unheard) > 0 && a.released <= rt.now().Concurrency; {
		q := a.unheard[0]
		a.unheard[0], a.unheard = nil, a.unheard[1:]
		if !a.take(q) {
			continue
		}
		a.released++
		a.mu.Unlock()
		h := &q.m.call.heard
		*h = heard{at: time.Now(), times: h.times + 1}
		q.m.call.inLine.Store(true)
		q.group.Answered(&q.m.Message, supervisor.Verdict{Kind: supervisor.Ack})
		a.mu.Lock()
	}
	a.feeding = false
}

// leaveLine notes that the message starts, or goes, if it is one that feed handed back.
func (m *message) leaveLine() {
	if !m.call.inLine.Swap(false) {
		return
	}
	a := &m.route.callers.asking
	a.mu.Lock()
	a.released--
	a.mu.Unlock()
	m.route.feed()
}

// askable is how many more callers may be asked now. The pull loops are told when there are more.
func (rt *route) askable() int {
	a := &rt.callers.asking
	a.mu.Lock()
	defer a.mu.Unlock()
	a.young.roll(time.Now())
	n := max(0, maxYoung-a.young.now-a.young.past)
	if n < maxYoung/2 && !a.young.waking && !a.ended {
		a.young.waking = true
		time.AfterFunc(promptly, func() {
			a.mu.Lock()
			a.young.waking = false
			a.mu.Unlock()
			rt.more()
		})
	}
	return n
}

// waits is how many messages wait for their caller.
func (a *asking) waits() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.all)
}

// endAsking hands all messages back to their group, which is draining. No caller is asked any more.
func (rt *route) endAsking() {
	a := &rt.callers.asking
	a.mu.Lock()
	all := a.all
	a.ended, a.all, a.unheard, a.absent, a.bytes = true, nil, nil, nil, 0
	for q := range all {
		q.stop()
	}
	a.mu.Unlock()
	for q := range all {
		q.group.Answered(&q.m.Message, supervisor.Verdict{Kind: supervisor.Ack})
	}
}
