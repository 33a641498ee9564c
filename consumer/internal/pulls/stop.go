package pulls

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
)

// IsDraining tells whether Stop was called. Anybody may call it.
func (a *Inbox) IsDraining() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.draining
}

// drainMark is the subject of the message behind which nothing more arrives.
const drainMark = "drained"

// leaderIsElsewhere tells whether the leader of the durable is on another server than this connection. An ended subscription is known there a moment
// later only: what it sends meanwhile is lost on the way, and comes again after AckWait. Where both are on one server nothing is.
func (a *Inbox) leaderIsElsewhere() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c, err := a.cfg.JS.Consumer(ctx, a.cfg.Stream, a.cfg.Durable)
	if err != nil {
		return false // there is nobody who could send
	}
	cluster := c.CachedInfo().Cluster
	return cluster != nil && cluster.Leader != a.cfg.Conn.ConnectedServerName() || a.cfg.Elsewhere
}

// windDown waits until the server has ended the pulls that bring messages; what arrives until then goes back at once. Of a route of one instance
// the next holder gives back what is lost. A pull that is parked for long is not waited for: it brings one message at most, if that is published in
// just this moment after a pause.
func (a *Inbox) windDown() {
	if a.cfg.Leased() || !a.leaderIsElsewhere() {
		return
	}
	a.Wake()
	patience := time.NewTimer(min(Expires+time.Second, a.cfg.DrainTime()/2))
	defer patience.Stop()
	select {
	case <-a.allOver:
	case <-a.ended:
	case <-patience.C:
	}
}

// Stop ends the pulls, and returns when what the server had sent before was looked at. It may block for some seconds, and is not for the goroutine
// that receives.
func (a *Inbox) Stop() {
	a.mu.Lock()
	a.draining = true
	a.mu.Unlock()
	a.windDown()
	for i := range a.requests.Lanes {
		// nats.go goes on handing messages to the channel until the server has confirmed that it sends no more.
		_ = a.requests.Lanes[i].Sub.Drain()
	}
	_ = a.cfg.Conn.FlushTimeout(time.Second)
	patience := time.NewTimer(time.Second)
	defer patience.Stop()
	a.mu.Lock()
	arrived := a.all // it stays, now that it drains
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

// woundDown says that no pull is outstanding any more that is about to end.
func (a *Inbox) woundDown() { a.wound.Do(func() { close(a.allOver) }) }

// IsEnd tells whether a message that has arrived is the mark behind which nothing more does. Drained is to be called once what came before was looked
// at.
func IsEnd(m *nats.Msg) bool { return m.Subject == drainMark }

// Drained says that what came before the end was looked at.
func (a *Inbox) Drained() { close(a.drained) }

// Ended says that nobody receives any more.
func (a *Inbox) Ended() { close(a.ended) }
