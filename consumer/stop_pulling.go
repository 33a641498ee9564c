package consumer

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
)

func (s *source) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

// drainMark is the subject of the message behind which nothing more arrives.
const drainMark = "drained"

// leaderIsElsewhere tells whether the leader of the durable is on another server than this connection. An ended subscription is known there a moment
// later only: what it sends meanwhile is lost on the way, and comes again after AckWait. Where both are on one server nothing is.
func (s *source) leaderIsElsewhere() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c, err := s.relay.js.Consumer(ctx, s.stream, s.durable)
	if err != nil {
		return false // there is nobody who could send
	}
	cluster := c.CachedInfo().Cluster
	return cluster != nil && cluster.Leader != s.relay.nc.ConnectedServerName() || s.relay.cfg.Domain != ""
}

// windDown waits until the server has ended the pulls that bring messages; what arrives until then goes back at once. Of a route of one instance
// the next holder gives back what is lost. A pull that is parked for long is not waited for: it brings one message at most, if that is published in
// just this moment after a pause.
func (s *source) windDown() {
	if s.leased() || !s.leaderIsElsewhere() {
		return
	}
	s.wake()
	patience := time.NewTimer(min(pullExpires+time.Second, s.relay.drainTime()/2))
	defer patience.Stop()
	select {
	case <-s.allOver:
	case <-s.ended:
	case <-patience.C:
	}
}

// stopPulling ends the pulls, and returns when what the server had sent before is with the routes. It may block for some seconds.
func (s *source) stopPulling() {
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	s.windDown()
	for i := range s.asked.lanes {
		// nats.go goes on handing messages to the channel until the server has confirmed that it sends no more.
		_ = s.asked.lanes[i].sub.Drain()
	}
	_ = s.relay.nc.FlushTimeout(time.Second)
	patience := time.NewTimer(time.Second)
	defer patience.Stop()
	s.mu.Lock()
	arrived := s.arrived // it stays, now that the source drains
	s.mu.Unlock()
	select {
	case arrived <- &nats.Msg{Subject: drainMark}:
	case <-s.ended: // another source was about to take over from it
		return
	case <-patience.C:
		return
	}
	select {
	case <-s.drained:
	case <-s.ended:
	case <-patience.C:
	}
}
