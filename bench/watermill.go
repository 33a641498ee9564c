package main

import (
	"context"

	"github.com/ThreeDotsLabs/watermill"
	wmjs "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/jetstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go/jetstream"
)

// watermillRouter is a router with one handler for each durable. By default Watermill waits for the confirmation of each
// ack; with async it sends it like plain nats.go.
func watermillRouter(t *turn, async bool) (func(), error) {
	handle, err := t.handle()
	if err != nil {
		return nil, err
	}
	all, err := t.consumers()
	if err != nil {
		return nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	for _, c := range all {
		sub, err := wmjs.NewSubscriber(wmjs.SubscriberConfig{
			Conn: t.nc, Logger: watermill.NopLogger{}, AckAsync: async,
			ResourceInitializer: func(context.Context, jetstream.JetStream, string) (jetstream.Consumer, func(context.Context, watermill.LoggerAdapter), error) {
				return c, nil, nil
			},
		})
		if err != nil {
			return nil, err
		}
		name := c.CachedInfo().Name
		router.AddConsumerHandler(name, name, sub, func(m *message.Message) error { return handle("", m.Payload) })
	}
	failed := make(chan error, 1)
	go func() { failed <- router.Run(context.Background()) }()
	select {
	case err := <-failed:
		return nil, err
	case <-router.Running():
	}
	// It ends with its process: closed while messages arrive, it sends on a closed channel (watermill-nats 2.1.3).
	return func() {}, nil
}
