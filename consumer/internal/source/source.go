package source

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/catchup"
	"github.com/relaymq/relay/consumer/internal/gaps"
	"github.com/relaymq/relay/consumer/internal/health"
	"github.com/relaymq/relay/consumer/internal/metrics"
	"github.com/relaymq/relay/consumer/internal/pulls"
	"github.com/relaymq/relay/consumer/internal/settle"
	"github.com/relaymq/relay/consumer/internal/takeover"
	"github.com/relaymq/relay/consumer/internal/tally"
	"github.com/relaymq/relay/consumer/internal/watchdog"
	"github.com/relaymq/relay/internal/failpoint"
	"github.com/relaymq/relay/internal/pool"
	"github.com/relaymq/relay/internal/provision"
	"github.com/relaymq/relay/internal/retry"
)

// Source is one durable, from which one or more routes get their messages.
type Source struct {
	observed       // what the server says of it
	settle.Durable // how its messages are settled
	claim          // whether this instance may work on it

	Setup    Setup
	Pulls    *pulls.Puller
	Watchdog watchdog.Watchdog
	Count    *Counters     // which the source that takes its place goes on with
	Tally    *tally.Source // since it is open
	Takeover *takeover.Takeover
	Unwanted *Unwanted
	CatchUp  *catchup.CatchUp

	loop    *loop
	ordered ordered
	late    health.Late
	// Deletes records. It is apart from the routes' slow paths, where it would stand before failures that wait to be stored.
	tidying *pool.Pool
}

// ordered is the way of the messages of ordered keys of which something must be asked first, and of those behind them.
type ordered struct {
	gaps    *gaps.Watch
	inOrder *pool.Pool
	aheads  *pool.Pool   // asks for what inOrder needs, many at a time: a takeover brings thousands of such messages
	behind  atomic.Int64 // how many there are
}

// Counters are those of a durable.
type Counters struct {
	metrics.DurableCount
	tally tally.DurableCount
}

// New is for a durable on a stream of the user.
func New(in *Instance, stream, durable string) *Source {
	return newSourceOf(newBinding(in, stream, durable))
}

// NewDue is for a durable on the retry stream, through which messages of a stream come due.
func NewDue(in *Instance, durable, origin string) *Source {
	b := newBinding(in, in.Stores.Retries.Name(), durable)
	b.due, b.origin = true, origin
	return newSourceOf(b)
}

func newBinding(in *Instance, stream, durable string) *binding {
	return &binding{
		in: in, log: in.Log.With("stream", stream, "durable", durable), stream: stream, durable: durable, idPrefix: retry.IDPrefix(stream, durable),
	}
}

func newSourceOf(b *binding) *Source {
	s := &Source{
		ordered: ordered{inOrder: pool.New(1), aheads: pool.New(asksAhead)}, tidying: pool.New(settle.Paths), Count: new(Counters), claim: claim{needed: b.leased},
	}
	s.observed.begin(b)
	s.ordered.gaps = gaps.NewWatch(b.log, s.ordered.inOrder, func(h gaps.Hold) {
		for _, rt := range b.routes {
			if h.Arrived {
				rt.Group.HoldBehind(h.Above)
			} else {
				rt.Group.HoldAbove(h.Above, h.Until)
			}
		}
	})
	s.Pulls = pulls.New(pullerConfig(s))
	s.Durable = settle.Durable{Stream: b.stream, Name: b.durable, Due: b.due, Leased: b.leased, Draining: s.Pulls.IsDraining}
	s.Unwanted = newUnwanted(s)
	s.CatchUp = catchup.New(catchUpConfig(s))
	s.Takeover = takeover.New(takeoverConfig(s))
	s.Setup = newSetup(s)
	s.loop = &loop{Source: s}
	return s
}

