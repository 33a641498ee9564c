package strays

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/internal/looks"
	"github.com/relaymq/relay/internal/pool"
	"github.com/relaymq/relay/internal/retry"
)

// During a rolling change, an instance keeps messages for no route that the routes of a newer instance want: it does not know
// of those routes yet, or it has a route of the same name with fewer subjects. Each instance looks for what its own routes
// want among what is kept for no route, and has it come due.

// claimEvery is how often it looks, and claimFor how long that may take.
const claimEvery, claimFor = 10 * time.Second, 5 * time.Second

// ClaimsConfig is of a durable.
type ClaimsConfig struct {
	Log             *slog.Logger
	Stream, Durable string
	Looks           *looks.Streams
	Retries         func() *retry.Stream
	// Wants is the route here that gets what has that subject; empty: none.
	Wants func(subject string) (route string)
	Work  func() context.Context // done when nothing may be moved any more
	Pool  *pool.Pool
}

// Claims is how far one durable has looked. The patterns of its routes never change, so it looks at each message once.
type Claims struct {
	cfg   ClaimsConfig
	busy  atomic.Bool
	began time.Time // when it last looked; of the pull loop only
	after uint64    // the sequence of the retry stream up to which it has looked
}

// NewClaims has looked at nothing.
func NewClaims(cfg ClaimsConfig) *Claims { return &Claims{cfg: cfg} }

// Soon looks for such messages every 10 seconds. It is for the pull loop, and does not block.
func (c *Claims) Soon(now time.Time) {
	if now.Sub(c.began) < claimEvery || c.busy.Swap(true) {
		return
	}
	c.began = now
	c.cfg.Pool.Go(func() {
		defer c.busy.Store(false)
		n, err := c.look(c.cfg.Work())
		if n > 0 {
			c.cfg.Log.Info("handed over messages that were kept because no route wanted them", "count", n)
		}
		if err != nil {
			c.cfg.Log.Debug("not all messages kept for no route were checked; the next check continues from there", "error", err)
		}
	})
}

// look looks at what came since, for some seconds at most.
func (c *Claims) look(ctx context.Context) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, claimFor)
	defer cancel()
	retries := c.cfg.Retries()
	in, err := c.cfg.Looks.Get(ctx, retries.Name(), claimEvery/2)
	if err != nil {
		return 0, err
	}
	last := in.CachedInfo().State.LastSeq
	if last == c.after {
		return 0, nil
	}
	if last < c.after {
		c.after = 0 // it was made anew
	}
	n, err = retries.Move(ctx, retry.Move{From: retry.NoRoute, Stream: c.cfg.Stream, After: c.after, To: func(o retry.Origin) string {
		if o.Consumer != c.cfg.Durable {
			return ""
		}
		return c.cfg.Wants(o.Subject)
	}})
	if err == nil {
		c.after = last
	}
	return n, err
}
