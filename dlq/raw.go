package dlq

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
)

// nats.go makes a map of the headers of each message, with a slice for each value, in the one goroutine that reads from the
// connection. For a dead letter with its twenty headers that is more than half of the time that a listing of all takes. So
// long listings read over a connection of their own, opened as the other one was, from which nats.go gets every message as one
// without headers: they are at the beginning of its data, as they came, and fields decodes them into memory that it
// uses again. The connection is nats.go's in all else: it authenticates, subscribes and answers pings.

// errNoRaw is why there is no such connection; the listing goes on over the ordinary one.
var errNoRaw = errors.New("no connection without decoded headers")

// inbox is where a consumer's messages arrive.
type inbox struct {
	nc       *nats.Conn
	subject  string
	messages chan *nats.Msg
	sub      *nats.Subscription
	raw      *fields // nil: nats.go decodes them
}

func listen(nc *nats.Conn, page int) (*inbox, error) {
	// What does not fit is lost and noticed. Room for what may come of requests that are thought to have ended.
	in := &inbox{nc: nc, subject: nc.NewInbox(), messages: make(chan *nats.Msg, 2*pullsAhead*page+16)}
	var err error
	in.sub, err = nc.ChanSubscribe(in.subject, in.messages)
	return in, err
}

// listenRaw is listen on a connection of its own beside nc.
func listenRaw(ctx context.Context, nc *nats.Conn, page int) (*inbox, error) {
	raw, err := rawConnect(ctx, nc)
	if err != nil {
		return nil, err
	}
	in, err := listen(raw, page)
	if err != nil {
		raw.Close()
		return nil, err
	}
	in.raw = new(fields)
	return in, nil
}

func (in *inbox) close() {
	if in.raw != nil {
		in.nc.Close()
		return
	}
	_ = in.sub.Unsubscribe()
}

// open returns the headers of a message, which are good until the next call, and its data.
func (in *inbox) open(m *nats.Msg) (headers, []byte, error) {
	if in.raw == nil {
		return m.Header, m.Data, nil
	}
	block, data, err := splitRaw(m.Data)
	in.raw.read(block)
	return in.raw, data, err
}

// rawConnect opens such a connection to the server that nc is connected to. It must be closed. It does not reconnect and calls
// none of the callbacks that nc has.
func rawConnect(ctx context.Context, nc *nats.Conn) (*nats.Conn, error) {
	opts := nc.Opts
	url := nc.ConnectedUrl()
	if _, err := nc.TLSConnectionState(); err == nil || opts.Secure || strings.HasPrefix(url, "ws") {
		return nil, fmt.Errorf("%w: TLS and websockets are between nats.go and what it is given to dial", errNoRaw)
	}
	if url == "" {
		return nil, fmt.Errorf("%w: %w", errNoRaw, nats.ErrDisconnected)
	}
	opts.Url, opts.Servers = url, nil
	opts.AllowReconnect, opts.RetryOnFailedConnect = false, false
	opts.ClosedCB, opts.ConnectedCB, opts.DisconnectedCB, opts.ReconnectedCB = nil, nil, nil, nil
	opts.DisconnectedErrCB, opts.ReconnectErrCB, opts.ReconnectToServerCB = nil, nil, nil
	opts.DiscoveredServersCB, opts.LameDuckModeHandler = nil, nil
	opts.AsyncErrorCB = func(*nats.Conn, *nats.Subscription, error) {} // nil would print
	if opts.InProcessServer != nil {
		opts.InProcessServer = rawInProcess{opts.InProcessServer}
	} else {
		opts.CustomDialer = rawDialer{ctx, opts}
	}
	raw, err := opts.Connect()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoRaw, err)
	}
	return raw, nil
}

type rawInProcess struct{ nats.InProcessConnProvider }

func (p rawInProcess) InProcessConn() (net.Conn, error) {
	return newRawConn(p.InProcessConnProvider.InProcessConn())
}

type rawDialer struct {
	ctx  context.Context
	opts nats.Options // as they were
}

