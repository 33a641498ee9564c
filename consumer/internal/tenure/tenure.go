package tenure

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/fleet"
)

// Config says what is claimed, and what is done under the claim.
type Config struct {
	Membership *fleet.Membership
	Instance   string        // this one
	Resource   string        // what the fleet calls it
	Lease      time.Duration // how long one lasts
	// DrainTime is how long the end of the work may take.
	DrainTime func() time.Duration
	// Reluctant is for how long this instance leaves the claim to others that have fewer.
	Reluctant func() time.Duration
	// Begin begins the work, and does not wait for it.
	Begin func(fence uint64)
	// Fence ends the work at once, for the lease is lost. What was done may be settled, and nothing else.
	Fence func()
	// End has it drained, by [Tenure.Drain], unless somebody else does, and waits for that. It is called after Fence.
	End func()
}

// Tenure is of one durable. [Tenure.Run] and [Tenure.Drain] are called once; the other methods are for all goroutines.
type Tenure struct {
	cfg     Config
	lease   atomic.Pointer[fleet.Lease] // nil: it stands by
	over    context.Context             // done when the lease is lost
	lose    context.CancelFunc
	settled chan struct{} // closed when what was in hand is settled
}

// New claims nothing yet. The work is to be over at the latest when ctx is done.
func New(ctx context.Context, cfg Config) *Tenure {
	t := &Tenure{cfg: cfg, settled: make(chan struct{})}
	t.over, t.lose = context.WithCancel(ctx)
	return t
}

// Began tells whether this instance has, or had, the claim.
func (t *Tenure) Began() bool { return t.lease.Load() != nil }

// Has tells whether this instance certainly has the claim. It costs a look at the clock.
func (t *Tenure) Has() bool {
	l := t.lease.Load()
	return l != nil && l.Valid()
}

// Fence is the number of this holder; 0: it stands by.
func (t *Tenure) Fence() uint64 {
	if l := t.lease.Load(); l != nil {
		return l.Fence
	}
	return 0
}

// Run stands by until this instance has the claim, has the work done, and returns when that is over or ctx is done and all is settled. It tells whether
// it had the claim. Who ends ctx while the work is done is to drain it.
func (t *Tenure) Run(ctx context.Context) (had bool) {
	f := t.cfg.Membership.Await(ctx)
	if f == nil {
		return false
	}
	standby, once := context.WithCancel(ctx)
	defer once()
	f.Hold(standby, t.cfg.Resource, t.cfg.Reluctant, func(_ context.Context, l fleet.Lease) {
		defer once()
		t.hold(l)
	})
	return t.Began()
}

// hold has the work done, and returns when others may do it.
func (t *Tenure) hold(l fleet.Lease) {
	t.lease.Store(&l)
	t.cfg.Begin(l.Fence)
	select {
	case <-l.Lost():
	case <-t.settled:
		return
	}
	t.cfg.Fence()
	t.lose()
	t.cfg.End()
}

// Drain ends the work by drain, whose context is done at once when the lease is lost, and has confirm wait for what was settled: the next holder is not
// to start what is done here.
func (t *Tenure) Drain(ctx context.Context, drain, confirm func(context.Context)) {
	ctx, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(t.over, cancel)()
	defer cancel()
	drain(ctx)
	confirm(t.over)
	close(t.settled)
}

// Close is called when nothing works any more.
func (t *Tenure) Close() { t.lose() }

// Holder says which instance has the claim, if one has.
func (t *Tenure) Holder() (h control.HolderStatus) {
	if f := t.cfg.Membership.Now(); f != nil {
		if claim, ok := f.Holder(t.cfg.Resource); ok {
			h.Instance, h.Fence, h.Here = claim.Instance, claim.Fence, claim.Mine
		}
	}
	return h
}

// Standing says that nothing starts here because another instance has the claim, or because nobody can have it.
func (t *Tenure) Standing() (state, why string, since time.Time, yes bool) {
	if t.Has() {
		return "", "", time.Time{}, false
	}
	if since, err := Trouble(t.cfg.Membership); err != nil {
		return control.StateStopped, err.Error(), since, true
	}
	if h := t.Holder(); h.Instance != "" {
		return control.StateStandby, fmt.Sprintf("instance %s has the route; this instance takes over when that one ends or stops answering", h.Instance), time.Time{}, true
	}
	return control.StateStandby, "no instance has the route yet", time.Time{}, true
}

// Trouble is why this instance can have no claim, and since when; nil when it can, or when nothing needs that.
func Trouble(m *fleet.Membership) (since time.Time, err error) {
	if since, err = m.Trouble(); err != nil {
		err = fmt.Errorf("this instance could not renew its lease, so it must not handle this route: %w; retrying", err)
	}
	return since, err
}
