package generations

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/partition"
	"github.com/relaymq/relay/internal/transient"
)

// Formers are the generations between that of a part and the newest one. Make them with [NewFormers]. Wait is for all goroutines.
type Formers struct {
	turn chan struct{} // held by who asks the server
	// Guarded by turn:
	between []*partition.Ending // those that were not through when the server was asked last
	asked   time.Time           // when that was
}

// NewFormers is for a part that hands over; with nil there are none.
func NewFormers(p *Part) *Formers {
	f := &Formers{turn: make(chan struct{}, 1)}
	if p != nil {
		for _, g := range p.Between {
			f.between = append(f.between, &partition.Ending{Generation: g})
		}
	}
	return f
}

const (
	askFormersEvery = 50 * time.Millisecond
	// waitForFormers is how long a message waits in its slot, which a drain waits for.
	waitForFormers = time.Second
	// FormersAgain is how long it waits outside then, each time.
	FormersAgain = 100 * time.Millisecond
)

var errFormersFirst = errors.New("messages that were handed over before come first")

// Wait waits until what the part handed over to the generations between was handed over from there: it comes before what
// the part has still. When the number changes twice in a moment, both would go to the newest one side by side otherwise, and mix up the order of a key.
// Generations between are sealed by then, so that a holder who does not know the newest one adds nothing. It blocks for a second at most, and returns an
// error when they are not through by then.
func (f *Formers) Wait(ctx context.Context, js jetstream.JetStream) error {
	ctx, cancel := context.WithTimeoutCause(ctx, waitForFormers, errFormersFirst)
	defer cancel()
	select {
	case f.turn <- struct{}{}:
		defer func() { <-f.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for len(f.between) > 0 {
		if transient.Pause(ctx, time.Until(f.asked.Add(askFormersEvery))); ctx.Err() != nil {
			return context.Cause(ctx)
		}
		f.asked = time.Now()
		if err := f.ask(ctx, js); err != nil {
			return err
		}
	}
	return nil
}

// ask takes those out that are through, up to the first that is not. What was heard stays known, also when the server does not answer for the next one.
func (f *Formers) ask(ctx context.Context, js jetstream.JetStream) error {
	for len(f.between) > 0 {
		if through, err := f.between[0].Through(ctx, js); err != nil || !through {
			return err
		}
		f.between = f.between[1:]
	}
	return nil
}