// Dial uses DialContext of a custom dialer that has it, as a net.Dialer does.
func (d rawDialer) Dial(network, address string) (net.Conn, error) {
	var dialer nats.CustomDialer = &net.Dialer{Timeout: d.opts.Timeout}
	switch {
	case d.opts.CustomDialer != nil:
		dialer = d.opts.CustomDialer
	case d.opts.Dialer != nil:
		dialer = d.opts.Dialer
	}
	if with, ok := dialer.(interface {
		DialContext(ctx context.Context, network, address string) (net.Conn, error)
	}); ok {
		return newRawConn(with.DialContext(d.ctx, network, address))
	}
	return newRawConn(dialer.Dial(network, address))
}

// rawConn is a connection to a NATS server that shows its reader each message
//
//	HMSG <subject> <sid> [reply] <length of headers> <length of headers and body>
//
// as a MSG without headers, whose data begins with the length of the headers in rawPrefix bytes. A MSG has such a prefix too,
// of zero.
type rawConn struct {
	net.Conn
	in   *bufio.Reader
	buf  []byte
	head []byte // the part of buf that is read before what comes from in
	data int    // how much of in is data of a message, with its end of line
	err  error  // the last one; there is no going on after any
}

const (
	rawPrefix = 4
	rawBuffer = 64 << 10
	maxRaw    = 1 << 30 // a length above it is a mistake
)

func newRawConn(conn net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	return &rawConn{Conn: conn, in: bufio.NewReaderSize(conn, rawBuffer)}, nil
}

// Read returns as much as it can without waiting: nats.go copies a message that comes in pieces once more.
func (c *rawConn) Read(p []byte) (n int, err error) {
	for n < len(p) {
		k := 0
		switch {
		case len(c.head) > 0:
			k = copy(p[n:], c.head)
			c.head = c.head[k:]
		case c.err != nil && n == 0:
			return 0, c.err
		case c.err != nil || n > 0 && !c.ready():
			return n, nil
		case c.data > 0:
			k, c.err = c.in.Read(p[n:min(len(p), n+c.data)])
			c.data -= k
		default:
			c.err = c.line()
		}
		n += k
	}
	return n, nil
}

// ready tells whether in has something to go on with.
func (c *rawConn) ready() bool {
	rest, _ := c.in.Peek(c.in.Buffered())
	return c.data > 0 && len(rest) > 0 || bytes.IndexByte(rest, '\n') >= 0
}

var errNotNATS = errors.New("this is not what a NATS server says")

// line reads one line of the protocol.
func (c *rawConn) line() error {
	// What a server says that wants TLS may have no end of line to wait for.
	if first, err := c.in.Peek(1); err != nil {
		return err
	} else if bytes.IndexByte([]byte("IMHP+-"), first[0]) < 0 {
		return errNotNATS
	}
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return err
	}
	rest, withHeaders := bytes.CutPrefix(line, []byte("HMSG "))
	if !withHeaders {
		var isMsg bool
		if rest, isMsg = bytes.CutPrefix(line, []byte("MSG ")); !isMsg {
			c.buf = append(c.buf[:0], line...)
			c.head = c.buf
			return nil
		}
	}
	rest, total, err := cutLength(bytes.TrimRight(rest, "\r\n"))
	headers := 0
	if withHeaders && err == nil {
		rest, headers, err = cutLength(rest)
	}
	if err != nil || headers > total {
		return errNotNATS
	}
	c.buf = append(c.buf[:0], "MSG "...)
	c.buf = append(append(c.buf, rest...), ' ')
	c.buf = append(strconv.AppendInt(c.buf, int64(total+rawPrefix), 10), "\r\n"...)
	c.buf = binary.BigEndian.AppendUint32(c.buf, uint32(headers))
	c.head = c.buf
	c.data = total + len("\r\n")
	return nil
}

// cutLength cuts off the number at the end.
func cutLength(line []byte) (rest []byte, n int, err error) {
	i := bytes.LastIndexByte(line, ' ')
	if i < 0 {
		return nil, 0, errNotNATS
	}
	u, err := strconv.ParseUint(string(line[i+1:]), 10, 64)
	if err != nil || u > maxRaw {
		return nil, 0, errNotNATS
	}
	return line[:i], int(u), nil
}

// splitRaw takes the data of a message from a rawConn apart.
func splitRaw(data []byte) (header, body []byte, err error) {
	if len(data) < rawPrefix {
		return nil, nil, errNotNATS
	}
	n, data := binary.BigEndian.Uint32(data), data[rawPrefix:]
	if uint64(n) > uint64(len(data)) {
		return nil, nil, errNotNATS
	}
	return data[:n], data[n:], nil
}
