// Package requests sends requests over NATS, as [nats.Conn.RequestMsgWithContext] does, with one difference: requests that many
// goroutines make at the same time leave in one piece. By nats.go most of them are a write to the connection of their own, and one
// more packet for the server to read: whoever publishes wakes the flusher, which runs as soon as that goroutine waits for its answer.
package requests

import (
	"context"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// Requester sends requests, and hands out the answers, which all come on one subscription. It is for any number of goroutines.
type Requester struct {
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

// Request sends a request, and returns its answer. [nats.ErrNoResponders] means that nobody was there, and [nats.ErrDisconnected] that the
// connection was lost meanwhile.
func (r *Requester) Request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w, err := r.begin(m)
	if err != nil {
		return nil, err
	}
	var a answer
	select {
	case a = <-w.got:
	case <-ctx.Done():
		r.mu.Lock()
		r.end(w, answer{err: ctx.Err()})
		r.mu.Unlock()
		a = <-w.got
	}
	r.mu.Lock()
	r.free = append(r.free, w)
	r.mu.Unlock()
	if a.err == nil && len(a.m.Data) == 0 && a.m.Header.Get("Status") == "503" {
		return nil, nats.ErrNoResponders
	}
	return a.m, a.err
}

// begin has the request sent.
func (r *Requester) begin(m *nats.Msg) (*waiter, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.subscribe(); err != nil {
		return nil, err
	}
	var w *waiter
	if last := len(r.free) - 1; last >= 0 {
		w, r.free = r.free[last], r.free[:last]
	} else {
		w = &waiter{number: len(r.all), got: make(chan answer, 1)}
		r.all = append(r.all, w)
	}
	w.waits, w.request, w.secret = true, m, rand.Uint64()
	b := append(make([]byte, 0, 64), r.inbox...)
	b = strconv.AppendInt(b, int64(w.number), 10)
	b = append(b, '-')
	m.Reply = string(strconv.AppendUint(b, w.secret, 36))
	r.out = append(r.out, w)
	if !r.sending {
		r.sending = true
		go r.send()
	}
	return w, nil
}

// end gives w its answer, unless it has one; the lock is held.
func (r *Requester) end(w *waiter, a answer) {
	if w.waits {
		w.waits, w.request = false, nil
		w.got <- a
	}
}

// subscribe makes the subscription for the answers, unless there is one; the lock is held.
func (r *Requester) subscribe() error {
	if r.nc.IsClosed() {
		return nats.ErrConnectionClosed
	}
	if r.sub != nil {
		return nil
	}
	inbox := r.nc.NewInbox() + "."
	sub, err := r.nc.Subscribe(inbox+"*", r.arrived)
	if err != nil {
		return err
	}
	r.sub, r.inbox = sub, inbox
	r.status = r.nc.StatusChanged(nats.RECONNECTING, nats.CLOSED)
	go func(changes chan nats.Status) {
		for s := range changes {
			if r.lose(nats.ErrDisconnected); s == nats.CLOSED {
				return
			}
		}
	}(r.status)
	return nil
}

// lose ends all requests that are under way.
func (r *Requester) lose(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.all {
		r.end(w, answer{err: why})
	}
}

// New returns a Requester of a connection. Nothing is subscribed before the first request.
func New(nc *nats.Conn) *Requester { return &Requester{nc: nc} }

// Close ends the subscription. The next request makes another one.
func (r *Requester) Close() {
	r.mu.Lock()
	sub, status := r.sub, r.status
	r.sub, r.status = nil, nil
	r.mu.Unlock()
	if sub != nil {
		r.nc.RemoveStatusListener(status)
		_ = sub.Unsubscribe() // the connection is gone
	}
}

// send sends what is to be sent. It lets all goroutines that are ready to run go first, which may have more.
func (r *Requester) send() {
	runtime.Gosched()
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.out) > 0 {
		batch := r.out
		r.out = r.spare[:0]
		for _, w := range batch {
			m := w.request
			if !w.waits {
				continue // it was given up
			}
			r.mu.Unlock()
			err := r.nc.PublishMsg(m)
			r.mu.Lock()
			if err != nil && w.request == m {
				r.end(w, answer{err: err})
			}
		}
		clear(batch)
		r.spare = batch
	}
	r.sending = false
}

// arrived is called by the connection for each answer. The first one counts.
func (r *Requester) arrived(m *nats.Msg) {
	r.mu.Lock()
	defer r.mu.Unlock()
	token, _ := strings.CutPrefix(m.Subject, r.inbox)
	number, secret, _ := strings.Cut(token, "-")
	n, err := strconv.ParseUint(number, 10, 31)
	s, err2 := strconv.ParseUint(secret, 36, 64)
	if err != nil || err2 != nil || int(n) >= len(r.all) || r.all[n].secret != s {
		return // too late, or a stranger's guess
	}
	r.end(r.all[n], answer{m: m})
}
