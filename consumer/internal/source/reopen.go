package source

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/settle"
	"github.com/relaymq/relay/internal/provision"
)

// A durable that was deleted, or whose stream was, is not made again while relay runs: where it is to begin is for people to
// say, and on a stream that keeps its messages the beginning would have everything handled once more. Its routes say what
// became of it. When somebody has made it, with the settings that relay needs, another source takes over, with a session
// of its own: the old one was abandoned, so that what was in hand can settle nothing in the new stream.

// KeepOpen runs a source, and those that take over from it, until ctx is done.
func (s *Source) KeepOpen(ctx context.Context) {
	for s != nil {
		next := s.loop.run(ctx)
		if next != nil && !s.in.Replace(s, next) {
			next.Close()
			next = nil
		}
		s = next
	}
}

// IsLost tells whether the durable is gone, and looked for.
func (s *Source) IsLost() bool { return s.Health.IsLost() && !s.Pulls.IsDraining() }

// reopen opens a durable that was lost and is there again. It never makes or changes one.
func (s *Source) reopen(ctx context.Context) (*Source, error) {
	ctx, cancel := context.WithTimeout(ctx, settle.Timeout)
	defer cancel()
	stream, err := s.in.JS.Stream(ctx, s.stream)
	if err != nil {
		return nil, err
	}
	consumer, err := stream.Consumer(ctx, s.durable)
	if errors.Is(err, jetstream.ErrNotPullConsumer) {
		err = &DiffersError{s.stream, s.durable, []string{"it is a push consumer"}}
	}
	if err != nil {
		return nil, err
	}
	info := consumer.CachedInfo()
	if c := s.Setup.Judge(info.Config, stream, provision.Ever); (!c.Own || c.Policy) && len(c.Differs()) > 0 {
		return nil, &DiffersError{s.stream, s.durable, c.Differs()}
	}
	next := newSourceOf(s.binding)
	next.unit, next.Count = s.unit, s.Count
	for _, rt := range next.routes {
		if s.due {
			rt.Group.RenumberedReplays()
		} else {
			rt.Group.Renumbered()
		}
	}
	// The pulls of the session before were sent to it, and it may be pinned to them.
	if next.leased() {
		err = next.unpin(ctx, stream)
	}
	if err == nil {
		err = next.open(ctx, stream, consumer)
	}
	if err != nil {
		next.Close()
		return nil, err
	}
	s.log.Warn("the durable was created again by somebody else; continuing with it", "at", info.Delivered.Stream, "waiting", info.NumPending)
	return next, nil
}
