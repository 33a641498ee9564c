package caller

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/control"
)

const (
	// tellTimeout is how long the server may take to say that it has passed replies on, and a caller that confirms to do that.
	tellTimeout = 2 * time.Second
	// tellPause is how long to wait for a connection that is away.
	tellPause = 100 * time.Millisecond
	// A reply that reached nobody is sent again after tellFirst, and then after twice as long each time, up to tellMost.
	tellFirst, tellMost = 250 * time.Millisecond, 10 * time.Second
	// maxTellings and maxTellingBytes bound the replies that are not delivered yet. For a new one another is given up that was tried: one
	// that reached nobody, if there is one.
	maxTellings     = 4096
	maxTellingBytes = 16 << 20
	// maxBatchBytes is how many bytes are published before the server is asked whether it passed them on.
	maxBatchBytes = 1 << 20
)

// KeptFor is for how long a reply is sent again and again that reached nobody.
const KeptFor = control.TellsFor

// Told is what became of a reply.
type Told uint8

// What there is to be told; ToldKinds is how many that are.
const (
	Delivered Told = iota // the caller confirmed it, or the server had somebody to pass it on to, or a stream stored it
	NotThere              // nobody was there
	Failed                // it was not confirmed, the connection was away, or the reply cannot be sent at all
	Sent                  // it was published once, and what became of it is not known
	ToldKinds
)

func (t Told) String() string { return [...]string{"delivered", "nobody", "failed", "sent"}[t] }

// Telling is a reply on its way to its caller. It is kept in memory only.
type Telling struct {
	Msg *nats.Msg
	// Confirm says that the caller answers the reply. Without it a reply is delivered when the server had somebody to pass it on to.
	Confirm bool
	// Once has it sent once, whatever comes of that: its caller has said that it does not want it.
	Once bool
	// Released is called once, when the message that the reply is about need not be held any more: the reply is delivered or given up, or
	// was tried and nothing was heard of its caller for [Reconnecting], or Held is done, or Until is over.
	Released func()
	Held     context.Context
	Until    time.Time
	// Over is called once, after Released, with what became of the reply.
	Over func(Told)

	asked    *Asked
	tries    int
	failed   bool      // this try: it cannot be sent at all
	lost     bool      // this try: it was not sent, or may have reached nobody because the connection broke
	first    time.Time // when it was given to Tell
	next     time.Time // when it is sent again
	unheard  time.Time // since when it goes out and nobody takes it; zero: the connection is away
	released bool
	// What was heard of it, under teller.mu: nobody of this try.
	nobody, confirmed bool
}

// teller is what a Line has to tell. One goroutine sends, while there is anything.
type teller struct {
	mu      sync.Mutex
	fresh   []*Telling // not tried yet
	waiting []*Telling // tried, those that were tried last behind
	bytes   int
	running bool
	closed  bool
	done    chan struct{} // closed when the goroutine has ended
	wake    chan struct{} // has room for one
}

// Tell sends a reply until somebody has it, at most for [KeptFor]. It does not block.
//
// That somebody was there is known without the caller's help: for a subject without interest the server answers with a 503 before it
// looks at whatever is sent next on the connection, which is a PING. That is not enough where the caller's link has gone silent and
// its server has yet to notice; hence Confirm.
func (l *Line) Tell(t *Telling) {
	w := &l.teller
	t.first = time.Now()
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		t.end(Failed)
		return
	}
	var evicted []*Telling
	size := len(t.Msg.Data)
	for len(w.waiting) > 0 && (len(w.fresh)+len(w.waiting) >= maxTellings || w.bytes+size > maxTellingBytes) {
		i := max(0, slices.IndexFunc(w.waiting, func(o *Telling) bool { return o.nobody }))
		old := w.waiting[i]
		w.waiting = slices.Delete(w.waiting, i, i+1)
		w.bytes -= len(old.Msg.Data)
		evicted = append(evicted, old)
	}
	full := len(w.fresh) >= maxTellings || w.bytes+size > maxTellingBytes && len(w.fresh) > 0
	if !full {
		w.fresh = append(w.fresh, t)
		w.bytes += size
		l.tellOn()
	}
	w.mu.Unlock()
	for _, old := range evicted {
		l.giveUp(old)
	}
	switch {
	case !full:
	case l.nc.PublishMsg(t.Msg) != nil:
		t.end(Failed)
	default:
		t.end(Sent)
	}
}

