package source

import (
	"context"
	"time"

	"github.com/relaymq/relay/consumer/internal/backlog"
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
		s.Watchdog.Doubt()
	}
}

// Wait waits for what the source does beside its routes.
func (s *Source) Wait() {
	s.tidying.Wait()
	s.Unwanted.strays.Wait()
}

// Unmake closes the source, and removes its durable if this start made it.
func (s *Source) Unmake(ctx context.Context) error {
	s.Close()
	return s.Setup.Unmake(ctx, s.identity.ConsumerCreated)
}
