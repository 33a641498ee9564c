package caller

import (
	"sync"
	"time"
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
	// MaxWaitingBytes bounds what waits for an answer, or after it.
	MaxWaitingBytes = 16 << 20
	// maxYoung bounds the questions that were just asked: no more is pulled meanwhile. Callers who answer are so asked no faster than
	// they can, and those who do not hold up others for twice Promptly at most.
	maxYoung = 2048
	// Promptly is how long a question that holds a slot may be unanswered in any of them.
	Promptly = 20 * time.Millisecond
)

// Counted is what came of a question.
type Counted int

// What came of questions. Those that are counted as Again said nothing: they are asked once more.
const (
	CountedYes Counted = iota
	CountedNo
	CountedNobody
	CountedUnknown
	CountedAgain
	Kinds // how many there are
)

func (c Counted) String() string { return [...]string{"yes", "no", "nobody", "unknown", "again"}[c] }

// Left is why a message waits no more.
type Left int

// Why messages leave.
const (
	Wanted   Left = iota // its caller said so
	Unwanted             // its caller said so
	Absent               // its caller was not there for long
	Silent               // its caller did not answer in time
	Unheard              // the same, and it starts all the same: Started is to be called when it does, or goes
	Crowded              // there is no room
	Ended                // nobody is asked any more
)

// Rules are those of a route. They may change.
type Rules struct {
	Timeout time.Duration // of an answer
	// Drop says that a message whose caller does not answer in time leaves as [Silent], and not as [Unheard].
	Drop bool
	// Slots is how many messages run at once.
	Slots int
	// Every is how often a caller is asked while its message runs; 0: never.
	Every time.Duration
}

// YesCounts is how long a caller's yes counts. One that is older is asked for once more when its message starts: the caller may have given up since. A
// caller that is asked and does not answer at once is taken to want it still.
func (r Rules) YesCounts() time.Duration { return min(r.Timeout, HeardLately) }

// WaitingConfig says for what a [Waiting] is.
type WaitingConfig struct {
	Line  *Line
	Rules func() Rules
	Most  int // messages that may wait
	// Count is told what came of each question.
	Count func(Counted)
	// More is told that more questions may be asked.
	More func()
}

// Waiting are the messages of a route that wait for their callers. Make it with [NewWaiting].
type Waiting struct {
	cfg WaitingConfig

	mu       sync.Mutex
	all      map[*Question]struct{}
	bytes    int
	unheard  []*Question // those without an answer in time, which wait for their turn
	absent   []*Question // those whose caller was not there, and which are asked again; some have left since
	released int         // of those that had one, how many have not started yet
	feeding  bool
	ended    bool
	young    young
}

// NewWaiting returns one in which nothing waits.
func NewWaiting(cfg WaitingConfig) *Waiting {
	return &Waiting{cfg: cfg, all: make(map[*Question]struct{})}
}

// young counts the questions without an answer that were asked in this period of time, and in the one before.
type young struct {
	period    int64
	now, past int
	waking    bool // the pull loops will be told that there is room
}