// tellOn has the goroutine run, or look at once. The lock is held.
func (l *Line) tellOn() {
	w := &l.teller
	if w.running {
		select {
		case w.wake <- struct{}{}:
		default:
		}
		return
	}
	w.running, w.done, w.wake = true, make(chan struct{}), make(chan struct{}, 1)
	go l.tellAll(w.wake, w.done)
}

// endTelling gives all replies up, and waits for the goroutine.
func (l *Line) endTelling() {
	w := &l.teller
	w.mu.Lock()
	w.closed = true
	running, done := w.running, w.done
	if running {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
	w.mu.Unlock()
	if running {
		<-done
	}
}

func (l *Line) tellAll(wake, done chan struct{}) {
	defer close(done)
	w := &l.teller
	for {
		w.mu.Lock()
		batch, pause := w.due(time.Now())
		if w.closed || pause < 0 {
			rest := append(w.fresh, w.waiting...)
			w.running, w.fresh, w.waiting, w.bytes = false, nil, nil, 0
			w.mu.Unlock()
			for _, t := range append(batch, rest...) {
				l.giveUp(t)
			}
			return
		}
		w.mu.Unlock()
		if len(batch) > 0 {
			l.send(batch)
			continue
		}
		t := time.NewTimer(pause)
		select {
		case <-wake:
		case <-t.C:
		}
		t.Stop()
	}
}

// due takes out what is to be sent now, or says how long there is nothing; below 0: there is nothing at all. The lock is held.
func (w *teller) due(now time.Time) (batch []*Telling, pause time.Duration) {
	pause = -1
	bytes := 0
	for len(w.fresh) > 0 && bytes < maxBatchBytes {
		t := w.fresh[0]
		w.fresh[0], w.fresh = nil, w.fresh[1:]
		batch, bytes = append(batch, t), bytes+len(t.Msg.Data)
	}
	kept := w.waiting[:0]
	for _, t := range w.waiting {
		look := t.next
		if !t.released { // its message is held: whoever does may not wait longer
			look = now.Add(min(look.Sub(now), tellFirst))
		}
		if t.confirmed || !t.next.After(now) || !t.released && t.heldLongEnough(now) {
			if bytes < maxBatchBytes {
				batch, bytes = append(batch, t), bytes+len(t.Msg.Data)
				continue
			}
			look = now
		}
		kept = append(kept, t)
		if d := max(0, look.Sub(now)); pause < 0 || d < pause {
			pause = d
		}
	}
	clear(w.waiting[len(kept):])
	w.waiting = kept
	if len(w.fresh) > 0 {
		pause = 0
	}
	if len(batch) > 0 && pause < 0 {
		pause = 0
	}
	for _, t := range batch {
		w.bytes -= len(t.Msg.Data)
	}
	return batch, pause
}

// send publishes replies and finds out who got his.
func (l *Line) send(batch []*Telling) {
	links := l.nc.Stats().Reconnects
	ctx, cancel := context.WithTimeout(context.Background(), tellTimeout)
	defer cancel()
	published := false
	for _, t := range batch {
		published = l.publish(t) || published
	}
	var err error
	if published {
		if err = l.nc.FlushWithContext(ctx); err == nil {
			l.catchUp(ctx)
		}
	}
	// What was on its way when the connection broke may have reached nobody.
	away := err != nil || l.nc.Stats().Reconnects != links
	now := time.Now()
	var again []*Telling
	for _, t := range batch {
		t.lost = t.lost || away
		if !l.judge(t, now) {
			again = append(again, t)
		}
	}
	w := &l.teller
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range again {
		w.bytes += len(t.Msg.Data)
	}
	w.waiting = append(w.waiting, again...)
}

// publish sends t, and returns whether it did: it may have been confirmed meanwhile.
func (l *Line) publish(t *Telling) bool {
	w := &l.teller
	w.mu.Lock()
	confirmed := t.confirmed
	t.nobody = false
	w.mu.Unlock()
	if confirmed {
		return false
	}
	t.failed, t.lost = false, false
	if t.asked == nil {
		// The same one for every try: a confirmation that comes late counts.
		a := &Asked{lasts: true, then: func(answer Answer) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if answer == Nobody {
				t.nobody = true
			} else if t.confirmed = true; w.running {
				l.tellOn()
			}
		}}
		if l.begin(a) != nil {
			t.failed = true
			return false
		}
		t.asked = a
	}
	out := *t.Msg
	out.Reply = l.inbox + t.asked.token
	t.tries++
	if err := l.nc.PublishMsg(&out); err != nil {
		t.failed, t.lost = !retryable(err), true
	}
	return true
}

