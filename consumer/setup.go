package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/catchup"
	"github.com/relaymq/relay/internal/away"
	"github.com/relaymq/relay/internal/control"
)

// What is found out about a durable before its source is open, and what is done to it then.

// setup is the durable of a source as its routes want it, and what is known of it before the source is open.
type setup struct {
	*binding
	catchUp *catchup.CatchUp
	unknown *atomic.Bool // a message came that no route ever configured on the durable wants

	err      error // why it is not open
	on       jetstream.Stream
	want     jetstream.ConsumerConfig
	have     jetstream.Consumer // nil: it is to be made
	waiting  waiting            // then
	again    []control.Again    // what it brings that was handled before
	made     bool               // by this start
	lookedAt bool               // once: what is said of a stream is said once
}

// differs is why the durable cannot be used as it is, if so.
func (s *setup) differs() *DurableDiffers {
	var d *DurableDiffers
	errors.As(s.err, &d)
	return d
}

// lacksStream tells whether its stream does not exist.
func (s *setup) lacksStream() bool {
	var m *missingStream
	return errors.As(s.err, &m)
}

// waits tells whether the source may be set up later, while others run.
func (s *setup) waits() bool { return away.Is(s.err) || s.differs() != nil || s.lacksStream() }

// missingStream says that there is no stream of that name.
type missingStream struct {
	name string
	err  error
}

func (e *missingStream) Error() string {
	return fmt.Sprintf("stream %s does not exist: add it under streams, or make it with: nats stream add %s", e.name, e.name)
}

func (e *missingStream) Unwrap() error { return e.err }

// look finds out what is to be done to open the source, and whether it can work. It changes nothing.
func (s *setup) look(ctx context.Context) error {
	stream, err := s.relay.js.Stream(ctx, s.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if s.due {
			return fmt.Errorf("stream %s: %w", s.stream, away.Made(err)) // relay made it a moment ago
		}
		return &missingStream{s.stream, err}
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", s.stream, err)
	}
	s.on, s.have, s.want = stream, nil, s.provided().Wanted(stream.CachedInfo().Config.Subjects)
	if !s.lookedAt {
		s.lookedAt = true
		for _, risk := range s.risks(stream.CachedInfo().Config) {
			s.log.Warn("the stream can lose messages that wait: " + risk)
		}
	}
	consumer, err := stream.Consumer(ctx, s.durable)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		if s.waiting, err = s.mayCreate(ctx, stream, s.want); err == nil && s.waiting.chosen > 0 {
			s.again, err = s.handledBefore(ctx, stream, s.want, s.waiting)
		}
		return err
	case errors.Is(err, jetstream.ErrNotPullConsumer):
		return &DurableDiffers{s.stream, s.durable, []string{"it is a push consumer"}}
	case err != nil:
		return fmt.Errorf("durable %s on stream %s: %w", s.durable, s.stream, err)
	}
	s.have = consumer
	if err := s.mayUse(stream, consumer); err != nil {
		return err
	}
	if err = s.mayWiden(ctx, stream, consumer.CachedInfo().Config); err == nil {
		var again []control.Again
		if again, err = s.passedAgain(ctx, stream, consumer.CachedInfo().Config); len(again) > 0 {
			s.again = again
		}
	}
	return err
}

// lookAt is look for many sources side by side.
func lookAt(s *source, ctx context.Context) error { return s.setup.look(ctx) }

// unmake removes a durable that a start made which then failed, unless another instance uses it by now, or it is not the one that was opened.
func (s *setup) unmake(ctx context.Context, created time.Time) error {
	if !s.made {
		return nil
	}
	consumer, err := s.on.Consumer(ctx, s.durable)
	if err != nil {
		return err
	}
	i := consumer.CachedInfo()
	if !i.Created.Equal(created) || i.NumWaiting > 0 || i.Delivered.Consumer > 0 {
		return nil
	}
	if err = s.on.DeleteConsumer(ctx, s.durable); err == nil {
		s.log.Info("removed the durable that was made: the start failed")
	}
	return err
}
