package http

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	nethttp "net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// direct sends requests over HTTP/1.1 without TLS and without a proxy, one at a time on each connection. The goroutine of the
// attempt writes the request and reads the answer itself. net/http's transport hands both to two goroutines of each connection,
// which takes half of the CPU time of a request. What is read is read by net/http's own [nethttp.ReadResponse].
//
// It is for one host.
type direct struct {
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
	address string // host:port
	most    int    // of idle connections

	mu   sync.Mutex
	idle []*directConn // the one that was used last comes last
	tidy *time.Timer   // runs while there are idle connections
}

// newDirect returns nil when requests to the target have to go through net/http's transport.
func newDirect(cfg Config, to *target, most int, dial func(ctx context.Context, network, address string) (net.Conn, error)) *direct {
	if to.scheme != "http" || to.hostChosen() || cfg.Proxy != "" || cfg.HeaderTimeout > 0 {
		return nil
	}
	host := to.host[0].text
	if strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '%' }) {
		return nil // net/http knows how these are written
	}
	d := &direct{dial: dial, most: most, address: net.JoinHostPort(host, strings.TrimPrefix(to.port, ":"))}
	if to.port == "" || to.port == ":" {
		d.address = net.JoinHostPort(host, "80")
	}
	return d
}

// maxDirect bounds a request that goes this way, head and body. The kernel takes that much at once: an endpoint that answers without
// reading, or reads nothing, does not keep the writer from seeing its answer.
const maxDirect = 16 << 10

// directConn is a connection, with the memory of the request that is on it.
type directConn struct {
	*countingConn
	pool   *direct
	raw    syscall.RawConn
	in     *bufio.Reader
	out    []byte
	first  []byte // what begin has read of the answer
	left   int64  // how many bytes more may be read
	since  time.Time
	reused bool
	cut    func()      // ends what is being read or written, once the context is over
	stop   func() bool // has cut not called any more
	answer directBody

	step   func(fd uintptr) (done bool) // of begin
	memory [4 << 10]byte                // of first
	at     phase
	ended  bool  // the server has closed the connection, or sent something, before the request
	err    error // of step
}

// Read bounds the head of an answer.
func (c *directConn) Read(b []byte) (int, error) {
	if c.left <= 0 {
		return 0, errLongHead
	}
	if int64(len(b)) > c.left {
		b = b[:c.left]
	}
	n, err := copy(b, c.first), error(nil)
	if c.first = c.first[n:]; n == 0 {
		n, err = c.Conn.Read(b)
	}
	c.left -= int64(n)
	return n, err
}

var errLongHead = errors.New("the head of the answer is longer than " + strconv.Itoa(maxReplyHeader) + " bytes")

// begin writes the request, and waits for the beginning of the answer. It returns false when the server has closed the connection, or
// has sent something there, while it was idle: nothing is written then. All is done in one call of the connection's Read, so that
// looking at the connection costs no system call more: each wait for an answer begins with a read that finds nothing.
func (c *directConn) begin() (bool, error) {
	c.at, c.ended, c.err = phaseConnect, false, nil
	err := c.raw.Read(c.step)
	if err == nil {
		err = c.err
	}
	return !c.ended, err
}

// next is a step of begin: the look and the request, and then the answer. It returns false to be called again when there is something
// to read.
func (c *directConn) next(fd uintptr) bool {
	into := c.memory[:]
	if c.at == phaseConnect && c.reused {
		into = into[:1]
	}
	if c.at == phaseWait || c.reused {
		n, err := syscall.Read(int(fd), into)
		for err == syscall.EINTR {
			n, err = syscall.Read(int(fd), into)
		}
		switch {
		case err == syscall.EAGAIN && c.at == phaseWait:
			return false
		case err == syscall.EAGAIN:
		case c.at == phaseConnect:
			c.ended = true
			return true
		case err != nil:
			c.err = &net.OpError{Op: "read", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError("read", err)}
			return true
		case n == 0:
			c.err = io.EOF
			return true
		default:
			c.first = into[:n]
			return true
		}
	}
	c.at = phaseWrite
	if _, c.err = c.Write(c.out); c.err != nil {
		return true
	}
	c.at = phaseWait
	return false
}

// get returns an idle connection, or a new one.
func (d *direct) get(ctx context.Context) (*directConn, error) {
	for c := d.pop(); c != nil; c = d.pop() {
		if time.Since(c.since) < idleTimeout {
			c.reused = true
			return c, nil
		}
		_ = c.Close()
	}
	conn, err := d.dial(ctx, "tcp", d.address)
	if err != nil {
		if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
			<-ctx.Done() // the dialer has seen the same time a moment before
		}
		return nil, err
	}
	c := &directConn{countingConn: conn.(*countingConn), pool: d}
	c.raw, err = c.Conn.(syscall.Conn).SyscallConn()
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	c.in = bufio.NewReader(c)
	c.step, c.cut = c.next, func() { _ = c.SetDeadline(time.Unix(1, 0)) }
	c.answer.conn = c
	return c, nil
}

func (d *direct) pop() *directConn {
	d.mu.Lock()
	defer d.mu.Unlock()
	last := len(d.idle) - 1
	if last < 0 {
		return nil
	}
	c := d.idle[last]
	d.idle[last] = nil
	d.idle = d.idle[:last]
	return c
}

