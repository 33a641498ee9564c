package engine

import (
	"github.com/relaymq/relay/consumer/internal/roster"
	"github.com/relaymq/relay/consumer/internal/source"
)

// running are the units that run, with their open sources.
type running struct {
	*roster.Roster[*Unit, *source.Source]
}

// newRunning has none.
func newRunning() *running {
	return &running{roster.New(func(s *source.Source) (*Unit, bool) {
		u, has := s.Unit().(*Unit)
		return u, has
	})}
}

// closeSources ends what was opened, when Run cannot go on.
func (r *running) closeSources() {
	for _, s := range r.Clear() {
		s.Close()
	}
}
