package source

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/takeover"
	"github.com/relaymq/relay/internal/provision"
)

// unpin throws out the pulls of the holder before.
func (b *binding) unpin(ctx context.Context, stream jetstream.Stream) error {
	if err := stream.UnpinConsumer(ctx, b.durable, provision.PinGroup); err != nil {
		return fmt.Errorf("taking over durable %s on stream %s: %w", b.durable, b.stream, err)
	}
	return nil
}

// takeoverConfig is how what somebody else had in hand of the durable is given back.
func (s *Source) takeoverConfig() takeover.Config {
	return takeover.Config{
		Conn: s.in.Conn, Log: s.log, Stream: s.stream, Durable: s.durable, AckWait: func() time.Duration { return s.routes[0].AckWait },
		Holds: s.MayStart, Records: func() takeover.Records { return s.Records }, InHand: func() ack.InHand { return s.Session.InHand() },
		Delivered: s.inHand, Ask: func(ctx context.Context) (*jetstream.ConsumerInfo, error) {
			said, err := s.asker.Ask(ctx)
			return said.Info, err
		},
	}
}

// Takeover is how what somebody else had in hand of the durable is given back.
func (s *Source) Takeover() *takeover.Takeover { return s.takeover }

// IsThat tells whether the durable is the one of that place which was made then.
func (s *Source) IsThat(stream, durable string, made time.Time) bool {
	return s.stream == stream && s.durable == durable && s.identity.ConsumerCreated.Equal(made)
}

// inHand is what was delivered to this instance and is not settled, also what its pull loop has not looked at: it looks soon.
func (s *Source) inHand() ack.InHand {
	for range 50 {
		if s.pulls.Waiting() == 0 {
			break
		}
		time.Sleep(2 * time.Millisecond)
	}
	return s.Session.InHand()
}

// MayStart tells whether handlers may be started for messages of the source: always, or while this instance certainly has the claim.
func (s *Source) MayStart() bool { return !s.leased() || s.unit.Tenure().Has() }

// Fence is the number of this holder; 0: the source has none.
func (s *Source) Fence() uint64 {
	if !s.leased() {
		return 0
	}
	return s.unit.Tenure().Fence()
}
