package history

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/cmd/relay/internal/cli"
	"github.com/relaymq/relay/cmd/relay/internal/console"
	"github.com/relaymq/relay/cmd/relay/internal/waiting"
	"github.com/relaymq/relay/internal/partition"
	"github.com/relaymq/relay/internal/subject"
)

// What a route with partitions has is a copy of the message, in a stream of relay's own.

// copied is where a route with partitions has the message.
type copied struct {
	durable, route string // as without partitions
	in             *partition.Stream
	sequence       uint64 // 0: it is not there
	part           int
}

// clocks is by how much those of two servers may differ.
const clocks = time.Minute

// isOf tells whether what somebody noted of a message, with its durable and the time when it was stored, is of this one, and not of one that had its sequence
// before the stream was made anew. The time is that of the copy where a route has partitions.
func (l *life) isOf(durable string, at time.Time) bool {
	switch {
	case !slices.ContainsFunc(l.copies, func(c copied) bool { return c.durable == durable }):
		return l.Published == nil || at.Equal(*l.Published)
	case !l.noted.IsZero():
		return at.Equal(l.noted)
	}
	return l.Published == nil || at.After(l.Published.Add(-clocks))
}

// findRoutes finds the routes with partitions that read the stream.
func (l *life) findRoutes(ctx context.Context, cl *cli.Client, r *waiting.Reader) error {
	for _, route := range r.Divided {
		list, err := partition.Find(ctx, cl.JS, cl.Config.Service, route)
		if err != nil {
			return err
		}
		if n := len(list); n > 0 && list[n-1].Stream == l.Stream {
			l.copies = append(l.copies, copied{durable: list[n-1].Durable, route: route, in: list[n-1]})
		}
	}
	if i := slices.IndexFunc(l.copies, func(c copied) bool { return c.durable == l.Consumer }); i >= 0 {
		l.noted, l.Published = *l.Published, nil
	}
	return nil
}

// findCopies finds the message in the streams of partitions.
func (l *life) findCopies(ctx context.Context, cl *cli.Client) (err error) {
	for i := range l.copies {
		c := &l.copies[i]
		if !l.Stored || !slices.ContainsFunc(c.in.Subjects, func(p string) bool { return subject.Matches(p, l.Subject) }) {
			continue
		}
		c.part = c.in.Of(l.Subject)
		if c.sequence, err = c.in.CopyOf(ctx, cl.JS, l.Sequence); err != nil {
			return err
		}
	}
	return nil
}

// inPartition is where the message stands in a partition.
func (l *life) inPartition(ctx context.Context, cl *cli.Client, c copied) error {
	p := console.Place{Where: "durable", Durable: c.durable, Route: c.route}
	switch lag, _, known := c.in.Behind(); {
	case !slices.ContainsFunc(c.in.Subjects, func(p string) bool { return subject.Matches(p, l.Subject) }):
		return nil // it is not of that route
	case slices.ContainsFunc(l.Places, func(o console.Place) bool { return o.Durable == c.durable || o.Durable == c.in.DurableOf(c.part) }):
		return nil // where it is is known
	case c.sequence > 0:
		durable, err := cl.JS.Consumer(ctx, c.in.Name(), c.in.DurableOf(c.part))
		if err == nil {
			l.inDurable(ctx, cl, durable.CachedInfo(), c.sequence, c.route, []string{c.route})
			return nil
		} else if !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return err
		}
		p.Text, p.Next = fmt.Sprintf("is in partition %d of %d, whose durable does not exist yet", c.part, c.in.Count), l.standing(ctx, cl, []string{c.route})
	case known && lag > 0 && l.Stored:
		p.Where, p.Text = "stream", fmt.Sprintf("may not be copied yet to stream %s, which is %d messages behind", c.in.Name(), lag)
		p.Next = "it is copied, and delivered after the messages before it; " + l.standing(ctx, cl, []string{c.route})
	default:
		p.Where, p.Text = "through", fmt.Sprintf("is not in partition %d of %d any more: it is settled, or was handed over when the partitions changed", c.part, c.in.Count)
		p.Next = "nothing: it was done, dropped, expired or forgotten, or a dead letter that was discarded or replayed since"
	}
	l.Places = append(l.Places, p)
	return nil
}
