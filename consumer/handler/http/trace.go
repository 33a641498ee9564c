package http

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http/httptrace"
	"sync/atomic"
)

// phase is how far a request came; errors name it. On HTTP/2 an answer may overtake the end of the request, and the phase is
// then that of the writing.
type phase int32

const (
	phaseConnect phase = iota // or the name is being looked up
	phaseTLS
	phaseWrite
	phaseWait
)

func (p phase) String() string {
	return [...]string{"connect", "TLS handshake", "write request", "wait for response headers"}[p]
}

// course is how far a request came.
type course struct {
	phase phase
	// untouched tells that the request was given a connection out of the pool, and not one byte of it was written there.
	untouched bool
}

// where names how far the request came that ended with err.
func (c course) where(err error) string {
	var dns *net.DNSError
	if c.phase == phaseConnect && errors.As(err, &dns) {
		return "resolve"
	}
	return c.phase.String()
}

// trace follows one request through net/http's transport, which calls the hooks from several goroutines, and a dial that lost the race against an
// idle connection calls them late, so that a phase is only ever left forwards.
type trace struct {
	ctx   traced
	hooks httptrace.ClientTrace
	phase atomic.Int32
	// used is the connection that the request was given last, first the memory of the first one.
	used  atomic.Pointer[usedConn]
	first usedConn
	given atomic.Int32 // connections
	body  bytes.Reader
}

// traced is the context of a request: one that only had the hooks would hide the AfterFunc of the one it is made from, and
// net/http would start a goroutine for each request that waits for the end of it.
type traced struct {
	context.Context
	parent afterFuncer
}

// afterFuncer is a context as context.AfterFunc describes it.
type afterFuncer interface {
	AfterFunc(f func()) (stop func() bool)
}

func (c *traced) AfterFunc(f func()) (stop func() bool) { return c.parent.AfterFunc(f) }

type usedConn struct {
	reused bool
	conn   *countingConn // nil when its bytes prove nothing
	before int64
}

func (u *usedConn) untouched() bool {
	return u != nil && u.reused && u.conn != nil && u.conn.written.Load() == u.before
}

func (t *trace) reached(p phase) {
	for {
		old := t.phase.Load()
		if old >= int32(p) || t.phase.CompareAndSwap(old, int32(p)) {
			return
		}
	}
}

// course is of a round trip that failed: net/http has joined the connection's writer by then.
func (t *trace) course() course {
	return course{phase: phase(t.phase.Load()), untouched: t.used.Load().untouched()}
}

// attach leaves the hooks of the resolver and the dialer alone: with them every request costs twice as many allocations.
func (t *trace) attach(ctx context.Context) context.Context {
	t.hooks = httptrace.ClientTrace{
		GetConn: func(string) { // again, when net/http repeats on another connection
			t.phase.Store(int32(phaseConnect))
			t.used.Store(nil)
		},
		TLSHandshakeStart: func() { t.reached(phaseTLS) },
		GotConn: func(info httptrace.GotConnInfo) {
			u := &t.first
			if t.given.Add(1) > 1 {
				u = new(usedConn)
			}
			*u = usedConn{reused: info.Reused, conn: counted(info.Conn)}
			if u.conn != nil {
				u.before = u.conn.written.Load()
			}
			t.used.Store(u)
			t.reached(phaseWrite)
		},
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil {
				t.reached(phaseWait)
			}
		},
	}
	withHooks := httptrace.WithClientTrace(ctx, &t.hooks)
	parent, ok := ctx.(afterFuncer)
	if !ok {
		return withHooks
	}
	t.ctx = traced{withHooks, parent}
	return &t.ctx
}
