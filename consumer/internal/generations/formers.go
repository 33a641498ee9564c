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
	between []partition.Generation
	turn    chan struct{} // held by who asks the server
	through bool          // guarded by turn
	asked   time.Time     // likewise
}

// NewFormers is for a part that hands over; with nil there are none.
func NewFormers(p *Part) *Formers {
	f := &Formers{turn: make(chan struct{}, 1)}
	if p != nil {
		f.between = p.Between
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
	if len(f.between) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, waitForFormers, errFormersFirst)
	defer cancel()
	select {
	case f.turn <- struct{}{}:
		defer func() { <-f.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for !f.through {
		if transient.Pause(ctx, time.Until(f.asked.Add(askFormersEvery))); ctx.Err() != nil {
			return context.Cause(ctx)
		}
		f.asked = time.Now()
		through, err := f.areThrough(ctx, js)
		if err != nil {
			return err
		}
		f.through = through
	}
	return nil
}

// areThrough asks for one generation after the other. It says yes only when all have answered.
func (f *Formers) areThrough(ctx context.Context, js jetstream.JetStream) (bool, error) {
	for _, g := range f.between {
		if through, err := g.Through(ctx, js); err != nil || !through {
			return false, err
		}
	}
	return true, nil
}
