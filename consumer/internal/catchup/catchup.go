package catchup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"log/slog"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/pool"
	"github.com/relaymq/relay/internal/provision"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/transient"
)

// A route joins a durable that is there, or gets one more subject. The server widens the filter and goes on where the durable is: what the stream
// held before is passed. It is handed over to the route through the retry stream, as far as its start says.

const (
	// changeLasts is for how long an instance has a durable for itself to change it, and handLasts to hand over what it has passed.
	changeLasts = 10 * time.Second
	handLasts   = 15 * time.Second
	// A turn hands over for handTurn at most, handBatch messages at a time, handAtOnce of them side by side, and only while fewer than
	// handRoom wait to be delivered to the routes: the rest waits in its stream.
	handTurn   = 10 * time.Second
	handBatch  = 256
	handAtOnce = 64
	handRoom   = 4096
	// askTimeout bounds one request.
	askTimeout = 5 * time.Second
)

// Config says whose messages are handed over, and to whom.
type Config struct {
	Conn     *nats.Conn
	JS       jetstream.JetStream
	API      string // prefix of the subjects of JetStream
	Service  string
	Instance string
	Log      *slog.Logger

	Stream, Durable string
	// Off is for a durable that passes nothing that matters.
	Off bool
	// Book and Retry are where the account is kept, and what the messages go through. They are asked for when they are needed.
	Book  func() *Book
	Retry func() *retry.Stream
	// Wants are what the routes want, and Routes their names. Both are asked for when they are needed.
	Wants  func() []Want
	Routes func() []string
	// Target is the route of a subject, empty for none, and what room the retry stream has for it.
	Target func(subject string) (route string, room retry.Room)
	// Ask asks the server about the durable.
	Ask func(context.Context) (jetstream.Stream, *jetstream.ConsumerInfo, error)
	// Work ends when nothing more is to be handed over, and Tell is told how each turn ended.
	Work func() context.Context
	Tell func(error)
	// Pool runs the turns.
	Pool *pool.Pool
}

// Want is a subject that a route wants, and from where on.
type Want struct {
	Pattern string
	Policy  string // all, new, since or seq
	Seq     uint64
	Since   time.Time
}

// CatchUp is what an instance knows of what a durable has passed. It hands that over. Make it with [New].
type CatchUp struct {
	cfg     Config
	created time.Time // of the durable; fixed when it is open

	record atomic.Pointer[Record] // nil: nothing
	busy   atomic.Bool
	began  time.Time     // of Soon only: when it last looked
	is     string        // of Note only: what the durable was for when the account was read
	had    atomic.Uint64 // up to there the durable has delivered what the routes want, as it was last seen with all their subjects
}

// New returns one that knows nothing.
func New(cfg Config) *CatchUp { return &CatchUp{cfg: cfg} }

// Record is the account as it was last read; nil when everything is handed over.
func (c *CatchUp) Record() *Record { return c.record.Load() }

// Had tells whether the durable had all subjects that the routes want once, so that what it passed since is known.
func (c *CatchUp) Had() bool { return c.had.Load() > 0 }

// Gap are the messages that the routes of this configuration want, and that a durable as it is has passed, or would. The last message of the stream is
// last.
func (c *CatchUp) Gap(have jetstream.ConsumerConfig, last uint64) (list []Range) {
	if c.cfg.Off {
		return nil
	}
	filters, known := provision.Filters(have), []string(nil)
	if m := provision.MarkOf(have.Metadata); m.Service == c.cfg.Service {
		known = m.Patterns()
	}
	for _, w := range c.cfg.Wants() {
		if len(Gap(filters, known, []string{w.Pattern})) == 0 {
			continue
		}
		g := Range{
			Pattern: w.Pattern, Except: Except(slices.Concat(filters, known), w.Pattern), Had: c.had.Load(), Began: time.Now().UTC(),
		}
		switch w.Policy {
		case "new":
			g.From, g.Until = last+1, last
		case "seq":
			g.From, g.Until = w.Seq, last
		case "since":
			g.Since, g.Until = w.Since, last
		}
		list = append(list, g)
	}
	return list
}

