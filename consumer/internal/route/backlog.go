package route

import (
	"time"

	"github.com/relaymq/relay/internal/control"
)

// Backlog is what waits for the route; nil while its durable is not known.
func (rt *Route) Backlog() *control.Backlog {
	var b *control.Backlog
	due := uint64(0)
	for _, s := range rt.Home.OpenSources() {
		l := s.Looked()
		if !s.Serves(&rt.Source) || l == nil {
			continue
		}
		if s.Due {
			due = l.Pending
			if b != nil {
				b.Outstanding += l.Outstanding
			}
			continue
		}
		b = &control.Backlog{Stream: l.Pending, Outstanding: l.Outstanding, At: l.At}
	}
	if b == nil {
		return nil
	}
	if c := rt.ParkedNow.Last(); c != nil {
		n := c.N + due
		b.Parked = &n
	}
	return b
}

// Oldest is when the oldest message that waits for the route was published; the zero time when none does.
func (rt *Route) Oldest() (at time.Time, known bool) {
	for _, s := range rt.Home.OpenSources() {
		if !s.Serves(&rt.Source) || s.Due {
			continue
		}
		if found, ok := s.Oldest.Last(); ok && !s.IsLost() {
			at, known = found, true
		}
	}
	if c := rt.ParkedNow.Last(); known && c != nil && !c.Oldest.IsZero() && (at.IsZero() || c.Oldest.Before(at)) {
		at = c.Oldest
	}
	return at, known
}

// CatchUp tells how much of what the durable had passed is handed over; nil when all is.
func (rt *Route) CatchUp() *control.CatchUpStatus {
	var c control.CatchUpStatus
	for _, s := range rt.Home.OpenSources() {
		r := s.CatchUp.Record()
		if r == nil || !s.Serves(&rt.Source) {
			continue
		}
		for _, g := range r.Ranges {
			if g.IsDone() || s.RouteOfPattern(g.Pattern) != &rt.Source {
				continue
			}
			c.Subjects = append(c.Subjects, g.Pattern)
			c.Handed, c.Held = c.Handed+g.Handed, c.Held+g.Held
			if c.Since.IsZero() || g.Began.Before(c.Since) {
				c.Since = g.Began
			}
		}
	}
	if len(c.Subjects) == 0 {
		return nil
	}
	return &c
}
