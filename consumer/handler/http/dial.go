package http

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// dialer connects to what the guard permits.
func dialer(timeout time.Duration, g *guard) func(ctx context.Context, network, address string) (net.Conn, error) {
	d := &net.Dialer{
		Timeout: timeout,
		ControlContext: func(ctx context.Context, _, address string, _ syscall.RawConn) error {
			return g.check(ctx, address)
		},
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := d.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &countingConn{Conn: c}, nil
	}
}

// ofThisMachine tells whether a connection was not made for want of something that this machine lacks, whatever the
// endpoint. A name that does not exist is the endpoint's.
func ofThisMachine(err error) bool {
	for _, errno := range []syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL, syscall.EAGAIN,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	// Without descriptors the resolver fails so too, and keeps no more than the text of the reason.
	var dns *net.DNSError
	return errors.As(err, &dns) && dns.IsTemporary && !dns.IsNotFound
}

// countingConn counts the bytes handed to the kernel: the proof that a request was, or was not, begun.
type countingConn struct {
	net.Conn
	written atomic.Int64
}

func (c *countingConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.written.Add(int64(n))
	return n, err
}

// counted finds the countingConn under a connection that carries one request at a time. On HTTP/2 other requests write
// too, and a count would prove nothing: net/http repeats by itself what the server says it did not process.
func counted(c net.Conn) *countingConn {
	if t, ok := c.(*tls.Conn); ok {
		if t.ConnectionState().NegotiatedProtocol == "h2" {
			return nil
		}
		c = t.NetConn()
	}
	cc, _ := c.(*countingConn)
	return cc
}
