package natsconn

import (
	"context"
	"net"
	"os"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// dialer does two things the library leaves out: the first connect ends with its context, and an nkey file that now
// holds another key is noticed.
type dialer struct {
	nkeyFile string

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
	if d.nkeyFile != "" && nc != nil {
		public, err := publicKey(d.nkeyFile)
		if err != nil {
			return nil, err
		}
		if nc.Opts.Nkey != public { // others may read it
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

// seed reads the key of a user from a file, each time anew.
func seed(file string) (nkeys.KeyPair, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	defer clear(b)
	return nkeys.ParseDecoratedNKey(b)
}

func publicKey(file string) (string, error) {
	kp, err := seed(file)
	if err != nil {
		return "", err
	}
	defer kp.Wipe()
	return kp.PublicKey()
}

func sign(file string, nonce []byte) ([]byte, error) {
	kp, err := seed(file)
	if err != nil {
		return nil, err
	}
	defer kp.Wipe()
	return kp.Sign(nonce)
}
