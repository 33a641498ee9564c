package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/relaymq/relay/consumer/internal/limits"
	"github.com/relaymq/relay/consumer/internal/route"
)

// Limits returns the limits that hold now.
func (r *Engine) Limits() map[string]limits.Limit { return r.Bounds.Now() }

// sharingOf is how this instance divides limits of the whole service with the other instances.
func sharingOf(r *Engine) limits.Sharing {
	return limits.Sharing{
		Membership: r.Fleet,
		Named: func(limit string) bool {
			return slices.ContainsFunc(r.Routes.All(), func(rt *route.Route) bool { return slices.Contains(rt.Spec.Limits, limit) })
		},
		Tell: func(shared map[string]limits.Limit) {
			since, err := r.Membership.Trouble()
			r.Routes.tellOfParts(shared, since, err, time.Now())
		},
	}
}

const (
	// noParts is what routes with a limit of the service wait for while the bucket of the fleet is away.
	noParts = "a part of a limit"
	// partsMissed is for how long the instance may have no session before its routes complain: one that was lost is soon replaced.
	partsMissed = time.Second
)

// tellOfParts has routes complain that can start nothing because this instance has no session; err says why, and is nil while it has one.
func (l *routeList) tellOfParts(shared map[string]limits.Limit, since time.Time, err error, now time.Time) {
	for _, rt := range l.All() {
		i := slices.IndexFunc(rt.Spec.Limits, func(name string) bool { _, is := shared[name]; return is })
		if i < 0 || err == nil {
			rt.Standstill.Troubles.Mended(noParts, now)
		} else if now.Sub(since) >= partsMissed {
			rt.Standstill.Troubles.Note(noParts, fmt.Errorf("this instance could not renew its lease, so it has no part of limit %s: %w", rt.Spec.Limits[i], err), now)
		}
	}
}