// judge ends t if that can be said now, and else says when it is sent again.
func (l *Line) judge(t *Telling, now time.Time) (over bool) {
	w := &l.teller
	w.mu.Lock()
	nobody, confirmed := t.nobody, t.confirmed
	w.mu.Unlock()
	pause := min(tellFirst<<min(max(t.tries, 1)-1, 10), tellMost)
	switch {
	case confirmed, !t.failed && !t.lost && !nobody && (!t.Confirm || t.Once):
		t.end(Delivered)
		return true
	case t.failed:
		t.end(Failed)
		return true
	case t.Once && nobody:
		t.end(NotThere)
		return true
	case t.Once:
		t.end(Failed)
		return true
	case t.lost:
		t.unheard, pause = time.Time{}, tellPause
	case t.unheard.IsZero():
		t.unheard = now
	}
	if now.Sub(t.first) >= KeptFor {
		l.giveUp(t)
		return true
	}
	if t.heldLongEnough(now) || l.isGone(t.unheard, now) {
		t.release()
	}
	switch {
	case !t.lost && !nobody: // it is to be confirmed
		pause = max(pause, tellTimeout)
	case !t.released:
		pause = min(pause, AskAgain)
	}
	t.next = now.Add(pause)
	return false
}

// isGone tells whether it counts that nothing was heard of a caller since then.
func (l *Line) isGone(since, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.look(now)
	return !since.IsZero() && now.Sub(since) >= l.patience && now.Sub(l.since) >= l.grace
}

func (t *Telling) heldLongEnough(now time.Time) bool {
	return t.Held.Err() != nil || !now.Before(t.Until)
}

func (t *Telling) release() {
	if !t.released {
		t.released = true
		t.Released()
		t.Released = nil // with the message
	}
}

// giveUp ends a reply that may not have been delivered. It is called without the lock.
func (l *Line) giveUp(t *Telling) {
	l.teller.mu.Lock()
	nobody := t.nobody
	l.teller.mu.Unlock()
	if nobody {
		t.end(NotThere)
	} else {
		t.end(Failed)
	}
}

func (t *Telling) end(told Told) {
	if t.asked != nil {
		t.asked.Close()
	}
	t.release()
	t.Over(told)
}

func retryable(err error) bool {
	switch err {
	case nats.ErrMaxPayload, nats.ErrBadSubject, nats.ErrConnectionClosed, ErrClosed, nats.ErrHeadersNotSupported:
		return false
	}
	return true
}

// catchUp waits until what has come in by now was given to whoever waits for it.
func (l *Line) catchUp(ctx context.Context) {
	l.mu.Lock()
	sub := l.sub
	l.mu.Unlock()
	if sub == nil {
		return
	}
	waiting, _, err := sub.Pending()
	if err != nil {
		return
	}
	for due := l.taken.Load() + int64(waiting) + 1; ctx.Err() == nil; {
		// One may have been taken from the queue and not be counted yet.
		delivered, err := sub.Delivered()
		if left, _, _ := sub.Pending(); err != nil || left == 0 && l.taken.Load() >= delivered || l.taken.Load() >= due {
			return
		}
		time.Sleep(100 * time.Microsecond)
	}
}
