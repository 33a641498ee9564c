package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/provision"
	"github.com/relaymq/relay/internal/fleet"
)

// The server pins whoever it delivers to while nobody is pinned, and tells it the pin with each message. A change of the leader drops the pin.
// What the pin is for: provision/pin.go.

// pinHeader is what the server adds to each message.
const pinHeader = "Nats-Pin-Id"

// takeOver throws out the pulls of the holder before.
func (s *source) takeOver(ctx context.Context, stream jetstream.Stream) error {
	if err := stream.UnpinConsumer(ctx, s.durable, provision.PinGroup); err != nil {
		return fmt.Errorf("taking over durable %s on stream %s: %w", s.durable, s.stream, err)
	}
	return nil
}

// takeBack gives back what the holder before had in hand: nobody else settles it any more. The server ignores what is not outstanding. A NAK
// may be lost by a change of the leader; what it was for comes after AckWait then, and ordered routes wait for it.
func (s *source) takeBack(info *jetstream.ConsumerInfo) {
	from, to := info.AckFloor.Stream+1, info.Delivered.Stream
	if info.NumAckPending == 0 || to-from >= maxAckPending {
		return
	}
	now := time.Now().UnixNano()
	for seq := from; seq <= to; seq++ {
		subject := fmt.Sprintf("$JS.ACK.%s.%s.1.%d.%d.%d.0", s.stream, s.durable, seq, info.Delivered.Consumer, now)
		if s.relay.nc.Publish(subject, []byte("-NAK")) != nil {
			return // disconnected: it comes after AckWait
		}
	}
	s.log.Info("what the holder before had in hand is given back", "count", info.NumAckPending)
}

// notePin takes the pin off a delivery.
func (s *source) notePin(m *nats.Msg) {
	if m.Header == nil {
		return
	}
	if id := m.Header.Get(pinHeader); id != "" {
		s.pin = id
		if delete(m.Header, pinHeader); len(m.Header) == 0 {
			m.Header = nil
		}
	}
}

// losePin notes that the server does not know the pin of a pull: it has another leader, or somebody else was pinned. While this instance has
// the claim, whoever that is is thrown out, and it pulls anew.
func (s *source) losePin(of string) {
	if of == "" || of != s.pin {
		return
	}
	s.pin = ""
	for i := range s.asked.lanes {
		if l := &s.asked.lanes[i]; l.pin == of {
			l.end()
		}
	}
	if s.mayStart() {
		_ = s.relay.nc.PublishRequest(s.relay.api+"CONSUMER.UNPIN."+s.stream+"."+s.durable, s.relay.nc.NewInbox(), []byte(`{"group":"`+provision.PinGroup+`"}`))
	}
}

// pinOf is the pin under which a pull was made.
func (p *pullRequests) pinOf(id int) string {
	for i := range p.lanes {
		if l := &p.lanes[i]; l.id == id {
			return l.pin
		}
	}
	return ""
}

// lease is how long one lasts.
func (f Fleet) lease() time.Duration { return max(f.Lease, fleet.MinLease) }
