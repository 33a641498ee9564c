package chaos

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Proxy passes TCP connections from a port of loopback to a target, until it is told not to. Unlike natstest.Proxy it
// knows directions, and can lose or damage what passes.
type Proxy struct {
	l      net.Listener
	target string
	wg     sync.WaitGroup

	up, down gate

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
}

// Ways are directions of a connection.
type Ways uint8

// The directions.
const (
	Up   Ways = 1 << iota // towards the target, or NATS
	Down                  // back
)

func (w Ways) has(way Ways) bool { return w&way != 0 }

// gate is one direction.
type gate struct {
	mu      sync.Mutex
	open    *sync.Cond
	stalled bool
	closed  bool
	// flip damages the next n bytes.
	flip atomic.Int64
	// delay is added to each piece.
	delay atomic.Int64
}

// NewProxy listens until the test ends.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{l: l, target: target, conns: make(map[net.Conn]struct{})}
	for _, g := range []*gate{&p.up, &p.down} {
		g.open = sync.NewCond(&g.mu)
	}
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// URL for NATS clients.
func (p *Proxy) URL() string { return "nats://" + p.l.Addr().String() }

// Stall holds back what goes these ways, and lets the rest pass. The connections stay open, and nothing is read: the
// peers' buffers fill, as with a host that is gone.
func (p *Proxy) Stall(ways Ways) {
	for way, g := range map[Ways]*gate{Up: &p.up, Down: &p.down} {
		g.mu.Lock()
		g.stalled = ways.has(way)
		g.open.Broadcast()
		g.mu.Unlock()
	}
}

// Resume lets everything pass.
func (p *Proxy) Resume() { p.Stall(0) }

// Cut resets all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	clear(p.conns)
}

// Inject sends text to the target on every connection, as if the client had.
func (p *Proxy) Inject(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if c.RemoteAddr().String() == p.target {
			_, _ = c.Write([]byte(text))
		}
	}
}

// Delay holds each piece back for d, both ways.
func (p *Proxy) Delay(d time.Duration) {
	p.up.delay.Store(int64(d))
	p.down.delay.Store(int64(d))
}

// Flip damages the next n bytes that go down, towards relay.
func (p *Proxy) Flip(n int64) { p.down.flip.Store(n) }

func (g *gate) pass(b []byte) {
	if d := g.delay.Load(); d > 0 {
		time.Sleep(time.Duration(d))
	}
	g.mu.Lock()
	for g.stalled && !g.closed {
		g.open.Wait()
	}
	g.mu.Unlock()
	for i := range b {
		if g.flip.Load() <= 0 || g.flip.Add(-1) < 0 {
			return
		}
		b[i] ^= 0x15
	}
}

func (p *Proxy) close() {
	p.l.Close()
	for _, g := range []*gate{&p.up, &p.down} {
		g.mu.Lock()
		g.closed = true
		g.open.Broadcast()
		g.mu.Unlock()
	}
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Cut()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		if p.keep(c) {
			p.wg.Go(func() { p.serve(c) })
		}
	}
}

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
	c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

func (p *Proxy) serve(client net.Conn) {
	defer p.drop(client)
	remote, err := net.Dial("tcp", p.target)
	if err != nil || !p.keep(remote) {
		return
	}
	defer p.drop(remote)
	var both sync.WaitGroup
	both.Go(func() { pipe(remote, client, &p.up) })
	both.Go(func() { pipe(client, remote, &p.down) })
	both.Wait()
}

func pipe(dst, src net.Conn, g *gate) {
	defer dst.Close()
	defer src.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			g.pass(buf[:n])
			if _, err := dst.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