// WouldBegin are the ranges of Gap as they would begin if the durable were changed now: where they go on when it had these subjects before.
func (c *CatchUp) WouldBegin(ctx context.Context, info *jetstream.ConsumerInfo, last uint64) (list []Range, err error) {
	var left []Range
	if b := c.cfg.Book(); b != nil {
		r, err := b.Get(ctx, c.cfg.Stream, c.cfg.Durable)
		if err != nil {
			return nil, err
		}
		if r != nil && r.Created.Equal(info.Created) {
			left = slices.DeleteFunc(r.Ranges, func(g Range) bool { return !g.Left })
		}
	}
	for _, g := range c.Gap(info.Config, last) {
		begun := Record{Ranges: slices.Clone(left)}
		begun.Begin(g)
		list = append(list, begun.Ranges[slices.IndexFunc(begun.Ranges, func(h Range) bool { return h.Pattern == g.Pattern && !h.Left })])
	}
	return list, nil
}

// Holds is how many messages of a range the stream has at most.
func (c *CatchUp) Holds(ctx context.Context, g Range) (n uint64, err error) {
	err = retry.Subjects(ctx, c.cfg.JS, c.cfg.Stream, g.Pattern, func(literal string, count int) {
		if g.Wants(literal) {
			n += uint64(count)
		}
	})
	return n, err
}

// errChanging says that another instance has the durable for itself. It passes.
var errChanging = transient.Soon(errors.New("another instance is changing the durable"))

// Read reads the account when the durable is opened, before anything is pulled. What was begun by an instance that ended is bounded.
func (c *CatchUp) Read(ctx context.Context, stream jetstream.Stream, info *jetstream.ConsumerInfo) error {
	if c.created = info.Created; c.cfg.Off {
		return nil
	}
	if len(c.Gap(info.Config, 0)) == 0 {
		c.had.Store(max(c.had.Load(), info.Delivered.Stream))
	}
	r, err := c.cfg.Book().Get(ctx, c.cfg.Stream, c.cfg.Durable)
	if err != nil {
		return err
	}
	if r != nil && !r.Created.Equal(info.Created) {
		r = nil
	}
	if r, err = c.boundLeft(ctx, r, stream, info, c.cfg.Instance); err != nil {
		return err
	}
	c.record.Store(r)
	return nil
}

// boundLeft bounds what an instance began that ended before it knew how far the durable goes: at the end of the stream, as what the durable delivers of
// that is handed over, too. What it did not get to is over. What this very instance (me) began before it was started again is left at once, and that of
// others when their claim is over.
func (c *CatchUp) boundLeft(ctx context.Context, r *Record, stream jetstream.Stream, info *jetstream.ConsumerInfo, me string) (*Record, error) {
	left := func(r *Record) bool {
		return r != nil && r.Created.Equal(info.Created) && len(r.Open()) > 0 && (r.Changing.By == me || time.Now().After(r.Changing.Until))
	}
	if !left(r) {
		return r, nil
	}
	now, err := stream.Info(ctx)
	if err != nil {
		return nil, err
	}
	return c.cfg.Book().Change(ctx, c.cfg.Stream, c.cfg.Durable, func(r *Record) (*Record, error) {
		if left(r) {
			r.Changing = Claim{}
			r.Bound(provision.Filters(info.Config), now.State.LastSeq)
			r.Drop()
			return r.OrNil(), nil
		}
		return r, nil
	})
}

// Note reads the account again when the durable was changed by somebody else since it was read.
func (c *CatchUp) Note(ctx context.Context, info *jetstream.ConsumerInfo) {
	if c.cfg.Off {
		return
	}
	if len(c.Gap(info.Config, 0)) == 0 {
		c.had.Store(max(c.had.Load(), info.Delivered.Stream))
	}
	is := fmt.Sprint(provision.Filters(info.Config), provision.MarkOf(info.Config.Metadata))
	if c.is == is {
		return
	}
	if r, err := c.cfg.Book().Get(ctx, c.cfg.Stream, c.cfg.Durable); err == nil && (r == nil || r.Created.Equal(info.Created)) {
		c.is = is
		c.record.Store(r)
	}
}

// Place is that of a message that the durable delivers.
func (c *CatchUp) Place(sequence uint64, stored time.Time, literal string) Place {
	return c.record.Load().Place(sequence, stored, literal)
}
