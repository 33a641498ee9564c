package consumer

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/consumer/internal/watchdog"
	"github.com/relaymq/relay/internal/retry"
)

// During a rolling change, an instance keeps messages for no route that the routes of a newer instance want: it does not know
// of those routes yet, or it has a route of the same name with fewer subjects. Each instance looks for what its own routes
// want among what is kept for no route, and has it come due.

// claims is how far a source has looked. The patterns of its routes never change, so it looks at each message once.
type claims struct {
	busy  atomic.Bool
	began time.Time // of the pull loop only: when it last looked
	after uint64    // the sequence of the retry stream up to which it has looked
}

// claimSoon looks for such messages every watchdog.LookEvery. It does not block.
func (s *source) claimSoon(now time.Time) {
	if c := &s.claims; !s.due && now.Sub(c.began) >= watchdog.LookEvery && !c.busy.Swap(true) {
		c.began = now
		s.tidying.Go(func() {
			defer c.busy.Store(false)
			n, err := s.claim(s.routes[0].path.Work)
			if n > 0 {
				s.log.Info("handed over messages that were kept because no route wanted them", "count", n)
			}
			if err != nil {
				s.log.Debug("not all messages kept for no route were checked; the next check continues from there", "error", err)
			}
		})
	}
}

// claim looks at what came since, for some seconds at most.
func (s *source) claim(ctx context.Context) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	retries, c := s.relay.stores.Retries, &s.claims
	in, err := s.relay.streams.Get(ctx, retries.Name(), watchdog.LookEvery/2)
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
	n, err = retries.Move(ctx, retry.Move{From: retry.NoRoute, Stream: s.stream, After: c.after, To: func(o retry.Origin) string {
		if rt := s.routeOf(o.Subject); rt != nil && o.Consumer == s.durable {
			return rt.cfg.Name
		}
		return ""
	}})
	if err == nil {
		c.after = last
	}
	return n, err
}

// othersWant tells whether a message that came due for a route here is for another instance, whose route of the same name has
// more subjects. What an operator replayed to the route is always for it.
func (s *source) othersWant(o retry.Origin) bool {
	if o.Replay > 0 {
		return false
	}
	for _, main := range s.relay.running.sources() {
		if !main.due && main.stream == s.origin && main.durable == o.Consumer && main.serves(s.routes[0]) && main.routeOf(o.Subject) == nil {
			_, to, known := main.strays.WantedBy(o.Subject)
			return known && to == retry.NoRoute
		}
	}
	return false
}
