// Package link says how many bytes the durables of a process may have asked for, and whose turn it is to ask.
//
// A link that brings less within AckWait than the pulls ask for delivers what is somebody else's by then: it comes again, as late as
// before, and in the end nothing is handled. So no more is asked for than the link brought lately within a part of AckWait. How it
// does is told by the answers that prove contact: they stand behind the messages that are on their way, and so come as late as
// a message does.
//
// It imports nothing of relay's, sends nothing and starts no goroutine.
package link

import (
	"sync/atomic"
	"time"
)

const (
	// MostComing bounds the bytes that all durables together have asked for. The server breaks a connection off for which
	// it holds more than its max_pending, by default 64 MiB; it sends as fast as it can read. On a slow link it is less.
	MostComing = 32 << 20
	// LeastPull is how many bytes each pull is for, even when there are more durables than MostComing has room for, but for those of
	// idle durables on a slow link. A larger message takes a round trip or a few more, and its neighbours do not.
	LeastPull = 128 << 10

	// share of AckWait is how long what is on its way may take. With less than half of that more is asked for.
	share = 8
	// firstComing is asked for at the beginning, for each second of AckWait. It doubles with each proof of contact, up to MostComing.
	firstComing = 128 << 10
	// growing is how often contact is to be proven until that is reached: a backlog of large messages would come at half the speed for
	// seconds.
	growing = 100 * time.Millisecond
)

// Link bounds the bytes that all durables together may have asked for. Create it with [New]. All but Measured is safe for
// concurrent use.
type Link struct {
	limit   atomic.Int64
	ackWait atomic.Int64  // the shortest of all routes so far
	shorter chan struct{} // holds a value when ackWait became shorter
	turns   turns

	// Of the one who proves contact:
	nearest time.Duration // the shortest round trip so far
	bytes   uint64        // received in all, when it was measured last
	at      time.Time
	grew    time.Time // when the limit was doubled last
}

// New begins with what a link of ordinary speed brings within this AckWait.
func New(ackWait time.Duration) *Link {
	l := &Link{shorter: make(chan struct{}, 1)}
	l.ackWait.Store(int64(ackWait))
	l.limit.Store(min(MostComing, max(LeastPull, int64(ackWait.Seconds()*firstComing))))
	return l
}

func (l *Link) within() time.Duration { return time.Duration(l.ackWait.Load()) }

// Every is how often contact is to be proven: leases count from the last proof. It is more often until the limit is as high as it gets.
func (l *Link) Every() time.Duration {
	if l.limit.Load() < MostComing {
		return min(growing, l.period())
	}
	return l.period()
}

func (l *Link) period() time.Duration { return min(time.Second, l.within()/8) }

// Cover takes the AckWait of another route into account.
func (l *Link) Cover(ackWait time.Duration) {
	if ackWait >= l.within() {
		return
	}
	l.ackWait.Store(int64(ackWait))
	select {
	case l.shorter <- struct{}{}:
	default:
	}
}

// Shorter has a value when [Link.Every] became shorter.
func (l *Link) Shorter() <-chan struct{} { return l.shorter }

// Coming is how many bytes may be on their way.
func (l *Link) Coming() int { return int(l.limit.Load()) }

// Measured takes a round trip, and how many bytes have come by now in all. It is
// for one goroutine.
func (l *Link) Measured(trip time.Duration, bytes uint64, now time.Time) {
	if l.nearest == 0 || trip < l.nearest {
		l.nearest = trip
	}
	l.MeasuredSoFar(trip, bytes, now)
}

// MeasuredSoFar is Measured for a round trip that takes that long and has not ended.
func (l *Link) MeasuredSoFar(trip time.Duration, bytes uint64, now time.Time) {
	since, brought := now.Sub(l.at), bytes-l.bytes
	first := l.at.IsZero()
	l.at, l.bytes = now, bytes
	part := l.within() / share
	switch queued := trip - l.nearest; {
	case queued < part/2:
		// Soon only if that was brought: at once after the start nothing is on its way that a round trip could stand behind.
		if now.Sub(l.grew) >= l.period() || !first && broughtIn(part, brought, since) >= 2*l.limit.Load() {
			l.limit.Store(min(MostComing, 2*l.limit.Load()))
			l.grew = now
		}
	case queued > part && !first:
		l.limit.Store(max(LeastPull, min(broughtIn(part, brought, since), l.limit.Load())))
	}
}

// broughtIn is how many bytes come within d, at the rate of so many within since.
func broughtIn(d time.Duration, bytes uint64, since time.Duration) int64 {
	return int64(float64(bytes) * float64(d) / float64(max(since, 1)))
}