// put takes a connection back on which nothing is under way.
func (d *direct) put(c *directConn) {
	c.since = time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.idle) >= d.most {
		_ = c.Close()
		return
	}
	d.idle = append(d.idle, c)
	if d.tidy == nil {
		d.tidy = time.AfterFunc(idleTimeout, d.expire)
	}
}

// expire closes what was idle for too long.
func (d *direct) expire() {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for n < len(d.idle) && time.Since(d.idle[n].since) >= idleTimeout {
		_ = d.idle[n].Close()
		n++
	}
	d.idle = append(d.idle[:0], d.idle[n:]...)
	clear(d.idle[len(d.idle):cap(d.idle)])
	d.tidy = nil
	if len(d.idle) > 0 {
		d.tidy = time.AfterFunc(idleTimeout-time.Since(d.idle[0].since), d.expire)
	}
}

// closeIdle closes idle connections.
func (d *direct) closeIdle() {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.idle {
		_ = c.Close()
	}
	d.idle = nil
	if d.tidy != nil {
		d.tidy.Stop()
		d.tidy = nil
	}
}

// takes tells whether a request may go this way. Values are what net/http would refuse to send, or write in another way.
func (d *direct) takes(to *url.URL, header nethttp.Header, body []byte) bool {
	if d == nil {
		return false
	}
	size := len(to.Path) + 3*len(to.RawQuery) + len(body)
	for name, values := range header {
		for _, v := range values {
			if !validValue(v) {
				return false
			}
			size += len(name) + len(v) + 4
		}
	}
	return size <= maxDirect
}

// roundTrip sends a request and reads the head of its answer. The body of the answer must be closed; whoever reads it to its end first
// leaves the connection to the next request.
func (d *direct) roundTrip(ctx context.Context, method string, to *url.URL, header nethttp.Header, body []byte, at *course) (*nethttp.Response, error) {
	var c *directConn
	for {
		if ctx.Err() != nil { // cut comes too late for what is written at once
			return nil, context.Cause(ctx)
		}
		var err error
		if c, err = d.get(ctx); err != nil {
			return nil, ended(ctx, err)
		}
		if a, ok := ctx.(afterFuncer); ok {
			c.stop = a.AfterFunc(c.cut)
		} else {
			c.stop = context.AfterFunc(ctx, c.cut)
		}
		before := c.written.Load()
		c.out = appendRequest(c.out[:0], method, to, header, body)
		fresh, err := c.begin()
		if !fresh {
			c.drop()
			continue
		}
		at.phase = max(c.at, phaseWrite)
		if err != nil {
			at.untouched = c.reused && c.written.Load() == before
			c.drop()
			return nil, ended(ctx, err)
		}
		break
	}
	c.left = maxReplyHeader
	var resp *nethttp.Response
	for {
		var err error
		resp, err = nethttp.ReadResponse(c.in, nil)
		if err != nil {
			c.drop()
			return nil, ended(ctx, err)
		}
		if resp.StatusCode/100 != 1 || resp.StatusCode == nethttp.StatusSwitchingProtocols {
			break
		}
	}
	c.left = 1<<63 - 1
	b := &c.answer
	b.rest, b.keep = resp.Body, !resp.Close && resp.StatusCode != nethttp.StatusSwitchingProtocols
	b.ctx, b.ended = ctx, resp.Body == nethttp.NoBody
	if b.ended {
		_ = b.Close()
	} else {
		resp.Body = b
	}
	return resp, nil
}

// ended is the error of what the end of ctx has cut.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// drop closes a connection in the middle of a request.
func (c *directConn) drop() {
	c.stop()
	_ = c.Close()
}

// directBody is the body of an answer.
type directBody struct {
	conn  *directConn
	ctx   context.Context
	rest  io.ReadCloser
	ended bool
	keep  bool // the server keeps the connection
}

func (b *directBody) Read(p []byte) (int, error) {
	n, err := b.rest.Read(p)
	switch {
	case err == io.EOF:
		b.ended = true
	case err != nil:
		err = ended(b.ctx, err)
	}
	return n, err
}

// Close never reads what is left: it may be endless.
func (b *directBody) Close() error {
	c := b.conn
	over := !c.stop()
	b.rest, b.ctx = nil, nil
	if over || !b.ended || !b.keep || c.in.Buffered()+len(c.first) > 0 {
		return c.Close()
	}
	c.pool.put(c)
	return nil
}

// appendRequest writes a request as RFC 9112 has it. All values were checked before.
func appendRequest(b []byte, method string, to *url.URL, header nethttp.Header, body []byte) []byte {
	b = append(b, method...)
	b = append(b, ' ')
	b = append(b, to.RequestURI()...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, to.Host...)
	b = append(b, "\r\nContent-Length: "...)
	b = strconv.AppendInt(b, int64(len(body)), 10)
	for name, values := range header {
		for _, v := range values {
			b = append(b, "\r\n"...)
			b = append(b, name...)
			b = append(b, ": "...)
			b = append(b, v...)
		}
	}
	b = append(b, "\r\n\r\n"...)
	return append(b, body...)
}
