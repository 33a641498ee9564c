package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/ownstream"
	"github.com/relaymq/relay/internal/teeth"
	"github.com/relaymq/relay/internal/transient"
)

// session is this instance's lease. A lost one is never taken up again: the next has another id.
type session struct {
	id       string
	now      func() time.Duration
	revision uint64
	until    atomic.Int64 // by now
	ctx      context.Context
	end      context.CancelCauseFunc
	// noted is the revision that the session had at a moment, half a lease before the next check of the watch or longer.
	noted   uint64
	notedAt time.Time
}

func (s *session) valid() bool {
	return s.ctx.Err() == nil && s.now() < time.Duration(s.until.Load()) || teeth.Lease()
}

// record is a session as it is stored.
type record struct {
	Format   int             `json:"format"`
	Instance string          `json:"instance"`
	Version  string          `json:"version"`
	Since    time.Time       `json:"since"`
	State    json.RawMessage `json:"state,omitempty"`
	// Wants are parts of limits, Waited for how many microseconds somebody has been waiting for more, and Told is the number of the last word to
	// the inboxes of the others that they follow.
	Wants  map[string]int   `json:"wants,omitempty"`
	Waited map[string]int64 `json:"waited,omitempty"`
	Told   uint64           `json:"told,omitempty"`
	Inbox  string           `json:"inbox,omitempty"`
}

// keep makes a session and renews it until it is lost or ctx is done. It returns false when none could be made.
func (f *Fleet) keep(ctx context.Context) (made bool) {
	life, end := context.WithCancelCause(context.WithoutCancel(ctx)) // outlives ctx for as long as it takes to give it back
	defer end(ErrLost)
	s := &session{id: newID(), now: f.now, ctx: life, end: end}
	if err := f.write(life, s); err != nil {
		f.without(err)
		return false
	}
	f.mu.Lock()
	f.session, f.trouble, f.since = s, nil, time.Now()
	f.signal()
	f.mu.Unlock()
	defer f.without(ErrLost)

	defer f.fence(s).Stop()
	tick := time.NewTicker(f.cfg.Lease / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			f.leave(s)
			return true
		case <-life.Done():
			f.cfg.Logger.Warn("the session of this instance has expired: no write was confirmed in time", "session", s.id, "lease", f.cfg.Lease)
			return true
		case <-tick.C:
		case <-f.renewal:
		}
		if err := f.write(life, s); errors.Is(err, errTaken) && !teeth.Lease() {
			f.cfg.Logger.Warn("the session of this instance was ended from outside", "session", s.id)
			return true
		}
		f.checkWatch(s, time.Now())
	}
}

// checkWatch begins a new watch when the old one has not told of a write of this instance half a lease after it. The consumer of a watch has one
// replica, and ends with its server; nats.go notices that after 10 s.
func (f *Fleet) checkWatch(s *session, now time.Time) {
	if now.Sub(s.notedAt) < f.cfg.Lease/2 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.noted > f.view.sessions[s.id].revision && f.view.whole && now.Sub(f.view.since) > f.cfg.Lease {
		f.watchAnew()
	}
	s.noted, s.notedAt = s.revision, now
}

// watchAnew begins a new watch. f.mu is held.
func (f *Fleet) watchAnew() {
	select {
	case f.rewatch <- struct{}{}:
	default:
	}
}

// fence ends the session when its time is over, whatever a write is waiting for at that moment.
func (f *Fleet) fence(s *session) *time.Timer {
	var timer *time.Timer
	ready := make(chan struct{})
	timer = time.AfterFunc(f.left(s), func() {
		<-ready
		if left := f.left(s); left > 0 { // it was renewed meanwhile
			timer.Reset(left)
			return
		}
		if !teeth.Lease() {
			s.end(ErrLost)
		}
	})
	close(ready)
	return timer
}

// left is how long the session may still be trusted.
func (f *Fleet) left(s *session) time.Duration { return time.Duration(s.until.Load()) - f.now() }

// mostFormer is how many of its own former sessions an instance knows.
const mostFormer = 100

// without notes that there is no session, and why.
func (f *Fleet) without(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.session != nil || f.trouble == nil {
		f.since = time.Now()
	}
	if s := f.session; s != nil {
		s.end(ErrLost)
		f.former = append(f.former, s.id)
		if len(f.former) > mostFormer {
			f.former = slices.Delete(f.former, 0, 1)
		}
	}
	f.session, f.trouble = nil, err
	f.signal()
}

// errTaken says that the key of the session has another revision than the instance's last write.
var errTaken = errors.New("the session was ended from outside")

// write stores the session, at most for as long as the rest of the lease. Only a confirmed write moves the end of the lease: an error of any
// kind leaves it where it is.
func (f *Fleet) write(ctx context.Context, s *session) error {
	var state json.RawMessage
	if f.cfg.State != nil {
		state = f.cfg.State()
	}
	r := record{Format: 1, Instance: f.cfg.Instance, Version: f.cfg.Version, State: state, Inbox: f.inbox}
	f.mu.Lock()
	r.Since = f.since
	f.wishes.recorded(&r, time.Now())
	f.mu.Unlock()
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("the state of this instance: %w", err)
	}
	m := nats.NewMsg(f.prefix + sessionKey(s.id))
	m.Data = data
	m.Header.Set(jetstream.MsgTTLHeader, f.cfg.Lease.String())
	call, cancel := context.WithTimeout(ctx, f.cfg.Lease/2)
	defer cancel()
	sent := f.now()
	ack, err := f.js.PublishMsg(call, m, jetstream.WithExpectLastSequencePerSubject(s.revision), jetstream.WithRetryAttempts(0))
	switch {
	case err == nil:
		s.revision = ack.Sequence
		s.until.Store(int64(sent + f.cfg.Lease - f.guard))
		return nil
	case transient.Raced(err):
		if s.revision == 0 {
			return err
		}
		// The answer to the last write may have been lost. Nobody else writes this key, so a record that is there is this instance's own;
		// it says nothing of when it was written. The leader is asked: the watch may lag behind.
		stored, look := f.stored(call, s.id)
		switch {
		case look != nil:
			return look
		case stored == 0:
			return errTaken
		case stored > s.revision:
			s.revision = stored
			f.Renew()
		}
		return err
	}
	return err
}

// stored is the revision of the record of a session, as the leader of the bucket has it; 0 when it was ended.
func (f *Fleet) stored(ctx context.Context, id string) (revision uint64, err error) {
	m, revision, err := ownstream.LastFromLeader(ctx, f.js, "KV_"+Bucket(f.cfg.Service), "$KV."+Bucket(f.cfg.Service)+"."+sessionKey(id))
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return 0, nil
	case err != nil:
		return 0, err
	case m.Header.Get("KV-Operation") != "" || m.Header.Get(jetstream.MarkerReasonHeader) != "":
		return 0, nil
	}
	return revision, nil
}

// leave ends the session at once, so that its claims are free.
func (f *Fleet) leave(s *session) {
	defer s.end(ErrLost)
	ctx, cancel := context.WithTimeout(s.ctx, f.cfg.Lease)
	defer cancel()
	_ = f.write(ctx, s) // with the state of now, by which the others remember it
	if err := f.kv.Purge(ctx, sessionKey(s.id), jetstream.LastRevision(s.revision), jetstream.PurgeTTL(remembered)); err != nil {
		f.cfg.Logger.Info("cannot give the session back; it expires by itself", "after", f.cfg.Lease, "error", err)
	}
}
