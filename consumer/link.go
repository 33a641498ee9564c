package consumer

import (
	"sync/atomic"
	"time"
)

// A link that brings less within AckWait than the pulls ask for delivers what is somebody else's by then: it comes again, as late as
// before, and in the end nothing is handled. So no more is asked for than the link brought lately within a part of AckWait. How it
// does is told by the answers that prove contact: they stand behind the messages that are on their way, and so come as late as
// a message does.

// link bounds the bytes that all durables together may have asked for.
type link struct {
	limit   atomic.Int64
	ackWait atomic.Int64  // the shortest of all routes so far
	shorter chan struct{} // holds a value when ackWait became shorter
	turns   turns

	// Of the one who proves contact:
	nearest time.Duration // the shortest round trip so far
	bytes   uint64        // received in all, when it was measured last
	at      time.Time
}

const (
	// linkPart of AckWait is how long what is on its way may take. With less than half of that more is asked for.
	linkPart = 8
	// firstComing is asked for at the beginning, for each second of AckWait. It doubles with each proof of contact, up to maxComing.
	firstComing = 128 << 10
)

func newLink(ackWait time.Duration) *link {
	l := &link{shorter: make(chan struct{}, 1)}
	l.ackWait.Store(int64(ackWait))
	l.limit.Store(min(maxComing, max(minLeast, int64(ackWait.Seconds()*firstComing))))
	return l
}

// within is the shortest AckWait.
func (l *link) within() time.Duration { return time.Duration(l.ackWait.Load()) }

// every is how often contact is proven: leases count from the last proof.
func (l *link) every() time.Duration { return min(time.Second, l.within()/8) }

// cover takes the AckWait of another route into account.
func (l *link) cover(ackWait time.Duration) {
	if ackWait >= l.within() {
		return
	}
	l.ackWait.Store(int64(ackWait))
	select {
	case l.shorter <- struct{}{}:
	default:
	}
}

// coming is how many bytes may be on their way.
func (l *link) coming() int { return int(l.limit.Load()) }

// measured takes a round trip, or how long one takes that has not ended, and how many bytes have come by now in all.
func (l *link) measured(trip time.Duration, ended bool, bytes uint64, now time.Time) {
	if ended && (l.nearest == 0 || trip < l.nearest) {
		l.nearest = trip
	}
	since, brought := now.Sub(l.at), bytes-l.bytes
	first := l.at.IsZero()
	l.at, l.bytes = now, bytes
	part := l.within() / linkPart
	switch queued := trip - l.nearest; {
	case queued < part/2:
		l.limit.Store(min(maxComing, 2*l.limit.Load()))
	case queued > part && !first && since > 0:
		within := int64(float64(brought) * float64(part) / float64(since))
		l.limit.Store(max(minLeast, min(within, l.limit.Load())))
	}
}
