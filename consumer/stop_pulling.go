package consumer

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
)

func (a *arrivals) isDraining() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.draining
}

// drainMark is the subject of the message behind which nothing more arrives.
const drainMark = "drained"

// leaderIsElsewhere tells whether the leader of the durable is on another server than this connection. An ended subscription is known there a moment
// later only: what it sends meanwhile is lost on the way, and comes again after AckWait. Where both are on one server nothing is.
func (a *arrivals) leaderIsElsewhere() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c, err := a.relay.js.Consumer(ctx, a.stream, a.durable)
	if err != nil {
		return false // there is nobody who could send
	}
	cluster := c.CachedInfo().Cluster
	return cluster != nil && cluster.Leader != a.relay.nc.ConnectedServerName() || a.relay.cfg.Domain != ""
}

// windDown waits until the server has ended the pulls that bring messages; what arrives until then goes back at once. Of a route of one instance
// the next holder gives back what is lost. A pull that is parked for long is not waited for: it brings one message at most, if that is published in
// just this moment after a pause.
func (a *arrivals) windDown() {
	if a.leased() || !a.leaderIsElsewhere() {
		return
	}
	a.wake()
	patience := time.NewTimer(min(pullExpires+time.Second, a.relay.drainTime()/2))
	defer patience.Stop()
	select {
	case <-a.allOver:
	case <-a.ended:
	case <-patience.C:
	}
}

// stopPulling ends the pulls, and returns when what the server had sent before is with the routes. It may block for some seconds.
func (a *arrivals) stopPulling() {
	a.mu.Lock()
	a.draining = true
	a.mu.Unlock()
	a.windDown()
	for i := range a.asked.lanes {
		// nats.go goes on handing messages to the channel until the server has confirmed that it sends no more.
		_ = a.asked.lanes[i].sub.Drain()
	}
	_ = a.relay.nc.FlushTimeout(time.Second)
	patience := time.NewTimer(time.Second)
	defer patience.Stop()
	a.mu.Lock()
	arrived := a.all // it stays, now that the source drains
	a.mu.Unlock()
	select {
	case arrived <- &nats.Msg{Subject: drainMark}:
	case <-a.ended: // another source was about to take over from it
		return
	case <-patience.C:
		return
	}
	select {
	case <-a.drained:
	case <-a.ended:
	case <-patience.C:
	}
}
