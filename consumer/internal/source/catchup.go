package source

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/catchup"
	"github.com/relaymq/relay/internal/retry"
)

// handAgain is how long a message stays away that the durable delivers before it is handed over.
const handAgain = 200 * time.Millisecond

// catchUpConfig is how what the durable of a source has passed is handed over.
func catchUpConfig(s *Source) catchup.Config {
	in := s.in
	return catchup.Config{
		Conn: in.Conn, JS: in.JS, API: in.API, Service: in.Service, Instance: in.Name, Log: s.log, Stream: s.stream, Durable: s.durable, Off: s.due,
		Book:  func() *catchup.Book { return catchup.NewBook(in.Stores.Ledgers) },
		Retry: func() *retry.Stream { return in.Stores.Retries },
		Wants: func() (list []catchup.Want) {
			for _, d := range s.patterns {
				start := d.route.Start
				list = append(list, catchup.Want{Pattern: d.pattern, Policy: start.Policy, Seq: start.Seq, Since: start.Since})
			}
			return list
		},
		Routes: s.Names,
		Target: func(subject string) (string, retry.Room) {
			if rt := s.RouteOf(subject); rt != nil {
				return rt.Name, rt.Path.Room()
			}
			return "", s.routes[0].Path.Room()
		},
		Ask: func(ctx context.Context) (jetstream.Stream, *jetstream.ConsumerInfo, error) {
			said, err := s.asker.Ask(ctx)
			return said.Stream, said.Info, err
		},
		Work: func() context.Context { return s.routes[0].Path.Work },
		Tell: s.tellOfHanding,
		Pool: s.tidying,
	}
}

// tellOfHanding has the routes say why what they want is not handed over to them.
func (b *binding) tellOfHanding(err error) {
	const what = "hand-over of messages that the durable has passed"
	for _, rt := range b.routes {
		if err != nil {
			rt.Troubles.Note(what, fmt.Errorf("cannot hand over messages that the durable has passed; retrying: %w", err), time.Now())
		} else {
			rt.Troubles.Mended(what, time.Now())
		}
	}
}

// passed settles a message that is handed over, or will be.
func (m *Incoming) passed(place catchup.Place) {
	if place == catchup.Passed {
		m.Done()
		return
	}
	_ = m.Delivery.Nak(time.Now().Add(handAgain)) // fenced: somebody else has it
}
