package ack

import (
	"context"
	"sync"
	"time"

	"github.com/relaymq/relay/internal/beat"
)

// How often a session looks after its deliveries, and when it sends a settlement again.
const (
	burstEvery  = 100 * time.Millisecond
	resendAfter = 2 * time.Second
	infoEvery   = time.Second
)

// Run sends the NAKs, extends the leases and sends again what stays unconfirmed, until ctx is done. It sends a last burst
// before it returns.
func (s *Session) Run(ctx context.Context) {
	s.mu.Lock()
	s.acks.runs = true
	s.mu.Unlock()
	var inspection, acks sync.WaitGroup
	inspection.Go(func() { s.inspect(ctx) })
	acks.Go(s.sendAcks)
	defer inspection.Wait()
	tick := time.NewTicker(burstEvery)
	defer tick.Stop()
	quiet := time.NewTimer(quietFor)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			s.mu.Lock()
			s.acks.runs = false
			s.mu.Unlock()
			close(s.onward)
			acks.Wait()
			s.burst()
			s.endQuiet() // and what is in the outbox
			s.closeUp()
			return
		case <-s.quiet:
			quiet.Reset(quietFor)
		case <-quiet.C:
			s.endQuiet()
		case <-tick.C:
			s.burst()
			s.closeUp()
			s.extend(s.now())
			if s.rest() {
				tick.Stop()
			}
		case <-s.woken:
			tick.Reset(burstEvery)
		}
	}
}

// rest tells whether there is nothing to look after, until woken says otherwise.
func (s *Session) rest() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resting = s.leases.n == 0 && s.unconfirmed == 0 && len(s.naks) == 0
	return s.resting
}

// rouse ends a rest; the lock is held.
func (s *Session) rouse() {
	if s.resting {
		s.resting = false
		s.woken <- struct{}{}
	}
}

// inspect asks the server about the durable, once a second and after a reconnect, while there is a reason to.
func (s *Session) inspect(ctx context.Context) {
	tick := beat.NewTicker(infoEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			tick.Next()
		case <-s.hurried:
		}
		s.look(ctx)
	}
}

func (s *Session) look(ctx context.Context) {
	s.mu.Lock()
	before := s.overdue(s.now())
	due := s.slots.sentBefore(before) || s.overdueAcks(before)
	wanted := !s.abandoned && (due || s.delayed || s.pending > 0)
	delayed, naked := s.delayed, s.nakedSince
	s.delayed = false
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.asking = cancel
	s.mu.Unlock()
	if !wanted {
		return
	}
	info, err := s.cfg.Info(ctx)
	if err != nil { // not now: nothing is sent again on a guess
		s.mu.Lock()
		s.delayed = s.delayed || delayed
		s.mu.Unlock()
		return
	}
	if !info.Identity.Equal(s.cfg.Identity) {
		s.Abandon()
		return
	}
	s.mu.Lock()
	s.pending = info.AckPending
	s.nakedSince -= naked
	s.mu.Unlock()
	if due {
		s.resendDue(time.Now())
	}
}

// overdue is the time before which whatever is unconfirmed should have been sent again.
func (s *Session) overdue(now moment) moment {
	return max(now-moment(resendAfter), s.reconnected)
}

// AckPending is how many deliveries of the durable wait for their settlement, delayed NAKs included, on all instances,
// as the server said within about a second, and those given back here since: a flood can fill the durable in less than
// that.
func (s *Session) AckPending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pending + s.nakedSince
}
