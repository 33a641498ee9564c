package http

import (
	"context"
	"net/http/httptrace"
	"sync/atomic"
)

// phase is how far a request came; errors name it. On HTTP/2 an answer may overtake the end of the request, and the phase is
// then that of the writing.
type phase int32

const (
	phaseConnection phase = iota // nothing has been looked up yet
	phaseResolve
	phaseConnect
	phaseTLS
	phaseWrite
	phaseWait
)

func (p phase) String() string {
	return [...]string{"connect", "resolve", "connect", "TLS handshake", "write request", "wait for response headers"}[p]
}

// trace follows one request. net/http calls the hooks from several goroutines, and a dial that lost the race against an
// idle connection calls them late, so that a phase is only ever left forwards.
type trace struct {
	phase atomic.Int32
	// used is the connection that the request was given last.
	used atomic.Pointer[usedConn]
}

type usedConn struct {
	reused bool
	conn   *countingConn // nil when its bytes prove nothing
	before int64
}

// untouched tells whether the request was given a connection out of the pool and not one byte of it was written there.
// Call it after the round trip failed: net/http has joined the connection's writer by then.
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

func (t *trace) attach(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { // again, when net/http repeats on another connection
			t.phase.Store(int32(phaseConnection))
			t.used.Store(nil)
		},
		DNSStart:          func(httptrace.DNSStartInfo) { t.reached(phaseResolve) },
		ConnectStart:      func(string, string) { t.reached(phaseConnect) },
		TLSHandshakeStart: func() { t.reached(phaseTLS) },
		GotConn: func(info httptrace.GotConnInfo) {
			u := &usedConn{reused: info.Reused, conn: counted(info.Conn)}
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
	})
}
