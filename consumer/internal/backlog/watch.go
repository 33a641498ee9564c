package backlog

import (
	"context"
	"time"

	"github.com/relaymq/relay/internal/beat"
)

// Parked is the count of what a route has in a stream of relay's own.
type Parked struct {
	*Count
	Stored         uint64 // how many this instance has put there
	Stream, Filter string
}

// Waiting is the oldest message of a durable, as the server said lately of it.
type Waiting struct {
	*Oldest
	Look     *Look
	Stream   string
	Patterns []string
}

// Watch keeps what an instance counts up to date. All of it is needed.
type Watch struct {
	Server  *Server
	Parked  func() []Parked
	Waiting func() []Waiting
}

// Run looks once a second at all of them, one after the other, until ctx is done.
func (w Watch) Run(ctx context.Context) {
	tick := beat.NewTicker(time.Second)
	defer tick.Stop()
	for {
		for _, p := range w.Parked() {
			p.Update(ctx, w.Server, p.Stored, p.Stream, p.Filter)
		}
		for _, o := range w.Waiting() {
			o.Update(ctx, w.Server, o.Look, o.Stream, o.Patterns)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			tick.Next()
		}
	}
}
