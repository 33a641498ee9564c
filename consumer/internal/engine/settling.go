package engine

import (
	"context"

	"github.com/relaymq/relay/consumer/internal/settle"
	"github.com/relaymq/relay/consumer/internal/unstored"
	"github.com/relaymq/relay/internal/beat"
)

// askTimeout bounds one question to the server. A time-out proves nothing.
const askTimeout = settle.Timeout

// tryHeld tries again to store the outcomes of held messages, until ctx is done.
func (l *routeList) tryHeld(ctx context.Context) {
	tick := beat.NewTicker(unstored.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			tick.Next()
			for _, rt := range l.All() {
				rt.Standstill.Troubles.Expire(now)
				rt.Path.Retry(now)
			}
		}
	}
}
