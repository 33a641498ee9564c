package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/catchup"
	"github.com/relaymq/relay/internal/away"
	"github.com/relaymq/relay/internal/pool"
	"github.com/relaymq/relay/internal/provision"
	"github.com/relaymq/relay/internal/retry"
)

// A route joins a durable that is there, or gets one more subject. The server widens the filter and goes on where the durable is: what the stream
// held before is passed. It is handed over to the route through the retry stream, as far as its start says. Package catchup keeps the account.

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
	// handAgain is how long a message stays away that the durable delivers before it is handed over.
	handAgain = 200 * time.Millisecond
)

// catchUp is what a source knows of what its durable has passed, and hands that over.
type catchUp struct {
	*binding
	ask     func(context.Context) (ack.Identity, jetstream.Stream, *jetstream.ConsumerInfo, error) // the server, about the durable
	tidying *pool.Pool
	created time.Time // of the durable; fixed when it is open

	record atomic.Pointer[catchup.Record] // nil: nothing
	busy   atomic.Bool
	began  time.Time     // of the pull loop only: when it last looked
	is     string        // of the watchdog only: what the durable was for when the account was read
	had    atomic.Uint64 // up to there the durable has delivered what the routes want, as it was last seen with all their subjects
}

func (c *catchUp) passedBook() *catchup.Book { return catchup.NewBook(c.relay.ledgers) }

// gap are the messages that the routes of this configuration want, and that a durable as it is has passed, or would. The last message of the stream is
// last.
func (c *catchUp) gap(have jetstream.ConsumerConfig, last uint64) (list []catchup.Range) {
	if c.due {
		return nil
	}
	filters, known := provision.Filters(have), []string(nil)
	if m := provision.MarkOf(have.Metadata); m.Service == c.relay.cfg.Service {
		known = m.Patterns()
	}
	for _, d := range c.patterns {
		start := d.route.cfg.Start
		if len(catchup.Gap(filters, known, []string{d.pattern})) == 0 {
			continue
		}
		g := catchup.Range{
			Pattern: d.pattern, Except: catchup.Except(slices.Concat(filters, known), d.pattern), Had: c.had.Load(), Began: time.Now().UTC(),
		}
		switch start.Policy {
		case "new":
			g.From, g.Until = last+1, last
		case "seq":
			g.From, g.Until = start.Seq, last
		case "since":
			g.Since, g.Until = start.Since, last
		}
		list = append(list, g)
	}
	return list
}

// holds is how many messages of a range the stream has at most.
func (c *catchUp) holds(ctx context.Context, g catchup.Range) (n uint64, err error) {
	err = retry.Subjects(ctx, c.relay.js, c.stream, g.Pattern, func(literal string, count int) {
		if g.Wants(literal) {
			n += uint64(count)
		}
	})
	return n, err
}

// errChanging says that another instance has the durable for itself. It passes.
var errChanging = away.Soon(errors.New("another instance is changing the durable"))

// read reads the account when the source opens, before anything is pulled. What was begun by an instance that ended is bounded.
func (c *catchUp) read(ctx context.Context, stream jetstream.Stream, info *jetstream.ConsumerInfo) error {
	if c.created = info.Created; c.due {
		return nil
	}
	if len(c.gap(info.Config, 0)) == 0 {
		c.had.Store(max(c.had.Load(), info.Delivered.Stream))
	}
	r, err := c.passedBook().Get(ctx, c.stream, c.durable)
	if err != nil {
		return err
	}
	if r != nil && !r.Created.Equal(info.Created) {
		r = nil
	}
	if r, err = c.boundLeft(ctx, r, stream, info, c.relay.cfg.Instance); err != nil {
		return err
	}
	c.record.Store(r)
	return nil
}

// boundLeft bounds what an instance began that ended before it knew how far the durable goes: at the end of the stream, as what the durable delivers of
// that is handed over, too. What it did not get to is over. What this very instance (me) began before it was started again is left at once, and that of
// others when their claim is over.
func (c *catchUp) boundLeft(ctx context.Context, r *catchup.Record, stream jetstream.Stream, info *jetstream.ConsumerInfo, me string) (*catchup.Record, error) {
	left := func(r *catchup.Record) bool {
		return r != nil && r.Created.Equal(info.Created) && len(r.Open()) > 0 && (r.Changing.By == me || time.Now().After(r.Changing.Until))
	}
	if !left(r) {
		return r, nil
	}
	now, err := stream.Info(ctx)
	if err != nil {
		return nil, err
	}
	return c.passedBook().Change(ctx, c.stream, c.durable, func(r *catchup.Record) (*catchup.Record, error) {
		if left(r) {
			r.Changing = catchup.Claim{}
			r.Bound(provision.Filters(info.Config), now.State.LastSeq)
			r.Drop()
			return r.OrNil(), nil
		}
		return r, nil
	})
}

// note reads the account again when the durable was changed by somebody else since it was read.
func (c *catchUp) note(ctx context.Context, info *jetstream.ConsumerInfo) {
	if c.due {
		return
	}
	if len(c.gap(info.Config, 0)) == 0 {
		c.had.Store(max(c.had.Load(), info.Delivered.Stream))
	}
	is := fmt.Sprint(provision.Filters(info.Config), provision.MarkOf(info.Config.Metadata))
	if c.is == is {
		return
	}
	if r, err := c.passedBook().Get(ctx, c.stream, c.durable); err == nil && (r == nil || r.Created.Equal(info.Created)) {
		c.is = is
		c.record.Store(r)
	}
}

// place of a message that the durable delivers.
func (c *catchUp) place(d *ack.Delivery, literal string) catchup.Place {
	return c.record.Load().Place(d.Sequence, d.Time, literal)
}

// passed settles a message that is handed over, or will be.
func (m *message) passed(place catchup.Place) {
	if place == catchup.Passed {
		m.done()
		return
	}
	_ = m.delivery.Nak(time.Now().Add(handAgain)) // fenced: somebody else has it
}
