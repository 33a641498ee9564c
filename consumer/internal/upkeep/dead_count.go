package upkeep

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/internal/dlq"
)

// deadCount is how many dead letters are stored, of each route: also those of earlier processes and other instances.
type deadCount struct {
	routes atomic.Pointer[map[string]int]
	// Touched by WatchUse alone: what was last counted, and when it may be counted again.
	seen struct{ entries, last uint64 }
	next time.Time
}

// countRest times what a count took is the least pause after it: the server looks through its subjects, once for each route.
const countRest = 20

// stored is how many dead letters of a route there are; known is false before the first count.
func (d *deadCount) stored(route string) (n int, known bool) {
	byRoute := d.routes.Load()
	if byRoute == nil {
		return 0, false
	}
	return (*byRoute)[route], true
}

// countDead counts again if anything was stored or removed since.
func (u *Upkeep) countDead(ctx context.Context, use dlq.Usage, now time.Time) {
	d := &u.use.dead
	seen := struct{ entries, last uint64 }{use.Entries, use.Last}
	if d.routes.Load() != nil && d.seen == seen || now.Before(d.next) {
		return
	}
	routes := u.cfg.Routes()
	byRoute := make(map[string]int, len(routes))
	if use.Entries > 0 {
		for _, name := range routes {
			if _, known := byRoute[name]; known {
				continue
			}
			n, _, err := u.cfg.Stores.Dead.Count(ctx, dlq.Filter{Route: name})
			if err != nil {
				u.cfg.Log.Debug("cannot count the dead letters of a route; retrying", "route", name, "error", err)
				return
			}
			byRoute[name] = n
		}
	}
	d.routes.Store(&byRoute)
	d.seen, d.next = seen, time.Now().Add(countRest*time.Since(now))
}
