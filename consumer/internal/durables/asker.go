package durables

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/internal/transient"
)

// Asker asks the server about a durable.
type Asker struct {
	JS              jetstream.JetStream
	Stream, Durable string
	Timeout         time.Duration // of Ask
	// Saw is told what the server says.
	Saw func(*jetstream.ConsumerInfo)
}

// Answer is what the server says of a durable and of its stream.
type Answer struct {
	Identity ack.Identity
	Stream   jetstream.Stream
	Info     *jetstream.ConsumerInfo
}

// Ask asks about both. It blocks for Timeout at most.
func (a *Asker) Ask(ctx context.Context) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, a.Timeout)
	defer cancel()
	stream, err := transient.Ask(ctx, a.JS.Conn(), func(ctx context.Context) (jetstream.Stream, error) { return a.JS.Stream(ctx, a.Stream) })
	if err != nil {
		return Answer{}, err
	}
	return a.AskOn(ctx, stream)
}

// AskOn is Ask for who knows the stream. It blocks until ctx is done at most.
func (a *Asker) AskOn(ctx context.Context, stream jetstream.Stream) (Answer, error) {
	consumer, err := transient.Ask(ctx, a.JS.Conn(), func(ctx context.Context) (jetstream.Consumer, error) { return stream.Consumer(ctx, a.Durable) })
	if err != nil {
		return Answer{}, err
	}
	info := consumer.CachedInfo()
	a.Saw(info)
	return Answer{ack.Identity{StreamCreated: stream.CachedInfo().Created, ConsumerCreated: info.Created}, stream, info}, nil
}
