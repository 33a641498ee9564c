package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/backlog"
	"github.com/relaymq/relay/consumer/internal/health"
	"github.com/relaymq/relay/consumer/internal/pulls"
	"github.com/relaymq/relay/internal/looks"
)

// The watchdog finds durables that should deliver and do not: after leader changes and reconnects, pulls have been lost
// on both sides (nats.go#2063, #1622), and a durable that was deleted while no pull was parked says nothing at all.

const (
	quietFor   = 3 * pulls.Heartbeat // without a delivery before the server is asked
	checkEvery = 5 * time.Second     // at most
	checkAgain = 2 * time.Second     // at most, when there is doubt
)

// watchdog is what a source knows of its checks.
type watchdog struct {
	doubt   atomic.Bool   // the durable may not be what it was: ask the server soon
	pending atomic.Uint64 // messages that the durable has not delivered, as it was last heard

	// Of the pull loop only:
	checkedAt time.Time // when the server was last asked
	afresh    bool      // what is known from before does not count then

	rest rest // of the checks only, of which one at a time runs
}

// finding is what the server says of a durable.
type finding struct {
	identity ack.Identity
	edits    health.Edits
	pending  uint64 // messages it has not delivered yet
	paused   bool
	allHere  int  // after so many gaps every delivery that waits for its settlement was in the hand of this instance; 0: it is not known
	full     bool // as many deliveries as it allows wait for their settlement
	err      error
	next     *source // for a durable that was lost and is there again
}

// suspicious tells whether to ask the server about the durable.
func (s *source) suspicious(now time.Time) bool {
	if s.pulls.IsLost(now) {
		s.log.Debug("heartbeats missed; pulling again")
		s.gaps.MayHaveLost(now)
		s.watchdog.doubt.Store(true)
	}
	since := now.Sub(s.watchdog.checkedAt)
	if s.leased() && s.gaps.Missing() {
		s.watchdog.checkedAt, s.watchdog.afresh = now, true // settlements of the holder before may have been on their way
		return true
	}
	quiet := s.checkQuiet()
	if since < checkAgain || !s.watchdog.doubt.Load() && since < max(lookEvery, quiet) && (now.Sub(s.pulls.Got()) < quietFor || since < quiet) {
		return false
	}
	s.watchdog.afresh = s.watchdog.doubt.Swap(false)
	s.watchdog.checkedAt = now
	return true
}

// checkQuiet is how often a durable is asked on which nothing comes: more seldom with many instances, each of which asks.
func (s *source) checkQuiet() time.Duration {
	n := 0
	if l := s.relay.stores.Lives.Load(); l != nil {
		n = l.Others()
	}
	return min(restFor, max(1, time.Duration(n+1)/2)*checkEvery)
}

// restFor is how long a durable on which nothing happens is known by its stream. One that is replicated is asked itself each time: its leader
// answers, and parks pulls, when it has lost its followers.
const restFor = 30 * time.Second

// rest is a durable that had delivered all its messages, all of which were settled. While its stream holds what it held, that is as it was. Its
// deletion ends the pull that is parked.
type rest struct {
	since   time.Time // zero: it does not rest
	content looks.Content
	config  jetstream.StreamConfig
	look    backlog.Look
}

// rests tells whether the durable is known by its stream.
func (w *watchdog) rests(stream looks.Look, now time.Time) bool {
	r, info := &w.rest, stream.CachedInfo()
	return now.Sub(r.since) < restFor && r.content == looks.ContentOf(info) && reflect.DeepEqual(r.config, info.Config)
}

// noteRest begins a rest, if nothing is to be done on the durable.
func (w *watchdog) noteRest(stream looks.Look, info *jetstream.ConsumerInfo, e health.Edits) {
	idle := info.NumPending == 0 && info.NumAckPending == 0 && !info.Paused && (info.Cluster == nil || len(info.Cluster.Replicas) == 0)
	if w.rest = (rest{}); idle && len(e.Stop) == 0 && len(e.Slow) == 0 {
		// What was stored between the two answers is not in the first.
		w.rest = rest{time.Now(), looks.ContentOf(stream.CachedInfo()), stream.CachedInfo().Config, backlog.Look{Floor: info.AckFloor.Stream}}
	}
}

