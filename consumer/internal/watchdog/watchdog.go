// Package watchdog finds durables that should deliver and do not: after leader changes and reconnects, pulls have been lost
// on both sides (nats.go#2063, #1622), and a durable that was deleted while no pull was parked says nothing at all. So the server is asked about a
// durable when there is doubt, when nothing comes, and now and then:
//
//	Due ── is it to be asked? ─▶ Look, beside the pull loop ─▶ Act, in the pull loop: edits, a gap is filled, it is gone, or pull again
package watchdog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/backlog"
	"github.com/relaymq/relay/consumer/internal/health"
	"github.com/relaymq/relay/consumer/internal/pulls"
	"github.com/relaymq/relay/internal/looks"
)

const (
	quietFor   = 3 * pulls.Heartbeat // without a delivery before the server is asked
	checkEvery = 5 * time.Second     // at most
	checkAgain = 2 * time.Second     // at most, when there is doubt
	// LookEvery is how often the server is asked about a durable at least.
	LookEvery = 10 * time.Second
)

// Config is of a durable. Its functions are called by the pull loop, but for those that say otherwise.
type Config struct {
	Log             *slog.Logger
	Stream, Durable string
	Identity        ack.Identity // of the durable that the session is of
	Leased          bool         // one instance at a time works on it
	Others          func() int   // how many other instances ask about it
	Health          *health.Health
	Pulls           Pulls
	Gaps            Gaps
	HasRoom         func() bool // more messages could be handled
	Here            func() map[uint64]struct{}
	Missed          func() uint64 // up to which sequence what is missing here may be given back once more

	// Called while the durable is looked at. They may block until ctx is done: a question for Timeout, and what follows from its answer for longer.
	Timeout time.Duration

	// Stream is what the server says of the stream, as it was at most so long ago.
	OfStream func(ctx context.Context, age time.Duration) (looks.Look, error)
	// Share is how old an answer may be that many instances share.
	Share         func(time.Duration) time.Duration
	Ask           func(ctx context.Context, stream looks.Look) (ack.Identity, *jetstream.ConsumerInfo, error)
	GiveBackAgain func(ctx context.Context, info *jetstream.ConsumerInfo, missed uint64)
	// Inspect compares the durable with what it should be, as it was seen at that time.
	Inspect func(ctx context.Context, stream looks.Look, info *jetstream.ConsumerInfo) health.Edits
	Looked  func(backlog.Look) // the durable rests, and is known by its stream

	Edited  func(health.Edits)
	Lost    func(error) // it, or its stream, is not what it was
	Rebuilt func()      // the pulls were thrown away
}

// Pulls are what is asked of the durable.
type Pulls interface {
	IsLost(now time.Time) bool
	Got() time.Time   // when the last message came
	Heard() time.Time // when the last answer came
	Anew()
}

// Gaps are messages that others of an ordered route wait for.
type Gaps interface {
	Missing() bool
	Seen() int
	Fill(now time.Time)
	MayHaveLost(now time.Time)
}

// Watchdog is what is known of the checks of a durable. Its methods are for the pull loop, but for those that say otherwise.
type Watchdog struct {
	cfg     Config
	doubt   atomic.Bool
	pending atomic.Uint64

	checkedAt time.Time // when the server was last asked
	afresh    bool      // what is known from before does not count then

	rest rest // of Look only, of which one at a time runs
}

// Begin says what is watched. It comes first, and once.
func (w *Watchdog) Begin(c Config) { w.cfg = c }

// Doubt says that the durable may not be what it was: the server is asked soon. Anybody may call it.
func (w *Watchdog) Doubt() { w.doubt.Store(true) }

// Pending is how many messages the durable has not delivered, as it was last heard. Anybody may call it.
func (w *Watchdog) Pending() uint64 { return w.pending.Load() }

// Question is what a look is to find out.
type Question struct {
	Afresh bool // what was known before does not count
	// waits: messages wait for some that are missing here, in so many gaps so far, of which those up to missed are given back once more.
	waits  int
	missed uint64
}

// Due tells whether to ask the server about the durable now, and what.
func (w *Watchdog) Due(now time.Time) (q Question, yes bool) {
	if yes = w.suspicious(now); !yes {
		return q, false
	}
	q.Afresh = w.afresh
	if w.cfg.Leased {
		q.missed = w.cfg.Missed()
		if w.cfg.Gaps.Missing() {
			q.waits = w.cfg.Gaps.Seen()
		}
	}
	return q, true
}

// Confirm asks only whether the durable is the one of the session: nothing is delivered meanwhile. It blocks for a question, and may run beside Look.
func (w *Watchdog) Confirm(ctx context.Context) Finding {
	c := &w.cfg
	asked := time.Now()
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	f := Finding{confirms: true}
	var stream looks.Look
	if stream, f.Err = c.OfStream(ctx, 0); f.Err == nil {
		f.identity, _, f.Err = c.Ask(ctx, stream)
	}
	if f.Err != nil {
		c.Health.Heard(f.Err, asked)
		w.Doubt()
	}
	return f
}

// Now is a question to ask now, whatever was heard before.
func (w *Watchdog) Now(now time.Time) Question {
	w.checkedAt = now
	w.doubt.Store(false)
	return Question{Afresh: true}
}

