package route

import "github.com/relaymq/relay/internal/control"

// catchUp tells how much of what the durable had passed is handed over; nil when all is.
func (rt *Route) CatchUp() *control.CatchUpStatus {
	var c control.CatchUpStatus
	for _, s := range rt.Home.Open() {
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
