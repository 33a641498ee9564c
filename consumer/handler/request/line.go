package request

import (
	"context"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// line sends requests, and hands out the answers, which all come on one subscription. It does what [nats.Conn.RequestMsgWithContext] does,
// with one difference: requests that many attempts make at the same time leave in one piece. By nats.go most of them are a write to
// the connection of their own, and one more packet for the server to read.
type line struct {
	nc *nats.Conn

	mu      sync.Mutex
	sub     *nats.Subscription // nil before the first request, and after close
	inbox   string             // begins the subjects of the answers
	status  chan nats.Status
	all     []*waiter // by their numbers
	free    []*waiter
	out     []*waiter // whose requests are to be sent
	spare   []*waiter // out, while that is being sent
	sending bool
}

// waiter is for one request after the other.
type waiter struct {
	number int
	got    chan answer // has room for one
	// Under the line's lock:
	waits   bool // for an answer
	request *nats.Msg
	secret  uint64 // whoever was asked once must not be able to answer for others
}

type answer struct {
	m   *nats.Msg
	err error
}

// ask sends a request, and returns its answer. [nats.ErrNoResponders] means that nobody was there, and [nats.ErrDisconnected] that the
// connection was lost meanwhile.
func (l *line) ask(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w, err := l.begin(m)
	if err != nil {
		return nil, err
	}
	var a answer
	select {
	case a = <-w.got:
	case <-ctx.Done():
		l.mu.Lock()
		l.end(w, answer{err: ctx.Err()})
		l.mu.Unlock()
		a = <-w.got
	}
	l.mu.Lock()
	l.free = append(l.free, w)
	l.mu.Unlock()
	if a.err == nil && len(a.m.Data) == 0 && a.m.Header.Get("Status") == "503" {
		return nil, nats.ErrNoResponders
	}
	return a.m, a.err
}

// begin has the request sent.
func (l *line) begin(m *nats.Msg) (*waiter, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.subscribe(); err != nil {
		return nil, err
	}
	var w *waiter
	if last := len(l.free) - 1; last >= 0 {
		w, l.free = l.free[last], l.free[:last]
	} else {
		w = &waiter{number: len(l.all), got: make(chan answer, 1)}
		l.all = append(l.all, w)
	}
	w.waits, w.request, w.secret = true, m, rand.Uint64()
	b := append(make([]byte, 0, 64), l.inbox...)
	b = strconv.AppendInt(b, int64(w.number), 10)
	b = append(b, '-')
	m.Reply = string(strconv.AppendUint(b, w.secret, 36))
	l.out = append(l.out, w)
	if !l.sending {
		l.sending = true
		go l.send()
	}
	return w, nil
}

// end gives w its answer, unless it has one; the lock is held.
func (l *line) end(w *waiter, a answer) {
	if w.waits {
		w.waits, w.request = false, nil
		w.got <- a
	}
}

// subscribe makes the subscription for the answers, unless there is one; the lock is held.
func (l *line) subscribe() error {
	if l.nc.IsClosed() {
		return nats.ErrConnectionClosed
	}
	if l.sub != nil {
		return nil
	}
	inbox := l.nc.NewInbox() + "."
	sub, err := l.nc.Subscribe(inbox+"*", l.arrived)
	if err != nil {
		return err
	}
	l.sub, l.inbox = sub, inbox
	l.status = l.nc.StatusChanged(nats.RECONNECTING, nats.CLOSED)
	go func(changes chan nats.Status) {
		for s := range changes {
			if l.lose(nats.ErrDisconnected); s == nats.CLOSED {
				return
			}
		}
	}(l.status)
	return nil
}

// lose ends all requests that are under way.
func (l *line) lose(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.all {
		l.end(w, answer{err: why})
	}
}

// close ends the subscription. The next request makes another one.
func (l *line) close() {
	l.mu.Lock()
	sub, status := l.sub, l.status
	l.sub, l.status = nil, nil
	l.mu.Unlock()
	if sub != nil {
		l.nc.RemoveStatusListener(status)
		_ = sub.Unsubscribe() // the connection is gone
	}
}

// send sends what is to be sent. It lets all goroutines that are ready to run go first, which may have more.
func (l *line) send() {
	runtime.Gosched()
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.out) > 0 {
		batch := l.out
		l.out = l.spare[:0]
		for _, w := range batch {
			m := w.request
			if !w.waits {
				continue // it was given up
			}
			l.mu.Unlock()
			err := l.nc.PublishMsg(m)
			l.mu.Lock()
			if err != nil && w.request == m {
				l.end(w, answer{err: err})
			}
		}
		clear(batch)
		l.spare = batch
	}
	l.sending = false
}

// arrived is called by the connection for each answer. The first one counts.
func (l *line) arrived(m *nats.Msg) {
	l.mu.Lock()
	defer l.mu.Unlock()
	token, _ := strings.CutPrefix(m.Subject, l.inbox)
	number, secret, _ := strings.Cut(token, "-")
	n, err := strconv.ParseUint(number, 10, 31)
	s, err2 := strconv.ParseUint(secret, 36, 64)
	if err != nil || err2 != nil || int(n) >= len(l.all) || l.all[n].secret != s {
		return // too late, or a stranger's guess
	}
	l.end(l.all[n], answer{m: m})
}
