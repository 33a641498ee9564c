package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"hash/fnv"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/transient"
)

// Holder says who has a resource.
type Holder struct {
	Instance string `json:"instance"`
	Session  string `json:"session"`
	Fence    uint64 `json:"fence"` // grows with each holder
	Mine     bool   `json:"-"`
}

// Holder of a resource; ok is false while it is free, or its holder's session is over.
func (f *Fleet) Holder(resource string) (h Holder, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o, claimed := f.view.claims[resource]
	if _, lives := f.view.sessions[o.Session]; !claimed || !lives {
		return Holder{}, false
	}
	return Holder{
		Instance: o.Instance, Session: o.Session, Fence: o.revision,
		Mine: f.session != nil && f.session.id == o.Session && f.session.valid(),
	}, true
}

// Lease is a resource in the hands of this instance.
type Lease struct {
	// Fence is the number that grew with this holder.
	Fence uint64

	s *session
}

// Valid tells whether no other instance can have the resource yet. It costs a look at the clock.
func (l Lease) Valid() bool { return l.s.valid() }

// Lost is closed when the lease is over.
func (l Lease) Lost() <-chan struct{} { return l.s.ctx.Done() }

// Hold runs work whenever this instance has the resource, until ctx is done. One instance of the fleet runs it at a time; when it ends, by
// itself or because the lease is lost, the resource is free for the others, and Hold stands by again. The context of work ends with
// ctx, and with the cause [ErrLost] when the lease is over. What is free is left to others for as long as reluctant says; nil: it is not.
func (f *Fleet) Hold(ctx context.Context, resource string, reluctant func() time.Duration, work func(ctx context.Context, l Lease)) {
	var resting time.Time // somebody else may have it first, after this instance let it go
	var tries transient.Spans
	for ctx.Err() == nil {
		changed := f.Changed()
		s, free := f.mayTake(resource)
		if !free {
			select {
			case <-ctx.Done():
			case <-changed:
			case <-time.After(f.untilOver(resource)):
				f.endOver(ctx, resource)
			}
			continue
		}
		pause := time.Duration(f.rank(resource, s.id)) * standAside
		if reluctant != nil {
			pause += reluctant()
		}
		if rest := time.Until(resting); rest > pause {
			pause = rest
		}
		if pause > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
			if _, free := f.mayTake(resource); !free {
				continue
			}
		}
		if fence, ok := f.take(ctx, s, resource, tries.Next(f.cfg.Lease/8, f.cfg.Lease)); ok {
			tries = transient.Spans{}
			held, end := context.WithCancelCause(ctx)
			stop := context.AfterFunc(s.ctx, func() { end(ErrLost) })
			work(held, Lease{Fence: fence, s: s})
			stop()
			end(nil)
			f.release(s, resource, fence)
			resting = time.Now().Add(f.cfg.Lease)
		}
	}
}

// untilOver is when the session that holds a resource is over, if it is not renewed.
func (f *Fleet) untilOver(resource string) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m, lives := f.view.sessions[f.view.claims[resource].Session]; lives {
		return max(f.cfg.Lease-time.Since(m.seen), f.cfg.Lease/8)
	}
	return f.cfg.Lease
}

// endOver ends the session that holds a resource, when a lease has gone by since this instance heard of its last write. The server does that by itself,
// but looks about once a second only. The write is refused if the session was renewed meanwhile. If not, whoever had the session has known for a while
// that it is over: it began to count when it sent that write, and counts a little less.
func (f *Fleet) endOver(ctx context.Context, resource string) {
	f.mu.Lock()
	m, lives := f.view.sessions[f.view.claims[resource].Session]
	may := lives && f.session != nil && f.session.id != m.Session && f.session.valid() && time.Since(m.seen) >= f.cfg.Lease && f.view.ending[m.Session] < m.revision
	if may {
		f.view.ending[m.Session] = m.revision // once for all that it holds
	}
	f.mu.Unlock()
	if !may {
		return
	}
	call, cancel := context.WithTimeout(ctx, f.cfg.Lease)
	defer cancel()
	if err := f.kv.Purge(call, sessionKey(m.Session), jetstream.LastRevision(m.revision), jetstream.PurgeTTL(remembered)); err == nil {
		f.mu.Lock()
		f.view.end(m.Session) // the watch says so later, or not at all: its consumer may have died with its server
		f.signal()
		f.mu.Unlock()
		f.cfg.Logger.Debug("ended the session of an instance that did not renew it", "instance", m.Instance, "session", m.Session)
	}
}