func (y *young) roll(now time.Time) {
	switch p := now.UnixNano() / int64(Promptly); p - y.period {
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

// Question is about a message that waits.
type Question struct {
	ID, Interest, Subject string // see [Line.Ask]
	Size                  int    // of the message, in bytes
	// End is called once, with why the message waits no more. No lock is held.
	End func(Left)

	// Under the lock of Waiting:
	gone  bool // it is in absent
	turn  int  // counts what it waits for: what was for an earlier turn has no effect
	asked *Asked
	timer *time.Timer
	began int64 // in which period of young it was asked; 0: it is not asked now
}

// Ask asks the question, and has its message wait. It does not block.
func (a *Waiting) Ask(q *Question) {
	a.mu.Lock()
	full, ended := a.full(q.Size), a.ended
	// Those whose callers were not there make room: their absence is remembered, and they are asked again when they come back.
	var outs []*Question
	for full && !ended && len(a.absent) > 0 {
		out := a.absent[0]
		a.absent[0], a.absent = nil, a.absent[1:]
		if a.take(out) {
			a.stop(out)
			outs = append(outs, out)
		}
		full = a.full(q.Size)
	}
	if !full && !ended {
		a.all[q] = struct{}{}
		a.bytes += q.Size
	}
	a.mu.Unlock()
	for _, out := range outs {
		a.crowded(out)
	}
	switch {
	case ended:
		q.End(Ended)
	case full:
		a.crowded(q)
	default:
		a.ask(q)
	}
}

// full tells whether there is no room for a message of that size. The lock is held.
func (a *Waiting) full(size int) bool {
	return len(a.all) >= a.cfg.Most || a.bytes+size > MaxWaitingBytes && len(a.all) > 0
}

// crowded has a message leave for which there is no room.
func (a *Waiting) crowded(q *Question) {
	a.cfg.Count(CountedAgain)
	q.End(Crowded)
}

// ask sends the question.
func (a *Waiting) ask(q *Question) {
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
	asked, err := a.cfg.Line.AskThen(q.Interest, q.ID, q.Subject, func(answer Answer) { a.answered(q, turn, answer) })
	a.mu.Lock()
	defer a.mu.Unlock()
	switch _, here := a.all[q]; {
	case !here || q.turn != turn: // the answer was quicker, or it ended
		if asked != nil {
			asked.Close()
		}
	case err != nil:
		a.cfg.Count(CountedAgain)
		a.stop(q)
		a.askLater(q)
	default:
		q.asked = asked
		q.timer = time.AfterFunc(a.cfg.Rules().Timeout, func() { a.unanswered(q, turn) })
	}
}

// stop ends the turn of a question. The lock is held.
func (a *Waiting) stop(q *Question) (asked *Asked) {
	if q.timer != nil {
		q.timer.Stop()
	}
	if q.began > 0 {
		a.young.ended(q.began)
	}
	asked, q.asked, q.timer, q.began = q.asked, nil, nil, 0
	q.turn++
	if asked != nil {
		asked.Close()
	}
	return asked
}

// endTurn is stop, and tells whether it is that turn still.
func (a *Waiting) endTurn(q *Question, turn int) (asked *Asked, mine bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.here(q) || q.turn != turn {
		return nil, false
	}
	return a.stop(q), true
}

// answered takes the answer to a question.
func (a *Waiting) answered(q *Question, turn int, answer Answer) {
	if _, mine := a.endTurn(q, turn); !mine {
		return
	}
	switch line := a.cfg.Line; {
	case answer == Yes:
		a.cfg.Count(CountedYes)
		line.There(q.ID)
		a.leave(q, Wanted)
	case answer == No:
		a.cfg.Count(CountedNo)
		a.leave(q, Unwanted)
	case line.Gone(q.ID, time.Now()):
		a.cfg.Count(CountedNobody)
		a.leave(q, Absent)
	default:
		a.cfg.Count(CountedAgain)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.askLater(q)
		if a.here(q) && !q.gone {
			q.gone = true
			a.absent = append(a.absent, q)
		}
	}
}

// unanswered notes that there was no answer in time.
func (a *Waiting) unanswered(q *Question, turn int) {
	switch asked, mine := a.endTurn(q, turn); {
	case !mine:
	case asked.Interrupted():
		a.cfg.Count(CountedAgain)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.askLater(q)
	case a.cfg.Rules().Drop:
		a.cfg.Count(CountedUnknown)
		a.leave(q, Silent)
	default:
		a.cfg.Count(CountedUnknown)
		a.mu.Lock()
		if a.here(q) {
			a.unheard = append(a.unheard, q)
		}
		a.mu.Unlock()
		a.feed()
	}
}

// askLater asks a question once more, if it is still open. The lock is held.
func (a *Waiting) askLater(q *Question) {
	if a.here(q) {
		q.timer = time.AfterFunc(AskAgain, func() { a.ask(q) })
	}
}

// take counts a question out. It returns false when that was done. The lock is held.
func (a *Waiting) take(q *Question) bool {
	if !a.here(q) {
		return false
	}
	delete(a.all, q)
	a.bytes -= q.Size
	for len(a.absent) > 0 && !a.here(a.absent[0]) {
		a.absent[0], a.absent = nil, a.absent[1:]
	}
	return true
}

// here tells whether a question is still open. The lock is held.
func (a *Waiting) here(q *Question) bool {
	_, here := a.all[q]
	return here
}

// leave has the message wait no more.
func (a *Waiting) leave(q *Question, why Left) {
	a.mu.Lock()
	mine := a.take(q)
	a.mu.Unlock()
	if mine {
		q.End(why)
	}
}

// feed hands back messages whose callers did not answer, while fewer of them than the route has slots wait to start.
func (a *Waiting) feed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.feeding {
		return // whoever feeds looks again
	}
	for a.feeding = true; len(a.unheard) > 0 && a.released <= a.cfg.Rules().Slots; {
		q := a.unheard[0]
		a.unheard[0], a.unheard = nil, a.unheard[1:]
		if !a.take(q) {
			continue
		}
		a.released++
		a.mu.Unlock()
		q.End(Unheard)
		a.mu.Lock()
	}
	a.feeding = false
}

// Started says that a message that left as Unheard starts, or goes.
func (a *Waiting) Started() {
	a.mu.Lock()
	a.released--
	a.mu.Unlock()
	a.feed()
}

// Room is how many more questions may be asked now. More is called when that is more, after it was little.
func (a *Waiting) Room() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.young.roll(time.Now())
	n := max(0, maxYoung-a.young.now-a.young.past)
	if n < maxYoung/2 && !a.young.waking && !a.ended {
		a.young.waking = true
		time.AfterFunc(Promptly, func() {
			a.mu.Lock()
			a.young.waking = false
			a.mu.Unlock()
			a.cfg.More()
		})
	}
	return n
}

// Len is how many messages wait for their caller.
func (a *Waiting) Len() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.all)
}

// Close has all messages leave. No caller is asked any more.
func (a *Waiting) Close() {
	a.mu.Lock()
	all := a.all
	a.ended, a.all, a.unheard, a.absent, a.bytes = true, nil, nil, nil, 0
	for q := range all {
		a.stop(q)
	}
	a.mu.Unlock()
	for q := range all {
		q.End(Ended)
	}
}
