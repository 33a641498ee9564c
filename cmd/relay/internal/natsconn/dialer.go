package natsconn

import (
	"context"
	"net"
	"sync"

	"github.com/nats-io/nats.go"
)

// dialer does two things the library leaves out: the first connect ends with its context, and an nkey file that now
// holds another key is noticed.
type dialer struct {
	nkey func() string // the public key of the file as it is now; nil without one

	mu    sync.Mutex
	start context.Context // nil once connected
	stops []func() bool
	err   error
	nc    *nats.Conn // set once connected
}

func (d *dialer) starting(ctx context.Context) { d.start = ctx }

// started lets go of the context. A connection that it closed in this very moment reconnects like any other.
func (d *dialer) started(nc *nats.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, stop := range d.stops {
		stop()
	}
	d.start, d.stops, d.nc = nil, nil, nc
}

// lastErr is why the last dial failed; nil if it did not.
func (d *dialer) lastErr() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// Dial is called by the library, with its connection's lock held.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	d.mu.Lock()
	ctx, nc := d.start, d.nc
	d.mu.Unlock()
	if ctx == nil {
		ctx = context.Background()
	}
	// The library keeps the public key it was made with and has no hook to change it; with another seed in the file it
	// would be refused for ever. Its lock, held here, guards the field (nats.go v1.55.0, createConn and connectProto).
	if d.nkey != nil && nc != nil {
		if public := d.nkey(); nc.Opts.Nkey != public { // others may read it
			nc.Opts.Nkey = public
		}
	}
	conn, err := d.DialContext(ctx, network, address)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
	if err == nil && d.start != nil {
		d.stops = append(d.stops, context.AfterFunc(d.start, func() { conn.Close() }))
	}
	return conn, err
}

// DialContext is what package dlq uses, for a connection beside this one, whose key is not to be changed by it.
func (d *dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, address)
}
