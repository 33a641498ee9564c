package consumer

import "github.com/relaymq/relay/consumer/internal/roster"

// running are the units that run, with their open sources.
type running struct {
	*roster.Roster[*unit, *source]
	late chan struct{} // holds a value for each source that is being opened late
}

func newRunning() *running {
	return &running{roster.New(func(s *source) (*unit, bool) { return s.unit, s.unit != nil }), make(chan struct{}, atOnce)}
}

// closeSources ends what was opened, when Run cannot go on.
func (r *running) closeSources() {
	for _, s := range r.Clear() {
		s.close()
	}
}
