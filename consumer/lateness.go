package consumer

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/internal/trouble"
)

// A message that arrives after its AckWait is not started: another instance may have it. When all of them arrive so, because the
// link is too slow, messages come again and again and none is handled.

// late is since when all messages of a durable arrive after their AckWait. The times are Unix nanoseconds; 0 is never.
type late struct {
	since, last atomic.Int64
	said        trouble.Seldom
}

// lateFor is how long after the latest late message the next one belongs to the same trouble, at least.
const lateFor = time.Minute

func (l *late) begin(now time.Time) {
	l.since.CompareAndSwap(0, now.UnixNano())
	l.last.Store(now.UnixNano())
}

// end says that a message arrived in time.
func (l *late) end() {
	if l.since.Load() != 0 {
		l.since.Store(0)
	}
}

// reason says that all messages have arrived late for that long. One late message that another instance handled is no trouble.
func (l *late) reason(most time.Duration, now time.Time) error {
	since, last := l.since.Load(), l.last.Load()
	if since == 0 || time.Duration(last-since) < most || time.Duration(now.UnixNano()-last) > max(most, lateFor) {
		return nil
	}
	return fmt.Errorf("all messages have arrived after their ack wait since %s, and none was started: the link to the server is too slow",
		time.Unix(0, since).UTC().Format(time.RFC3339))
}

// cameLate notes a message that arrived after its AckWait.
func (s *source) cameLate(now time.Time) {
	s.count.late.Add(1)
	if now.UnixNano()-s.late.last.Load() > int64(max(s.relay.cfg.Stalled, lateFor)) {
		s.late.end()
	}
	s.late.begin(now)
	if others, ok := s.late.said.May(now); ok {
		s.log.Warn("a message arrived after its ack wait and is not started; it comes again. If this goes on, the link to the server is too "+
			"slow: make ack_wait longer", "others", others)
	}
}
