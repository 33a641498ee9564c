package events

import (
	"context"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Message is an event as it is stored. What it holds is not to be trusted.
type Message struct {
	Subject string
	Data    []byte
}

// Stored returns the newest events on some subjects, at most limit of them, oldest first. It reads all since then, or all there
// are: a stream of events is bounded.
func Stored(ctx context.Context, stream jetstream.Stream, subjects []string, since time.Time, limit int) ([]Message, error) {
	cfg := jetstream.OrderedConsumerConfig{FilterSubjects: subjects}
	if !since.IsZero() {
		cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &since
	}
	c, err := stream.OrderedConsumer(ctx, cfg)
	if err != nil {
		return nil, err
	}
	info, err := c.Info(ctx)
	if err != nil {
		return nil, err
	}
	var list []Message
	if info.NumPending == 0 {
		return nil, nil
	}
	messages, err := c.Messages()
	if err != nil {
		return nil, err
	}
	defer messages.Stop()
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return nil, err
		}
		list = append(list, Message{m.Subject(), m.Data()})
		if len(list) > 2*limit {
			list = slices.Clone(list[len(list)-limit:])
		}
		if meta, err := m.Metadata(); err != nil || meta.NumPending == 0 {
			return list[max(0, len(list)-limit):], nil
		}
	}
}