// check asks the server, afresh or about what may have changed. With waits, messages wait for some that are missing here, in so many gaps so far, of
// which those up to missed are given back once more. It blocks for some seconds at most.
func (s *source) check(ctx context.Context, afresh bool, waits int, missed uint64) finding {
	if s.isLost() {
		s.watchdog.doubt.Store(true) // it is looked for until it is there
		return s.reopen(ctx)
	}
	asked, age := time.Now(), s.relay.stores.AmongMany(looks.ShareFor)
	if afresh {
		age = 0
	}
	ask, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	stream, err := s.relay.streams.Get(ask, s.stream, age)
	if err == nil && !afresh && s.watchdog.rests(stream, asked) {
		s.Health.Heard(nil, asked)
		l := s.watchdog.rest.look
		l.At = stream.Asked
		s.looked.Store(&l)
		return finding{identity: s.identity, allHere: waits}
	}
	s.watchdog.rest = rest{}
	var identity ack.Identity
	var info *jetstream.ConsumerInfo
	var here map[uint64]struct{}
	if waits > 0 {
		here = s.Session.Live()
	}
	if err == nil {
		identity, info, err = s.askOn(ask, stream)
	}
	if err != nil {
		s.Health.Heard(err, asked)
		s.watchdog.doubt.Store(true) // it is asked again soon
		return finding{err: err}
	}
	s.Health.IsNews(info.Config)
	lasts, why := health.Quorum(info.Cluster)
	s.Health.Heard(why, asked.Add(-lasts))
	if why != nil {
		s.watchdog.doubt.Store(true)
	}
	s.watchdog.pending.Store(info.NumPending)
	f := finding{
		identity: identity, pending: info.NumPending, paused: info.Paused, full: info.NumAckPending >= info.Config.MaxAckPending,
	}
	if identity.Equal(s.identity) {
		if waits > 0 {
			// What came or was settled meanwhile counts for one of both only.
			after := s.Session.Live()
			maps.DeleteFunc(here, func(seq uint64, _ struct{}) bool { _, still := after[seq]; return !still })
			if info.NumAckPending <= len(here) {
				f.allHere = waits
			} else {
				s.takeover.GiveBackAgain(ctx, info, missed)
			}
		}
		f.edits = s.inspect(ctx, stream, info, stream.Asked)
		s.watchdog.noteRest(stream, info, f.edits)
	}
	return f
}

// checked acts on what the server said.
func (s *source) checked(f finding, now time.Time) {
	if f.err == nil && f.identity.Equal(s.identity) {
		s.edited(f.edits)
		if s.gaps.Missing() && f.allHere == s.gaps.Seen() { // a later gap is not filled by that
			s.gaps.Fill(now)
		}
	}
	switch {
	case s.isLost() && (errors.Is(f.err, jetstream.ErrStreamNotFound) || errors.Is(f.err, jetstream.ErrConsumerNotFound)):
		// As before.
	case errors.Is(f.err, jetstream.ErrStreamNotFound):
		s.lose(fmt.Errorf("stream %s was deleted", s.stream))
	case errors.Is(f.err, jetstream.ErrConsumerNotFound):
		s.lose(fmt.Errorf("durable %s was deleted", s.durable))
	case s.isLost():
		if f.err != nil {
			var differs *DurableDiffers
			if errors.As(f.err, &differs) {
				s.Health.StayLost(fmt.Errorf("durable %s was deleted and created again: %w", s.durable, f.err))
			}
		}
	case f.err != nil:
		// Readiness says so when it lasts.
	case !f.identity.StreamCreated.Equal(s.identity.StreamCreated):
		s.lose(fmt.Errorf("stream %s was deleted and created again", s.stream))
	case !f.identity.ConsumerCreated.Equal(s.identity.ConsumerCreated):
		s.lose(fmt.Errorf("durable %s was deleted and created again", s.durable))
	case f.pending > 0 && !f.paused && !f.full && s.hasRoom() && now.Sub(s.pulls.Got()) >= quietFor && now.Sub(s.pulls.Heard()) < quietFor:
		s.rebuild(f.pending, now)
	}
}

// rebuild throws the pulls away and begins anew.
func (s *source) rebuild(pending uint64, now time.Time) {
	s.Health.Stalled(now)
	s.count.Rebuilds.Add(1)
	s.log.Warn("nothing is delivered although messages are waiting; pulling again", "pending", pending)
	s.pulls.Anew()
}
