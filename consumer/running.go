package consumer

import (
	"github.com/relaymq/relay/consumer/internal/roster"
	"github.com/relaymq/relay/consumer/internal/source"
)

// running are the units that run, with their open sources.
type running struct {
	*roster.Roster[*unit, *source.Source]
}

func newRunning() *running {
	return &running{roster.New(func(s *source.Source) (*unit, bool) {
		u, has := s.Unit().(*unit)
		return u, has
	})}
}

// closeSources ends what was opened, when Run cannot go on.
func (r *running) closeSources() {
	for _, s := range r.Clear() {
		s.Close()
	}
}
