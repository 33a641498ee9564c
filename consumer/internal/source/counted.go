package source

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/catchup"
	"github.com/relaymq/relay/consumer/internal/tally"
)

// newTally is of a durable that is being opened. The server said info of it, and was asked at that time.
func newTally(s *Source, info *jetstream.ConsumerInfo, at time.Time) *tally.Source {
	return tally.Opened(tally.Source{
		Stream: s.stream, Durable: s.durable, Due: s.due, Count: &s.Count.tally,
		Naked: func() uint64 { return s.Session.Stats().Naked },
		Ask: func(ctx context.Context) (*jetstream.ConsumerInfo, bool, error) {
			said, err := s.asker.Ask(ctx)
			return said.Info, said.Identity.Equal(s.identity), err
		},
	}, info, at)
}

// tallied counts a delivery for the ledger.
func (l *loop) tallied(rt *Route, d *ack.Delivery, subject string, place catchup.Place) {
	of := tally.Delivery{First: d.Deliveries == 1, Due: l.due, Passed: place != catchup.Outside, Subject: subject}
	if rt != nil {
		of.Route, of.Partition = rt.Tally, rt.Part != nil
	}
	l.Count.tally.Delivered(of)
}
