package natstest

import (
	"bytes"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// Proxy passes TCP connections from a port of 127.0.0.1 to a target, until it is told not to.
type Proxy struct {
	target string
	l      net.Listener
	wg     sync.WaitGroup

	// gate is read-locked for each write, and locked while the proxy stalls: when Stall has returned, no byte passes.
	// Order: stall before gate. Neither is ever taken with mu, so that Cut can end a write that Stall waits for.
	gate    sync.RWMutex
	stall   sync.Mutex
	stalled bool // under stall

	delay atomic.Int64 // of each direction, in nanoseconds
	rate  atomic.Int64 // bytes a second from the target to each client; 0: as fast as it can

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{} // both sides
}

// NewProxy passes connections to target, a host:port or a URL, until the test ends.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	if strings.Contains(target, "://") {
		u, err := url.Parse(target)
		if err != nil {
			t.Fatalf("natstest: proxy: %v", err)
		}
		target = u.Host
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("natstest: proxy: %v", err)
	}
	p := &Proxy{target: target, l: l, conns: make(map[net.Conn]struct{})}
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Addr is where the proxy listens, host:port.
func (p *Proxy) Addr() string { return p.l.Addr().String() }

// URL is Addr as a NATS URL.
func (p *Proxy) URL() string { return "nats://" + p.Addr() }

// Conn is a connection through the proxy that reconnects for ever, until the test ends.
func (p *Proxy) Conn(t testing.TB, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(p.URL(), append([]nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(10 * time.Millisecond)}, opts...)...)
	if err != nil {
		t.Fatalf("natstest: connect through the proxy: %v", err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// Stall holds every byte back, in both directions, and keeps the connections open: a link that went silent. New
// connections are accepted and hear nothing. It waits for a write in progress.
func (p *Proxy) Stall() {
	p.stall.Lock()
	defer p.stall.Unlock()
	if !p.stalled {
		p.stalled = true
		p.gate.Lock()
	}
}

// Resume lets pass what Stall held back, in order.
func (p *Proxy) Resume() {
	p.stall.Lock()
	defer p.stall.Unlock()
	if p.stalled {
		p.stalled = false
		p.gate.Unlock()
	}
}

// Delay makes each direction that much slower, from the next byte on: the round trip grows by twice of it.
func (p *Proxy) Delay(d time.Duration) { p.delay.Store(int64(d)) }

// Throttle lets no more than so many bytes a second pass from the target to each client: a slow link. Zero ends that.
func (p *Proxy) Throttle(bytesPerSecond int) { p.rate.Store(int64(bytesPerSecond)) }

// slow waits as long as a slow link takes for n bytes.
func (p *Proxy) slow(n int) {
	if rate := p.rate.Load(); rate > 0 {
		time.Sleep(time.Duration(n) * time.Second / time.Duration(rate))
	}
}

// Cut resets every connection there is. New ones are served as before.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut()
}

func (p *Proxy) cut() {
	for c := range p.conns {
		c.(*net.TCPConn).SetLinger(0) // a reset, not a polite end
		c.Close()
	}
	clear(p.conns)
}

func (p *Proxy) close() {
	p.l.Close()
	p.mu.Lock()
	p.closed = true
	p.cut()
	p.mu.Unlock()
	p.Resume()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.l.Accept()
		if err != nil {
			return // closed
		}
		if p.keep(client) {
			p.wg.Go(func() { p.serve(client) })
		}
	}
}

// keep remembers a connection for Cut, or refuses it when the proxy is over.
func (p *Proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		c.Close()
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) drop(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	c.Close()
}

func (p *Proxy) serve(client net.Conn) {
	defer p.drop(client)
	remote, err := net.Dial("tcp", p.target)
	if err != nil || !p.keep(remote) {
		return
	}
	defer p.drop(remote)
	var both sync.WaitGroup
	both.Go(func() { p.pipe(client, remote, p.slow) })
	both.Go(func() { p.pipe(remote, client, func(int) {}) })
	both.Wait()
}

// pipe ends both sides when one ends: NATS does not use half-closed connections.
func (p *Proxy) pipe(dst, src net.Conn, passing func(n int)) {
	defer src.Close()
	type chunk struct {
		due  time.Time
		data []byte
	}
	chunks := make(chan chunk, 1024)
	defer close(chunks)
	p.wg.Go(func() {
		defer dst.Close()
		failed := false
		for c := range chunks {
			time.Sleep(time.Until(c.due))
			p.gate.RLock()
			if _, err := dst.Write(c.data); err != nil && !failed {
				failed = true
				src.Close() // no more is read
			}
			p.gate.RUnlock()
		}
	})
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			passing(n)
			chunks <- chunk{time.Now().Add(time.Duration(p.delay.Load())), bytes.Clone(buf[:n])}
		}
		if err != nil {
			return
		}
	}
}
