package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/relaymq/relay/consumer/internal/batches"
	"github.com/relaymq/relay/consumer/internal/usercode"
	"github.com/relaymq/relay/internal/supervise"
	"github.com/relaymq/relay/supervisor"
)

// Batch hands several messages at once to a [BatchHandler]. Each of them has a slot of the route while it waits for the others. So
// all checks that come before an attempt have been made for it: keys, deadlines, callers.
//
// A batch that fails as a whole is halved within the same attempt until the messages that fail are alone: only these spend an attempt.
// Three messages in a row that fail alone are taken for an outage: the others are redelivered and spend no attempt. When a batch
// panics, does not return or runs out of time, each of its messages is redelivered at once and runs alone, and only then can spend an
// attempt.
type Batch struct {
	// Size is how many messages are in a batch at most, and no more than the route's Concurrency. Zero means 100; 2 to 10,000.
	Size int `koanf:"size"`
	// Wait is how long the first message of a batch waits for the others. Zero means 200ms; at most half of the route's timeout.
	Wait time.Duration `koanf:"wait"`
	// Bytes of the bodies of a batch. Zero means 1MiB. A larger message goes alone.
	Bytes Bytes `koanf:"bytes"`
}

// WithDefaults fills the zero fields.
func (b Batch) WithDefaults() Batch {
	if b.Size == 0 {
		b.Size = 100
	}
	if b.Wait == 0 {
		b.Wait = 200 * time.Millisecond
	}
	if b.Bytes == 0 {
		b.Bytes = 1 << 20
	}
	return b
}

// concurrency of a route with batches that does not say it: several batches are gathered or handled at once.
func (b Batch) concurrency() int { return min(4*b.WithDefaults().Size, 65_536) }

// validateBatch says what is wrong with the batches, but for their handler.
func (r Route) validateBatch(fault func(format string, args ...any)) {
	b := r.Batch
	if b == nil {
		return
	}
	if b.Size < 2 || b.Size > 10_000 {
		fault("batch.size: must be 2 to 10000 (got %d)", b.Size)
	}
	if b.Wait <= 0 || b.Wait > r.Timeout/2 {
		fault("batch.wait: must be above 0 and at most half of the timeout, %v (got %v)", r.Timeout/2, b.Wait)
	}
	if b.Bytes < 1<<10 {
		fault("batch.bytes: must be at least 1KiB (got %v)", b.Bytes)
	}
	if r.Order == supervisor.OrderKey {
		fault("batch: cannot be combined with order: key, which handles the messages of a key one after the other; remove one of the two")
	}
}

// BatchHandler is a [Handler] that can handle several messages at once; see [Route.Batch].
type BatchHandler interface {
	Handler
	// HandleBatch handles the messages. It returns an error for each of them, nil or with the verdicts that [Handler] knows, or no
	// errors at all when all succeeded. With err the batch failed as a whole, and nothing is known of the single messages. An err that
	// is [Drop] or [StopChild] ends all of them. [Dead] is believed of a message that ran alone: a batch that is dead as a whole is
	// halved like one that failed.
	//
	// ctx ends when the first of their attempts times out, or when nobody wants any of them any more. A handler that ignores that is
	// given up after half a second; too many of those stop the route.
	HandleBatch(ctx context.Context, batch []*Msg) (errs []error, err error)
}

// BatchFunc is a function as a [BatchHandler]. A message that goes alone is a batch of one.
type BatchFunc func(ctx context.Context, batch []*Msg) (errs []error, err error)

// HandleBatch calls f.
func (f BatchFunc) HandleBatch(ctx context.Context, batch []*Msg) ([]error, error) {
	return f(ctx, batch)
}

// Handle calls f with one message.
func (f BatchFunc) Handle(ctx context.Context, m *Msg) error {
	errs, err := handleAll(ctx, f, []*Msg{m})
	if err == nil && len(errs) > 0 {
		err = errs[0]
	}
	return err
}

// handleAll calls h. An answer that is not for as many messages as were sent says nothing of any of them.
func handleAll(ctx context.Context, h BatchHandler, batch []*Msg) ([]error, error) {
	errs, err := h.HandleBatch(ctx, batch)
	if err == nil && len(errs) != 0 && len(errs) != len(batch) {
		err = fmt.Errorf("HandleBatch returned %d errors for %d messages", len(errs), len(batch))
	}
	return errs, err
}

// batcher is the [Handler] of a route with batches.
type batcher struct{ *batches.Batcher }

// newBatcher is for a route with so many slots: more messages than that never come together.
func newBatcher(h BatchHandler, cfg Batch, concurrency int) *batcher {
	return &batcher{batches.New(batches.Config{
		Size: min(cfg.Size, concurrency), Wait: cfg.Wait, Bytes: int(cfg.Bytes),
		Call: func(ctx context.Context, list []batches.Message) ([]error, error) {
			batch := make([]*Msg, len(list))
			for i, m := range list {
				batch[i] = m.(inBatch).Msg
			}
			return handleAll(ctx, h, batch)
		},
		Means: meaningOf,
		Ended: func(p any) error {
			if p == nil {
				return &supervise.PanicError{Goexit: true}
			}
			return usercode.Error(usercode.PanicText(p))
		},
	})}
}

// Handle has m handled in a batch, or alone.
func (b *batcher) Handle(ctx context.Context, m *Msg) error {
	switch err := b.Batcher.Handle(ctx, inBatch{m}).(type) {
	case *batches.NotStartedError:
		return NotStarted(err.Err)
	case *batches.HungError:
		return FailRoute(err)
	case *batches.AloneError:
		return carry(supervise.Verdict{Kind: supervise.Snooze, Delay: err.Delay, Err: err.Err})
	default:
		return err
	}
}

// meaningOf is what the verdict of a batch, or of a message that ran alone, is for the others.
func meaningOf(err error) batches.Meaning {
	switch v, _ := usercode.VerdictOf(err); {
	case v.Kind == supervise.Ack, v.Kind == supervise.Drop:
		return batches.Done
	case v.FailRoute, v.NotStarted, v.Pause, v.Kind == supervise.Snooze:
		return batches.Elsewhere
	case v.Kind == supervise.Dead:
		return batches.Dead
	}
	return batches.Failed
}

// inBatch is a message as a batch has it.
type inBatch struct{ *Msg }

func (m inBatch) ID() string                          { return m.Msg.ID }
func (m inBatch) Size() int                           { return len(m.Data) }
func (m inBatch) Wanted() func(context.Context) error { return m.gate }