func (w *Watchdog) suspicious(now time.Time) bool {
	c := &w.cfg
	if c.Pulls.IsLost(now) {
		c.Log.Debug("heartbeats missed; pulling again")
		c.Gaps.MayHaveLost(now)
		w.Doubt()
	}
	since := now.Sub(w.checkedAt)
	if c.Leased && c.Gaps.Missing() {
		w.checkedAt, w.afresh = now, true // settlements of the holder before may have been on their way
		return true
	}
	quiet := w.checkQuiet()
	if since < checkAgain || !w.doubt.Load() && since < max(LookEvery, quiet) && (now.Sub(c.Pulls.Got()) < quietFor || since < quiet) {
		return false
	}
	w.afresh = w.doubt.Swap(false)
	w.checkedAt = now
	return true
}

// checkQuiet is how often a durable is asked on which nothing comes: more seldom with many instances, each of which asks.
func (w *Watchdog) checkQuiet() time.Duration {
	return min(restFor, max(1, time.Duration(w.cfg.Others()+1)/2)*checkEvery)
}

// Finding is what the server says of a durable.
type Finding struct {
	Err      error
	confirms bool // nothing but the identity is known
	identity ack.Identity
	edits    health.Edits
	pending  uint64 // messages it has not delivered yet
	paused   bool
	allHere  int  // after so many gaps every delivery that waits for its settlement was in the hand of this instance; 0: it is not known
	full     bool // as many deliveries as it allows wait for their settlement
}

// Look asks the server. It blocks for some seconds, or longer when many messages have to be given back, and runs beside the pull loop.
func (w *Watchdog) Look(ctx context.Context, q Question) Finding {
	c := &w.cfg
	asked, age := time.Now(), c.Share(looks.ShareFor)
	if q.Afresh {
		age = 0
	}
	ask, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	stream, err := c.OfStream(ask, age)
	if err == nil && !q.Afresh && w.rest.holds(stream, asked) {
		c.Health.Heard(nil, asked)
		l := w.rest.look
		l.At = stream.Asked
		c.Looked(l)
		return Finding{identity: c.Identity, allHere: q.waits}
	}
	w.rest = rest{}
	var identity ack.Identity
	var info *jetstream.ConsumerInfo
	var here map[uint64]struct{}
	if q.waits > 0 {
		here = c.Here()
	}
	if err == nil {
		identity, info, err = c.Ask(ask, stream)
	}
	if err != nil {
		c.Health.Heard(err, asked)
		w.Doubt() // it is asked again soon
		return Finding{Err: err}
	}
	c.Health.IsNews(info.Config)
	lasts, why := health.Quorum(info.Cluster)
	c.Health.Heard(why, asked.Add(-lasts))
	if why != nil {
		w.Doubt()
	}
	w.pending.Store(info.NumPending)
	f := Finding{
		identity: identity, pending: info.NumPending, paused: info.Paused, full: info.NumAckPending >= info.Config.MaxAckPending,
	}
	if identity.Equal(c.Identity) {
		if q.waits > 0 {
			// What came or was settled meanwhile counts for one of both only.
			after := c.Here()
			maps.DeleteFunc(here, func(seq uint64, _ struct{}) bool { _, still := after[seq]; return !still })
			if info.NumAckPending <= len(here) {
				f.allHere = q.waits
			} else {
				c.GiveBackAgain(ctx, info, q.missed)
			}
		}
		f.edits = c.Inspect(ctx, stream, info)
		w.rest = newRest(stream, info, f.edits)
	}
	return f
}

// Act does what follows from what the server said.
func (w *Watchdog) Act(f Finding, now time.Time) {
	c := &w.cfg
	if f.Err == nil && !f.confirms && f.identity.Equal(c.Identity) {
		c.Edited(f.edits)
		if c.Gaps.Missing() && f.allHere == c.Gaps.Seen() { // a later gap is not filled by that
			c.Gaps.Fill(now)
		}
	}
	switch {
	case errors.Is(f.Err, jetstream.ErrStreamNotFound):
		c.Lost(fmt.Errorf("stream %s was deleted", c.Stream))
	case errors.Is(f.Err, jetstream.ErrConsumerNotFound):
		c.Lost(fmt.Errorf("durable %s was deleted", c.Durable))
	case f.Err != nil:
		// Readiness says so when it lasts.
	case !f.identity.StreamCreated.Equal(c.Identity.StreamCreated):
		c.Lost(fmt.Errorf("stream %s was deleted and created again", c.Stream))
	case !f.identity.ConsumerCreated.Equal(c.Identity.ConsumerCreated):
		c.Lost(fmt.Errorf("durable %s was deleted and created again", c.Durable))
	case f.pending > 0 && !f.paused && !f.full && c.HasRoom() && now.Sub(c.Pulls.Got()) >= quietFor && now.Sub(c.Pulls.Heard()) < quietFor:
		c.Health.Stalled(now)
		c.Log.Warn("nothing is delivered although messages are waiting; pulling again", "pending", f.pending)
		c.Rebuilt()
		c.Pulls.Anew()
	}
}
