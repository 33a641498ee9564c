package health

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/internal/trouble"
)

// A message that arrives after its AckWait is not started: another instance may have it. When all of them arrive so, because the
// link is too slow, messages come again and again and none is handled.

// Late is since when all messages of a durable arrive after their AckWait. The times are Unix nanoseconds; 0 is never.
type Late struct {
	since, last atomic.Int64
	said        trouble.Throttle
}

// lateFor is how long after the latest late message the next one belongs to the same trouble, at least.
const lateFor = time.Minute

// Came notes a message that arrived after its AckWait, and has the log say so. Most is after how long of that there is trouble.
func (l *Late) Came(log *slog.Logger, most time.Duration, now time.Time) {
	if now.UnixNano()-l.last.Load() > int64(max(most, lateFor)) {
		l.End()
	}
	l.begin(now)
	if others, ok := l.said.Allow(now); ok {
		log.Warn("a message arrived after its ack wait and is not started; it is redelivered. If this continues, the link to the server is too "+
			"slow: make ack_wait longer", "others", others)
	}
}

func (l *Late) begin(now time.Time) {
	l.since.CompareAndSwap(0, now.UnixNano())
	l.last.Store(now.UnixNano())
}

// End says that a message arrived in time.
func (l *Late) End() {
	if l.since.Load() != 0 {
		l.since.Store(0)
	}
}

// Reason says that all messages have arrived late for that long. One late message that another instance handled is no trouble.
func (l *Late) Reason(most time.Duration, now time.Time) error {
	since, last := l.since.Load(), l.last.Load()
	if since == 0 || time.Duration(last-since) < most || time.Duration(now.UnixNano()-last) > max(most, lateFor) {
		return nil
	}
	return fmt.Errorf("all messages have arrived after their ack wait since %s, and none was started: the link to the server is too slow",
		time.Unix(0, since).UTC().Format(time.RFC3339))
}
