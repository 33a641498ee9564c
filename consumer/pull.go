package consumer

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	pullExpires   = 5 * time.Second
	pullHeartbeat = time.Second
	// missedHeartbeats is how long nothing may be heard of a pull before it counts as lost.
	missedHeartbeats = 2500 * time.Millisecond
	batchSize        = 256
)

// pullRequests are the pulls that the server has not answered in full, oldest first: it serves them in that order.
type pullRequests struct {
	list []pullRequest
	next int // id
}

// preflightPull is the id of what is no pull at all.
const preflightPull = 0

type pullRequest struct {
	id, left int
	expires  time.Time
}

func (p *pullRequests) outstanding() (n int) {
	for _, r := range p.list {
		n += r.left
	}
	return n
}

// got counts a delivery.
func (p *pullRequests) got() {
	if len(p.list) == 0 {
		return // of a pull that was given up
	}
	if p.list[0].left--; p.list[0].left <= 0 {
		p.list = p.list[1:]
	}
}

// over ends the pull with this id.
func (p *pullRequests) over(id int) {
	for i, r := range p.list {
		if r.id == id {
			p.list = append(p.list[:i:i], p.list[i+1:]...)
			return
		}
	}
}

// expire ends those whose answer is overdue.
func (p *pullRequests) expire(now time.Time) {
	for len(p.list) > 0 && now.After(p.list[0].expires) {
		p.list = p.list[1:]
	}
}

// run pulls messages and hands them out until ctx is done. The session runs beside it.
func (s *source) run(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.session.Run(ctx)
	}()
	defer func() {
		<-done // with it ends what it asks of the server
		_ = s.answers.Unsubscribe()
		_ = s.pulls.Unsubscribe()
	}()
	s.lastHeard, s.lastGot = time.Now(), time.Now()
	tick := time.NewTicker(pullHeartbeat)
	defer tick.Stop()
	checking := make(chan finding, 1)
	busy := false
	for {
		s.pull(time.Now())
		select {
		case <-ctx.Done():
			return
		case m := <-s.arrived:
			s.take(ctx, m)
		case <-s.woken:
		case found := <-checking:
			busy = false
			s.checked(found, time.Now())
		case now := <-tick.C:
			if !busy && s.suspicious(now) {
				busy = true
				go func() { checking <- s.check(ctx) }()
			}
		}
	}
}

// wake makes the pull loop look whether there is more room.
func (s *source) wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// room is how many messages the routes could use. A route that waits for time does not hold back the others that share
// the durable.
func (s *source) room() int {
	room, waiting := -1, 0
	for _, rt := range s.routes {
		switch free, flows := rt.group.Free(); {
		case !flows:
			waiting = max(waiting, free)
		case room < 0 || free < room:
			room = free
		}
	}
	if room < 0 {
		return waiting
	}
	return room
}

// maxUnconfirmed keeps a server that confirms slowly from being asked for more.
const maxUnconfirmed = 8192

// pull asks for what there is room for, once half of it is worth asking.
func (s *source) pull(now time.Time) {
	s.mu.Lock()
	stop := s.draining || s.lost != nil
	s.mu.Unlock()
	if stop || now.Before(s.retryPull) {
		return
	}
	s.asked.expire(now)
	out := s.asked.outstanding()
	room := s.room()
	if room <= out || out > 0 && room < 2*out || s.session.Stats().Unconfirmed > maxUnconfirmed {
		return
	}
	s.asked.next++
	request := pullRequest{id: s.asked.next, left: room - out, expires: now.Add(pullExpires + time.Second)}
	body := fmt.Appendf(nil, `{"batch":%d,"expires":%d,"idle_heartbeat":%d}`, request.left, pullExpires, pullHeartbeat)
	to := s.relay.api + "CONSUMER.MSG.NEXT." + s.stream + "." + s.durable
	if err := s.relay.nc.PublishRequest(to, s.inbox+".p."+strconv.Itoa(request.id), body); err != nil {
		s.backOff(now) // disconnected
		return
	}
	if len(s.asked.list) == 0 {
		s.lastHeard = now
	}
	s.asked.list = append(s.asked.list, request)
}

// backOff waits before the next pull, up to a second: a server that is electing a leader must not be hammered.
func (s *source) backOff(now time.Time) {
	s.retryPull = now.Add(min(50*time.Millisecond<<min(s.refused, 5), time.Second))
	s.refused++
}

// take handles what has arrived, a batch at a time so that the routes' locks are taken once for many.
func (s *source) take(ctx context.Context, first *nats.Msg) {
	var batch batch
	now := time.Now()
	for n, m := 0, first; ; n++ {
		switch {
		case strings.HasPrefix(m.Reply, "$JS.ACK."):
			s.asked.got()
			s.lastHeard, s.lastGot, s.refused = now, now, 0
			s.admit(ctx, m, &batch)
		case s.session.Reply(m):
		case m.Subject == contactMark:
			if d, err := time.ParseDuration(string(m.Data)); err == nil {
				s.session.Contact(epoch.Add(d))
			}
		default:
			s.status(m, now)
		}
		if n >= batchSize {
			break
		}
		select {
		case m = <-s.arrived:
			continue
		default:
		}
		break
	}
	batch.deliver()
}

// status is what the server says about a pull.
func (s *source) status(m *nats.Msg, now time.Time) {
	s.lastHeard = now
	id, err := strconv.Atoi(strings.TrimPrefix(m.Subject, s.inbox+".p."))
	if err != nil || id == preflightPull {
		return
	}
	code, text := m.Header.Get("Status"), m.Header.Get("Description")
	switch code {
	case "100": // heartbeat
		return
	case "408", "404": // it is over, and nothing is wrong
		s.asked.over(id)
		return
	}
	s.asked.over(id)
	s.log.Debug("pull refused", "status", code, "description", text)
	if code == "409" && strings.EqualFold(text, "Leadership Change") && s.refused == 0 {
		s.refused++ // ask the new leader at once
		return
	}
	s.backOff(now)
	s.lastGot = time.Time{} // look at the consumer soon
}

// stopPulling ends the pulls; what the server had sent before is still received. It may block for a moment.
func (s *source) stopPulling() {
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	if s.pulls.Drain() == nil {
		_ = s.relay.nc.FlushTimeout(time.Second)
	}
	// Whatever came before the flush is in the channel; the loop has it in a moment.
	deadline := time.Now().Add(time.Second)
	for len(s.arrived) > 0 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
}
