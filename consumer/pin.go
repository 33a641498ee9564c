package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/takeover"
	"github.com/relaymq/relay/internal/fleet"
	"github.com/relaymq/relay/internal/provision"
)

// The server pins whoever it delivers to while nobody is pinned, and tells it the pin with each message. A change of the leader drops the pin.
// What the pin is for: provision/pin.go.

// pinHeader is what the server adds to each message.
const pinHeader = "Nats-Pin-Id"

// unpin throws out the pulls of the holder before.
func (s *source) unpin(ctx context.Context, stream jetstream.Stream) error {
	if err := stream.UnpinConsumer(ctx, s.durable, provision.PinGroup); err != nil {
		return fmt.Errorf("taking over durable %s on stream %s: %w", s.durable, s.stream, err)
	}
	return nil
}

// takeoverConfig is how what somebody else had in hand of the durable is given back.
func (s *source) takeoverConfig() takeover.Config {
	return takeover.Config{
		Conn: s.relay.nc, Log: s.log, Stream: s.stream, Durable: s.durable, AckWait: func() time.Duration { return s.routes[0].cfg.AckWait },
		Holds: s.mayStart, Records: func() takeover.Records { return s.records }, InHand: func() ack.InHand { return s.session.InHand() },
		Delivered: s.inHand, Ask: func(ctx context.Context) (*jetstream.ConsumerInfo, error) {
			_, info, err := s.ask(ctx)
			return info, err
		},
	}
}

// notePin takes the pin off a delivery.
func (p *pulling) notePin(m *nats.Msg) {
	if m.Header == nil {
		return
	}
	if id := m.Header.Get(pinHeader); id != "" {
		p.pin = id
		if delete(m.Header, pinHeader); len(m.Header) == 0 {
			m.Header = nil
		}
	}
}

// losePin notes that the server does not know the pin of a pull: it has another leader, or somebody else was pinned. While this instance has
// the claim, whoever that is is thrown out, and it pulls anew.
func (s *source) losePin(of string) {
	if of == "" || of != s.pulls.pin {
		return
	}
	s.pulls.pin = ""
	for i := range s.arrivals.Requests.Lanes {
		if l := &s.arrivals.Requests.Lanes[i]; l.Pin == of {
			l.End()
		}
	}
	if s.mayStart() {
		_ = s.relay.nc.PublishRequest(s.relay.api+"CONSUMER.UNPIN."+s.stream+"."+s.durable, s.relay.nc.NewInbox(), []byte(`{"group":"`+provision.PinGroup+`"}`))
	}
}

// lease is how long one lasts.
func (f Fleet) lease() time.Duration { return max(f.Lease, fleet.MinLease) }
