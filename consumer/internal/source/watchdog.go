package source

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/backlog"
	"github.com/relaymq/relay/consumer/internal/health"
	"github.com/relaymq/relay/consumer/internal/settle"
	"github.com/relaymq/relay/consumer/internal/watchdog"
	"github.com/relaymq/relay/internal/looks"
)

// watchdogConfig is how the durable is watched that was opened.
func watchdogConfig(s *Source) watchdog.Config {
	in := s.in
	return watchdog.Config{
		Log: s.log, Stream: s.stream, Durable: s.durable, Identity: s.identity, Leased: s.leased(), Health: &s.Health, Pulls: s.Pulls, Gaps: s.ordered.gaps,
		Others: func() int {
			if l := in.Stores.Lives.Load(); l != nil {
				return l.Others()
			}
			return 0
		},
		HasRoom: s.hasRoom, Here: s.Session.Live, Missed: func() uint64 { return s.Takeover.StillMissing(s.ordered.gaps) },
		OfStream: func(ctx context.Context, age time.Duration) (looks.Look, error) {
			return in.Streams.Get(ctx, s.stream, age)
		},
		Share: in.Stores.AmongMany, Timeout: settle.Timeout,
		Ask: func(ctx context.Context, stream looks.Look) (ack.Identity, *jetstream.ConsumerInfo, error) {
			said, err := s.asker.AskOn(ctx, stream)
			return said.Identity, said.Info, err
		},
		GiveBackAgain: s.Takeover.GiveBackAgain,
		Inspect: func(ctx context.Context, stream looks.Look, info *jetstream.ConsumerInfo) health.Edits {
			return s.inspect(ctx, stream, info, stream.Asked)
		},
		Looked: func(l backlog.Look) { s.looked.Store(&l) },
		Edited: s.edited, Lost: s.lose, Rebuilt: func() { s.Count.Rebuilds.Add(1) },
	}
}

// finding is what the server says of the durable.
type finding struct {
	watchdog.Finding
	next *Source // for a durable that was lost and is there again
}

// check asks the server.
func (l *loop) check(ctx context.Context, q watchdog.Question) finding {
	if l.IsLost() {
		l.Watchdog.Doubt() // it is looked for until it is there
		next, err := l.reopen(ctx)
		return finding{watchdog.Finding{Err: err}, next}
	}
	return finding{Finding: l.Watchdog.Look(ctx, q)}
}

// checked acts on what the server said.
func (l *loop) checked(f finding, now time.Time) {
	var differs *DiffersError
	switch {
	case !l.IsLost():
		l.Watchdog.Act(f.Finding, now)
	case errors.As(f.Err, &differs):
		l.Health.StayLost(fmt.Errorf("durable %s was deleted and created again: %w", l.durable, f.Err))
	}
}
