package fleet

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/internal/transient"
)

// Membership is an instance's part in the fleet, which it has only once something needs it: a session costs two writes a second. It is joined
// beside what needs it, so that without the bucket only that waits.
type Membership struct {
	join   func(context.Context) (*Fleet, error)
	wanted chan struct{} // closed once something needs a session
	want   sync.Once
	joined chan struct{} // closed when fleet is there
	fleet  atomic.Pointer[Fleet]

	mu      sync.Mutex
	trouble error // why it could not be joined
	since   time.Time
}

// The longest pauses before the fleet is joined again: when the bucket is away, and when only people can mend it.
const (
	joinAwayAgain  = 5 * time.Second
	joinFaultAgain = time.Minute
)

// NewMembership returns one that joins with that function, as [Join] does.
func NewMembership(join func(context.Context) (*Fleet, error)) *Membership {
	return &Membership{join: join, wanted: make(chan struct{}), joined: make(chan struct{})}
}

// Need has the instance join the fleet if it has not.
func (m *Membership) Need() { m.want.Do(func() { close(m.wanted) }) }

// Needed tells whether anything needed it yet.
func (m *Membership) Needed() bool {
	select {
	case <-m.wanted:
		return true
	default:
		return false
	}
}

// Now is the fleet, or nil: nothing needs it, or it could not be joined yet.
func (m *Membership) Now() *Fleet { return m.fleet.Load() }

// Joined is closed when the fleet is there.
func (m *Membership) Joined() <-chan struct{} { return m.joined }

// Await returns the fleet when it is joined, or nil when ctx is done first.
func (m *Membership) Await(ctx context.Context) *Fleet {
	select {
	case <-m.joined:
		return m.Now()
	case <-ctx.Done():
		return nil
	}
}

// Changed is closed when a session or a claim changes; nil: there is no fleet yet.
func (m *Membership) Changed() <-chan struct{} {
	if f := m.Now(); f != nil {
		return f.Changed()
	}
	return nil
}

// Renew tells the others of a changed state at once, if there are any.
func (m *Membership) Renew() {
	if f := m.Now(); f != nil {
		f.Renew()
	}
}

// Trouble says why this instance can hold nothing, and since when; nil when it can, or when nothing needs that.
func (m *Membership) Trouble() (since time.Time, err error) {
	if f := m.Now(); f != nil {
		return f.Trouble()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.since, m.trouble
}

// Run keeps a session until ctx is done, once something needs it.
func (m *Membership) Run(ctx context.Context) {
	select {
	case <-m.wanted:
	case <-ctx.Done():
		return
	}
	for p := new(transient.Patience); ; {
		f, err := m.join(ctx)
		if err == nil {
			m.fleet.Store(f)
			m.note(nil)
			close(m.joined)
			f.Run(ctx)
			return
		}
		if ctx.Err() != nil {
			return
		}
		m.note(err)
		most := joinFaultAgain
		if transient.Is(err) {
			most = joinAwayAgain
		}
		transient.Pause(ctx, p.Next(most))
	}
}

func (m *Membership) note(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.trouble == nil {
		m.since = time.Now()
	}
	m.trouble = err
}
