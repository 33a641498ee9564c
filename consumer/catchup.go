package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/catchup"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/retry"
)

// handAgain is how long a message stays away that the durable delivers before it is handed over.
const handAgain = 200 * time.Millisecond

// catchUpConfig is how what the durable of a source has passed is handed over.
func (s *source) catchUpConfig() catchup.Config {
	r := s.relay
	return catchup.Config{
		Conn: r.nc, JS: r.js, API: r.api, Service: r.cfg.Service, Instance: r.cfg.Instance, Log: s.log, Stream: s.stream, Durable: s.durable, Off: s.due,
		Book:  func() *catchup.Book { return catchup.NewBook(r.stores.Ledgers) },
		Retry: func() *retry.Stream { return r.stores.Retries },
		Wants: func() (list []catchup.Want) {
			for _, d := range s.patterns {
				start := d.route.cfg.Start
				list = append(list, catchup.Want{Pattern: d.pattern, Policy: start.Policy, Seq: start.Seq, Since: start.Since})
			}
			return list
		},
		Routes: s.names,
		Target: func(subject string) (string, retry.Room) {
			if rt := s.routeOf(subject); rt != nil {
				return rt.cfg.Name, rt.path.Room()
			}
			return "", s.routes[0].path.Room()
		},
		Ask: func(ctx context.Context) (jetstream.Stream, *jetstream.ConsumerInfo, error) {
			said, err := s.asker.Ask(ctx)
			return said.Stream, said.Info, err
		},
		Work: func() context.Context { return s.routes[0].path.Work },
		Tell: s.tellOfHanding,
		Pool: s.tidying,
	}
}

// tellOfHanding has the routes say why what they want is not handed over to them.
func (b *binding) tellOfHanding(err error) {
	const what = "hand-over of messages that the durable has passed"
	for _, rt := range b.routes {
		if err != nil {
			rt.standstill.troubles.Note(what, fmt.Errorf("cannot hand over messages that the durable has passed; retrying: %w", err), time.Now())
		} else {
			rt.standstill.troubles.Mended(what, time.Now())
		}
	}
}

// passed settles a message that is handed over, or will be.
func (m *message) passed(place catchup.Place) {
	if place == catchup.Passed {
		m.Done()
		return
	}
	_ = m.Delivery.Nak(time.Now().Add(handAgain)) // fenced: somebody else has it
}

// catchUp tells how much of what the durable had passed is handed over; nil when all is.
func (rt *route) catchUp() *control.CatchUpStatus {
	var c control.CatchUpStatus
	for _, s := range rt.relay.running.Sources() {
		r := s.catchUp.Record()
		if r == nil || !s.serves(rt) {
			continue
		}
		for _, g := range r.Ranges {
			if g.IsDone() || s.routeOfPattern(g.Pattern) != rt {
				continue
			}
			c.Subjects = append(c.Subjects, g.Pattern)
			c.Handed, c.Held = c.Handed+g.Handed, c.Held+g.Held
			if c.Since.IsZero() || g.Began.Before(c.Since) {
				c.Since = g.Began
			}
		}
	}
	if len(c.Subjects) == 0 {
		return nil
	}
	return &c
}
