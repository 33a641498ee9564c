package caller

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// tellTimeout is how long the server may take to say that it has passed a reply on. It answers at once; the connection may be
	// down.
	tellTimeout = 2 * time.Second
	// tellPause is how long to wait for a connection that is away.
	tellPause = 100 * time.Millisecond
)

// Told is what became of a reply.
type Told uint8

const (
	Delivered Told = iota // the server had somebody to pass it on to, or a stream stored it
	NotThere              // nobody was there, and that counts; see [Line.Gone]
	GaveUp                // ctx ended, or the reply cannot be sent at all
)

func (t Told) String() string { return [...]string{"delivered", "nobody", "failed"}[t] }

// Tell publishes a reply, and returns once the server has passed it on, or it is certain enough that nobody takes it. While the
// connection is away it goes on trying until ctx is done.
//
// That somebody was there is known without the caller's help: for a subject without interest the server answers with a 503 before it
// looks at whatever is sent next on the connection, which is a PING.
func (l *Line) Tell(ctx context.Context, m *nats.Msg, id string) Told {
	for {
		switch answer, err := l.tell(ctx, m); {
		case err == nil && answer != Nobody:
			l.There(id)
			return Delivered
		case err == nil:
			if l.Gone(id, time.Now()) {
				return NotThere
			}
			pause(ctx, AskAgain)
		case ctx.Err() == nil && retryable(err):
			pause(ctx, tellPause)
		default:
			return GaveUp
		}
		if ctx.Err() != nil {
			return GaveUp
		}
	}
}

// Send publishes a reply and does not find out what became of it.
func (l *Line) Send(m *nats.Msg) error { return l.nc.PublishMsg(m) }

// errNoAnswer says that nothing came back: the connection is away.
type errNoAnswer struct{}

func (errNoAnswer) Error() string { return "no answer" }

func retryable(err error) bool {
	switch err {
	case nats.ErrMaxPayload, nats.ErrBadSubject, nats.ErrConnectionClosed, ErrClosed, nats.ErrHeadersNotSupported:
		return false
	}
	return true
}

func (l *Line) tell(ctx context.Context, m *nats.Msg) (Answer, error) {
	a, err := l.begin(nil)
	if err != nil {
		return 0, err
	}
	defer a.Close()
	out := *m
	out.Reply = l.inbox + a.token
	if err := l.nc.PublishMsg(&out); err != nil {
		return 0, err
	}
	flush, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	if err := l.nc.FlushWithContext(flush); err != nil || l.nc.Stats().Reconnects != a.links {
		// What was on its way when the connection broke may have reached nobody.
		return 0, errNoAnswer{}
	}
	l.catchUp(flush)
	select {
	case answer := <-a.got:
		return answer, nil
	default:
		return Yes, nil
	}
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

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
