package caller

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// Line is where answers arrive: one subscription for all questions and replies of a connection, made with the first of them.
type Line struct {
	nc    *nats.Conn
	inbox string // begins the subjects of the answers
	// grace is for how long after relay's connection came up the absence of a caller proves nothing: callers reconnect too, and with
	// the defaults of nats.go that takes them two seconds and more.
	grace time.Duration

	taken atomic.Int64  // answers that were handed over
	ended chan struct{} // closed by Drain

	mu     sync.Mutex
	sub    *nats.Subscription
	closed bool
	open   map[string]*Asked
	// patience is for how long nobody must be there until that counts.
	patience time.Duration
	// The connection, as it was last looked at.
	links uint64
	since time.Time
	// absent is when nobody was there first, by message.
	absent map[string]time.Time
	swept  time.Time

	teller teller
}

// Reconnecting is how long a caller who reconnects may need. It is the grace and the patience of a new Line: with the defaults of
// nats.go a client waits two seconds before it tries, with TLS up to three, and the first try may fail.
const Reconnecting = 5 * time.Second

// New makes a Line. Nothing is subscribed yet.
func New(nc *nats.Conn) *Line {
	return &Line{nc: nc, grace: Reconnecting, patience: Reconnecting, since: time.Now(), open: map[string]*Asked{}, absent: map[string]time.Time{}, ended: make(chan struct{})}
}

// ErrClosed is returned after Close.
var ErrClosed = errors.New("relay has ended")

// Close ends the subscription, and the telling. Nothing is answered any more.
func (l *Line) Close() {
	l.endTelling()
	l.mu.Lock()
	sub := l.sub
	l.closed, l.sub = true, nil
	l.mu.Unlock()
	if sub != nil {
		_ = sub.Unsubscribe() // the connection is gone
	}
}

// Drain has all questions end without an answer. Replies still go out.
func (l *Line) Drain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.ended:
	default:
		close(l.ended)
	}
}

// Asked is a question, or a reply, that is under way.
type Asked struct {
	l     *Line
	token string
	links uint64
	got   chan Answer  // has room for one: the first answer counts
	then  func(Answer) // instead of got
	lasts bool         // then is called for each answer
}

// begin subscribes if that was not done yet, and registers a.
func (l *Line) begin(a *Asked) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	if l.sub == nil {
		inbox := l.nc.NewInbox()
		sub, err := l.nc.Subscribe(inbox+".*", l.arrived)
		if err != nil {
			return err
		}
		l.inbox, l.sub = inbox+".", sub
	}
	l.look(time.Now())
	// At random: whoever was asked once must not be able to answer for others.
	token := strconv.FormatUint(rand.Uint64(), 36) + strconv.FormatUint(rand.Uint64(), 36)
	a.l, a.token, a.links = l, token, l.links
	if a.then == nil {
		a.got = make(chan Answer, 1)
	}
	l.open[token] = a
	return nil
}

// Later is where a further answer comes, until Close. Of nil there is none.
func (a *Asked) Later() <-chan Answer {
	if a == nil {
		return nil
	}
	return a.got
}

// Close forgets the question. An answer that comes later is dropped. Of nil it does nothing.
func (a *Asked) Close() {
	if a == nil {
		return
	}
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	delete(a.l.open, a.token)
}

// arrived is called by the connection for each answer. It does not block.
func (l *Line) arrived(m *nats.Msg) {
	defer l.taken.Add(1)
	l.mu.Lock()
	if len(m.Subject) <= len(l.inbox) {
		l.mu.Unlock()
		return
	}
	a := l.open[m.Subject[len(l.inbox):]]
	if a != nil && a.then != nil && !a.lasts {
		delete(l.open, a.token) // the first answer counts
	}
	l.mu.Unlock()
	if a == nil {
		return // too late, or a stranger's guess
	}
	if a.then != nil {
		a.then(answerOf(m))
		return
	}
	select {
	case a.got <- answerOf(m):
	default:
	}
}

// Wait returns the answer, or false when there is none within d.
func (a *Asked) Wait(ctx context.Context, d time.Duration) (Answer, bool) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case answer := <-a.got:
		return answer, true
	case <-t.C:
	case <-a.l.ended:
	case <-ctx.Done():
	}
	return 0, false
}

// Interrupted tells whether the connection was away since the question was sent, which may be lost, or its answer; or whether relay
// drains and does not wait for it.
func (a *Asked) Interrupted() bool {
	select {
	case <-a.l.ended:
		return true
	default:
	}
	return !a.l.nc.IsConnected() || a.l.nc.Stats().Reconnects != a.links
}

// Look notes whether the connection was made anew. It is called every now and then, so that the time of that is known.
func (l *Line) Look(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.look(now)
}

func (l *Line) look(now time.Time) {
	if n := l.nc.Stats().Reconnects; n != l.links || !l.nc.IsConnected() {
		l.links, l.since = n, now
	}
}

const (
	// AskAgain is after what time a question is asked again that said nothing.
	AskAgain = time.Second
	// absentOver is when whoever was asked about is not asked again any more, in all likelihood.
	absentOver = 15 * time.Second
	// absentForgotten is when an absence is too long ago for another one to be the same.
	absentForgotten = time.Minute
	// maxAbsent bounds the memory. Messages for which there is none are asked about until there is.
	maxAbsent = 16 << 10
)

// Gone is told that nobody was there for a message, and says whether that counts: the question is to be asked again, [AskAgain] later,
// until nobody was there for [Reconnecting], however old the message is. Interest in a subject spreads slowly over leaf nodes and
// gateways, and callers reconnect.
func (l *Line) Gone(id string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.look(now); now.Sub(l.since) < l.grace {
		return false
	}
	first, known := l.absent[id]
	if known && now.Sub(first) >= l.patience && now.Sub(first) < absentForgotten {
		delete(l.absent, id)
		return true
	}
	if known && now.Sub(first) < l.patience {
		return false
	}
	if !known && len(l.absent) >= maxAbsent && now.Sub(l.swept) >= AskAgain {
		l.swept = now
		for old, at := range l.absent {
			if now.Sub(at) >= absentOver {
				delete(l.absent, old)
			}
		}
	}
	if !known && len(l.absent) >= maxAbsent {
		return false
	}
	l.absent[id] = now
	return false
}

// SetGrace is for tests that have no time for callers that reconnect: for how long after relay's connection came up nobody's absence
// counts, and how long an absence must last.
func (l *Line) SetGrace(grace, patience time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.grace, l.patience = grace, patience
}

// There is told that somebody was there for a message after all.
func (l *Line) There(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.absent, id)
}
