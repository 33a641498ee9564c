package permission

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/transient"
)

// Probe is a message that has no effect but to have the server say whether its subject is permitted.
type Probe struct {
	What string // that it is for
	Msg  *nats.Msg
}

// Prober tries what the server permits, one thing at a time: the connection keeps its latest violation only. Its lock is held meanwhile; others who
// try something hold it, too.
type Prober struct {
	nc *nats.Conn
	sync.Mutex
}

// NewProber returns one for a connection.
func NewProber(nc *nats.Conn) *Prober { return &Prober{nc: nc} }

// tryFor bounds a try of all probes.
const tryFor = 10 * time.Second

// Try finds the subjects that the user of the connection may not publish to. The server reports a violation out of band and leaves the publisher to its
// time-out, so each subject is tried with something that has no effect, and the connection is asked what it was told: of all together, and of each
// by itself if anything was said. Refused has an error for each, which wraps an *[Error]. It blocks for a round trip, or one for each, and 10 s at most.
func (p *Prober) Try(ctx context.Context, probes []Probe) (refused []error, err error) {
	ctx, cancel := context.WithTimeout(ctx, tryFor)
	defer cancel()
	p.Lock()
	defer p.Unlock()
	return transient.Ask(ctx, p.nc, func(ctx context.Context) ([]error, error) { return p.try(ctx, probes) })
}

func (p *Prober) try(ctx context.Context, probes []Probe) (refused []error, err error) {
	old := p.nc.LastError()
	for _, probe := range probes {
		if err := p.nc.PublishMsg(probe.Msg); err != nil {
			return nil, err
		}
	}
	if err := p.nc.FlushWithContext(ctx); err != nil {
		return nil, err
	}
	if last := p.nc.LastError(); last == old || Of(last) == nil {
		return nil, nil
	}
	for _, probe := range probes {
		err := p.permitted(ctx, probe.Msg)
		var v *Error
		switch {
		case errors.As(err, &v):
			refused = append(refused, fmt.Errorf("%s: %w", probe.What, v))
		case err != nil:
			return nil, err
		}
	}
	return refused, nil
}

// Permitted publishes m, and returns an *[Error] if its subject is not permitted. The context must have a deadline.
func (p *Prober) Permitted(ctx context.Context, m *nats.Msg) error {
	p.Lock()
	defer p.Unlock()
	return p.permitted(ctx, m)
}

// permitted is called with the lock held.
func (p *Prober) permitted(ctx context.Context, m *nats.Msg) error {
	if err := p.nc.PublishMsg(m); err != nil {
		return err
	}
	if err := p.nc.FlushWithContext(ctx); err != nil {
		return err
	}
	if v := Of(p.nc.LastError()); v != nil && v.Subject == m.Subject {
		return v
	}
	return nil
}
