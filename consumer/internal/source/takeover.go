package source

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/takeover"
	"github.com/relaymq/relay/internal/inhand"
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
func takeoverConfig(s *Source) takeover.Config {
	return takeover.Config{
		Conn: s.in.Conn, Log: s.log, Stream: s.stream, Durable: s.durable, AckWait: func() time.Duration { return s.routes[0].AckWait },
		Holds: s.MayStart, Records: func() takeover.Records { return s.Records }, InHand: func() inhand.Snapshot { return s.Session.InHand() },
		Delivered: func() inhand.Snapshot { return inHand(s) }, Ask: func(ctx context.Context) (*jetstream.ConsumerInfo, error) {
			said, err := s.asker.Ask(ctx)
			return said.Info, err
		},
	}
}

// inHand is what was delivered to this instance and is not settled, also what its pull loop has not looked at: it looks soon.
func inHand(s *Source) inhand.Snapshot {
	for range 50 {
		if s.Pulls.Waiting() == 0 {
			break
		}
		time.Sleep(2 * time.Millisecond)
	}
	return s.Session.InHand()
}
