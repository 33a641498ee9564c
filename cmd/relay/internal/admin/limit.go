package admin

import (
	"net"
	"sync"
)

// limited accepts no more than a number of connections at once; others wait in the kernel's queue.
type limited struct {
	net.Listener
	slots chan struct{}
	done  chan struct{}
	close func() error
}

func limit(l net.Listener, n int) *limited {
	done := make(chan struct{})
	return &limited{Listener: l, slots: make(chan struct{}, n), done: done, close: sync.OnceValue(func() error {
		close(done)
		return l.Close()
	})}
}

func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.done:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &slotConn{Conn: c, free: sync.OnceFunc(func() { <-l.slots })}, nil
}

// Close ends an Accept that waits for a slot, too. Calls after the first do nothing.
func (l *limited) Close() error { return l.close() }

// slotConn gives its slot back when it is closed, once however often that is.
type slotConn struct {
	net.Conn
	free func()
}

func (c *slotConn) Close() error {
	defer c.free()
	return c.Conn.Close()
}