// open begins the session of a durable that is there.
func (s *Source) open(ctx context.Context, stream jetstream.Stream, consumer jetstream.Consumer) error {
	began := time.Now()
	info, err := consumer.Info(ctx)
	if err != nil {
		return err
	}
	s.identity = ack.Identity{StreamCreated: stream.CachedInfo().Created, ConsumerCreated: info.Created}
	m := provision.MarkOf(info.Config.Metadata)
	s.Setup.adopted = m.Adopted
	s.Unwanted.learn(stream.CachedInfo().Config, m, began)
	s.asker.Saw(info)
	if err := s.CatchUp.Read(ctx, stream, info); err != nil {
		return err
	}
	if err := s.Unwanted.noteDelivers(ctx, stream); err != nil {
		return err
	}
	s.Tally = newTally(s, info, began)
	s.Pulls.Open(info.NumPending)
	s.Records = s.in.Stores.Records.Records(s.stream, s.durable, info.Created)
	s.Session = ack.NewSession(ack.Config{
		Inbox: s.Pulls.Name(), Conn: s.in.Conn, Link: func() uint64 { return s.in.Conn.Stats().Reconnects },
		AckWait: info.Config.AckWait, Identity: s.identity, Info: s.info, Logger: s.log,
	})
	s.Watchdog.Begin(watchdogConfig(s))
	s.loop.suspect.Begin(info.Delivered.Consumer)
	if !s.due && slices.ContainsFunc(s.routes, func(rt *Route) bool { return rt.Ordered }) {
		s.ordered.gaps.Begin(gaps.Start{
			Consumer: info.Delivered.Consumer, Delivered: info.Delivered.Stream, AckFloor: info.AckFloor.Stream, Pending: info.NumAckPending,
			AckWait: info.Config.AckWait, Alone: s.leased(),
		}, time.Now())
	}
	if err = s.Pulls.Subscribe(); err == nil && s.leased() {
		s.Takeover.TakeBack(ctx, info)
	}
	return err
}

// Close ends the subscriptions.
func (s *Source) Close() { s.Pulls.Close() }

// info is what the session asks of the server.
func (s *Source) info(ctx context.Context) (ack.Info, error) {
	said, err := s.asker.Ask(ctx)
	if err != nil {
		// A durable that is gone says nothing on the pulls that were not parked at that moment.
		if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
			s.Watchdog.Doubt()
		}
		return ack.Info{}, err
	}
	if !said.Identity.Equal(s.identity) || s.Health.IsNews(said.Info.Config) {
		s.Watchdog.Doubt()
	}
	return ack.Info{Identity: said.Identity, AckPending: said.Info.NumAckPending}, nil
}

// Trouble is why the durable gives nothing, if so.
func (s *Source) Trouble() error {
	if err := s.Health.Reason(); err != nil {
		return err
	}
	if err := s.late.Reason(s.in.Stalled, time.Now()); err != nil {
		return err
	}
	return s.Health.Silent(time.Now())
}

// lose gives the durable up, because it or its stream was deleted: after that an ack could settle another message with the same sequence.
func (s *Source) lose(err error) {
	s.Session.Abandon()
	s.Pulls.Abandon()
	news := s.Health.Lose(err)
	if s.routes[0].Part != nil {
		s.in.GenerationsChanged()
	}
	if news {
		s.log.Error("the durable or its stream is gone, so nothing is pulled; relay keeps looking for it. Create it again, or restart relay to have it created", "error", err)
	}
}

// Forget deletes the record of a settled message, soon.
func (s *Source) Forget(seq uint64) {
	s.tidying.Go(func() { s.forget(s.routes[0].Path.Work, seq) })
}

// forget deletes the record of a settled message.
func (s *Source) forget(ctx context.Context, seq uint64) {
	ctx, cancel := context.WithTimeout(ctx, settle.Timeout)
	defer cancel()
	failpoint.At("forgetting")
	if err := s.Records.Delete(ctx, seq); err != nil {
		s.log.Debug("cannot delete a record; the next sweep deletes it", "seq", seq, "error", err)
	}
}

// Sweep removes the records of what was settled without anybody noticing.
func (s *Source) Sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	said, err := s.asker.Ask(ctx)
	if err != nil || !said.Identity.Equal(s.identity) {
		return // not now, or never again
	}
	if n, err := s.Records.Sweep(ctx, said.Info.AckFloor.Stream); err != nil {
		s.log.Debug("cannot sweep the records of settled messages", "error", err)
	} else if n > 0 {
		s.log.Info("removed records of settled messages", "count", n)
	}
}
