package source

import (
	"context"
	"encoding/json"
	"time"

	"github.com/relaymq/relay/consumer/internal/backlog"
	"github.com/relaymq/relay/consumer/internal/catchup"
	"github.com/relaymq/relay/consumer/internal/takeover"
)

// What others see of a source, and have it do.

// Looked is what the server said last of the durable; nil when it has not, or when the durable is gone.
func (s *Source) Looked() *backlog.Look {
	if s.IsLost() {
		return nil
	}
	return s.looked.Load()
}

// LookAgain asks the server about the durable, unless it has said something since.
func (s *Source) LookAgain(ctx context.Context, since time.Time) {
	if l := s.looked.Load(); l != nil && l.At.After(since) || s.IsLost() {
		return
	}
	if said, err := s.asker.Ask(ctx); err == nil && (said.Info.Paused || s.Health.IsNews(said.Info.Config)) {
		s.watchdog.Doubt()
	}
}

// Oldest is the oldest of the messages that wait.
func (s *Source) Oldest() *backlog.Oldest { return &s.oldest }

// Pending is how many messages the durable had not delivered when the watchdog looked.
func (s *Source) Pending() uint64 { return s.watchdog.Pending() }

// Behind is how many messages of ordered keys wait for what is asked of them first.
func (s *Source) Behind() int64 { return s.ordered.behind.Load() }

// Counters are those of the durable.
func (s *Source) Counters() *Counters { return s.count }

// Continue has the source count on from where another one of the same durable ends.
func (s *Source) Continue(old *Source) { s.count = old.count }

// CatchUp is what is handed over of what the durable had passed; nil: nothing.
func (s *Source) CatchUp() *catchup.Record { return s.catchUp.Record() }

// IsEmpty tells whether no subject of the route is on the stream.
func (s *Source) IsEmpty(route string) bool { return s.unwanted.strays.IsEmpty(route) }

// Contact says that the server was heard, to what was sent then.
func (s *Source) Contact(sent time.Time) { s.pulls.Contact(sent) }

// Wake has the pull loop look whether there is room.
func (s *Source) Wake() { s.pulls.Wake() }

// StopPulling ends the pulls, and waits until what they brought was looked at.
func (s *Source) StopPulling() { s.pulls.Stop() }

// IsDraining tells whether nothing is pulled any more.
func (s *Source) IsDraining() bool { return s.pulls.IsDraining() }

// Wait waits for what the source does beside its routes.
func (s *Source) Wait() {
	s.tidying.Wait()
	s.unwanted.strays.Wait()
}

// Unmake closes the source, and removes its durable if this start made it.
func (s *Source) Unmake(ctx context.Context) error {
	s.Close()
	return s.Setup.Unmake(ctx, s.identity.ConsumerCreated)
}

// Sweeps tells whether this instance sweeps the records of the durable: the first one does of those that read it, for another one may not have its
// route.
func (s *Source) Sweeps(ctx context.Context) bool {
	l := s.in.Stores.Lives.Load()
	if l == nil {
		return true
	}
	question, err := json.Marshal(takeover.Question{Stream: s.stream, Durable: s.durable, Created: s.identity.ConsumerCreated, Reads: true})
	return err != nil || !l.AnyBefore(ctx, question, takeover.ReadsIt)
}
