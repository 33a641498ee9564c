package admin

import (
	"container/list"
	"net"
	"net/http"
	"sync"
)

// limited accepts no more than a number of connections at once; others wait in the kernel's queue. When all are taken, the one
// that has been idle longest is closed for the next: who keeps connections open and asks nothing must not keep probes out.
type limited struct {
	net.Listener
	slots chan struct{}
	done  chan struct{}
	close func() error

	mu      sync.Mutex
	idle    *list.List // of *slotConn, the longest idle first
	waiting bool       // a connection waits for a slot
}

func limit(l net.Listener, n int) *limited {
	done := make(chan struct{})
	return &limited{Listener: l, slots: make(chan struct{}, n), done: done, idle: list.New(), close: sync.OnceValue(func() error {
		close(done)
		return l.Close()
	})}
}

func (l *limited) Accept() (net.Conn, error) {
	// The connection comes first: only for one that is there another is closed.
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	select {
	case l.slots <- struct{}{}:
	default:
		l.makeRoom()
		select {
		case l.slots <- struct{}{}:
			l.mu.Lock()
			l.waiting = false
			l.mu.Unlock()
		case <-l.done:
			_ = c.Close()
			return nil, net.ErrClosed
		}
	}
	return &slotConn{Conn: c, l: l, free: sync.OnceFunc(func() { <-l.slots })}, nil
}

// Close ends an Accept that waits for a slot, too. Calls after the first do nothing.
func (l *limited) Close() error { return l.close() }

// makeRoom closes the connection that has been idle longest; if none is, the next one that gets idle.
func (l *limited) makeRoom() {
	l.mu.Lock()
	var c *slotConn
	l.waiting = true
	if e := l.idle.Front(); e != nil {
		c = e.Value.(*slotConn)
	}
	l.mu.Unlock()
	if c != nil {
		_ = c.Close()
	}
}

// stateChanged is what the HTTP server says of a connection. One on which nothing was asked yet counts as idle, too.
func stateChanged(conn net.Conn, state http.ConnState) {
	c, ok := conn.(*slotConn)
	if !ok {
		return
	}
	l := c.l
	l.mu.Lock()
	if c.idle != nil {
		l.idle.Remove(c.idle)
		c.idle = nil
	}
	over := state == http.StateIdle && l.waiting
	if state == http.StateNew || state == http.StateIdle && !over {
		c.idle = l.idle.PushBack(c)
	}
	if over {
		l.waiting = false
	}
	l.mu.Unlock()
	if over {
		_ = c.Close()
	}
}

// slotConn gives its slot back when it is closed, once however often that is.
type slotConn struct {
	net.Conn
	l    *limited
	idle *list.Element // under l.mu
	free func()
}

func (c *slotConn) Close() error {
	c.l.mu.Lock()
	if c.idle != nil {
		c.l.idle.Remove(c.idle)
		c.idle = nil
	}
	c.l.mu.Unlock()
	defer c.free()
	return c.Conn.Close()
}
