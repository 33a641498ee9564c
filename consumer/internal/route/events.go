package route

import (
	"slices"

	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/subject"
)

// handlesEvents tells whether messages of the route are events of the service: those about it are not published.
func (r Spec) HandlesEvents(service string) bool {
	return slices.ContainsFunc(r.Subjects, func(p string) bool {
		return subject.Overlaps(p, event.Prefix(service)+".>")
	})
}