// rest is a resource that is left to the others until then, or until somebody else has it than had it at the begin.
type rest struct {
	until time.Time
	from  string // session
}

// Rest has this instance not take a resource until then, or until another one has taken it. It keeps what it has; whoever has it lets it go
// after this.
func (f *Fleet) Rest(resource string, until time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rests == nil {
		f.rests = make(map[string]rest)
	}
	f.rests[resource] = rest{until, f.view.claims[resource].Session}
	f.signal()
}

// standAside is what each place in the order of preference waits, so that resources spread over the instances and few writes meet.
const standAside = 50 * time.Millisecond

// mayTake returns the session to take the resource with.
func (f *Fleet) mayTake(resource string) (*session, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.session == nil || !f.session.valid() || !f.view.whole {
		return nil, false
	}
	if time.Now().Before(f.anew) {
		return nil, false
	}
	holder := f.view.claims[resource].Session
	if r, rests := f.rests[resource]; rests {
		_, lives := f.view.sessions[holder]
		if time.Now().Before(r.until) && (!lives || holder == r.from) {
			return nil, false
		}
		delete(f.rests, resource)
	}
	return f.session, holder == "" || holder == f.session.id || slices.Contains(f.former, holder) || f.view.over(holder, f.cfg.Lease, time.Now())
}

// rank is the place of a session among those that live in the order of preference for a resource (rendezvous hashing).
func (f *Fleet) rank(resource, id string) (place int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	own := weight(resource, id)
	for other := range f.view.sessions {
		if other != id && weight(resource, other) > own {
			place++
		}
	}
	return place
}

func weight(resource, id string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(resource))
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(id))
	return h.Sum64()
}

// take makes the resource this instance's, and waits for the answer at most that long: it may be lost with a connection. It writes also when the claim
// names its session already: the answer to an earlier write may have been lost, or a release may be on its way to the watch.
func (f *Fleet) take(ctx context.Context, s *session, resource string, wait time.Duration) (fence uint64, ok bool) {
	f.mu.Lock()
	last := f.view.claims[resource]
	f.mu.Unlock()
	data, _ := json.Marshal(owner{Format: 1, Session: s.id, Instance: f.cfg.Instance})
	call, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	fence, err := f.kv.Update(call, claimKey(resource), data, last.revision)
	if err != nil {
		select { // another instance was faster, or the bucket is away: the watch tells which
		case <-ctx.Done():
		case <-time.After(standAside):
		}
		return 0, false
	}
	return fence, true
}

// release lets the others have the resource at once. When that fails, it is this instance's until its session ends.
func (f *Fleet) release(s *session, resource string, fence uint64) {
	if !s.valid() {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, f.cfg.Lease)
	defer cancel()
	err := context.DeadlineExceeded
	for tries := new(transient.Spans); errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil; { // the answer may be lost with a connection
		call, end := context.WithTimeout(ctx, tries.Next(f.cfg.Lease/8, f.cfg.Lease))
		err = f.kv.Delete(call, claimKey(resource), jetstream.LastRevision(fence))
		end()
	}
	if err != nil && !transient.Raced(err) && s.ctx.Err() == nil { // else it is deleted already, or went with the session
		f.cfg.Logger.Info("cannot give a claim back", "resource", resource, "error", err)
	}
}
