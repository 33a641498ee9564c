package consumer

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/pulls"
	"github.com/relaymq/relay/consumer/internal/watchdog"
	"github.com/relaymq/relay/internal/beat"
	"github.com/relaymq/relay/supervisor"
)

const batchSize = 256

// pullerConfig is how the source asks for messages.
func (s *source) pullerConfig() pulls.Config {
	r := s.relay
	return pulls.Config{
		Conn: r.nc, JS: r.js, API: r.api, Stream: s.stream, Durable: s.durable, Elsewhere: r.cfg.Domain != "", Log: s.log,
		Link: r.link, Durables: func() int { return len(r.running.Sources()) }, Among: r.stores.AmongMany, DrainTime: r.phases.drainTime,
		Leased: s.leased, Lease: r.cfg.Fleet.lease(), Holds: s.mayStart,
		Stops: s.Health.Stops, Full: s.holdsBack,
		Room: func() (messages, bytes int) {
			room := s.room()
			return room.Messages, room.Bytes
		},
		InHand: func() (live, unconfirmed int) {
			st := s.Session.Stats()
			return st.Live, st.Unconfirmed
		},
	}
}

// run pulls messages and hands them out until ctx is done, or until a durable that was lost is there again: then it returns
// the source that takes over. The session runs beside it.
func (s *source) run(ctx context.Context) (next *source) {
	ctx, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Session.Run(ctx)
	}()
	var noting sync.WaitGroup
	if s.leased() {
		noting.Go(func() { s.takeover.NoteInHand(ctx) })
	}
	connected := s.relay.nc.StatusChanged(nats.CONNECTED)
	checking := make(chan finding, 1)
	busy := false
	ask := func(q watchdog.Question) {
		busy = true
		go func() { checking <- s.check(ctx, q) }()
	}
	defer func() {
		if v := recover(); v != nil {
			panic(v) // waiting for the session, which goes on, would hide it for ever
		}
		s.relay.nc.RemoveStatusListener(connected)
		stop()
		if busy {
			if found := <-checking; found.next != nil {
				found.next.close()
			}
		}
		noting.Wait()
		<-done // with it ends what it asks of the server
		s.ordered.inOrder.Wait()
		s.pulls.Leave()
		s.close()
		s.pulls.Ended()
	}()
	s.pulls.Start(time.Now())
	tick := beat.NewTicker(pulls.Heartbeat)
	defer tick.Stop()
	for {
		s.pulls.Ask(time.Now())
		arrived := s.pulls.Arrived()
		if s.suspect.IsDoubted() {
			arrived = nil
			s.Session.Pause()
			if !busy && s.suspect.Asks() {
				ask(s.watchdog.Now(time.Now()))
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case m := <-arrived:
			s.take(m)
		case <-s.pulls.Woken():
		case <-connected:
			s.reconnected()
		case found := <-checking:
			busy = false
			if found.next != nil {
				s.giveBackArrived()
				return found.next
			}
			wasLost := s.isLost()
			s.checked(found, time.Now())
			if over, held := s.suspect.Answered(); over {
				s.Session.Resume()
				if held != nil { // it was counted when it came
					s.admit(held, time.Now(), &s.batch)
					s.batch.deliver()
				}
			}
			if !wasLost && s.isLost() {
				ask(s.watchdog.Now(time.Now())) // it may be there again
			}
		case now := <-tick.C:
			tick.Next()
			if now.Sub(s.pulls.Got()) > time.Second {
				s.spares = nil // there is nothing to do
			}
			s.strays.Tell(now)
			if !s.due {
				s.claims.Soon(now)
			}
			s.catchUp.Soon(now)
			s.gaps.Attend(now, s.relay.nc.IsConnected() && s.ordered.behind.Load() == 0)
			s.pulls.Tick()
			if busy {
				continue
			}
			if q, due := s.watchdog.Due(now); due {
				ask(q)
			}
		}
	}
}

// room is what the routes could use. A route that waits for time does not hold back the others that share the durable.
func (s *source) room() (room supervisor.Room) {
	flowing, missing := false, s.gaps.Coming(time.Now())
	for _, rt := range s.routes {
		free, flows := rt.group.Free()
		if flows && rt.cfg.Order == supervisor.OrderKey {
			free.Messages = max(free.Messages, missing)
		}
		switch free = rt.within(free); {
		case flows && flowing:
			room.Messages, room.Bytes = min(room.Messages, free.Messages), min(room.Bytes, free.Bytes)
		case flows:
			room, flowing = free, true
		case !flowing:
			room.Messages, room.Bytes = max(room.Messages, free.Messages), max(room.Bytes, free.Bytes)
		}
	}
	return room
}

func (s *source) hasRoom() bool {
	room := s.room()
	return room.Messages > 0 && room.Bytes > 0 && !s.holdsBack()
}

// holdsBack tells whether too much waits for the server already, whatever the routes could use.
func (s *source) holdsBack() bool {
	return s.ordered.behind.Load() > maxBehind || s.strays.Many() || s.Session.Stats().Unconfirmed > maxUnconfirmed ||
		slices.ContainsFunc(s.routes, func(rt *route) bool { return rt.path.Full() || rt.memory.Full() })
}

// maxUnconfirmed keeps a server that confirms slowly from being asked for more.
const maxUnconfirmed = 8192

// reconnected forgets what the server has forgotten.
func (s *source) reconnected() {
	s.pulls.Reconnected()
	s.gaps.MayHaveLost(time.Now())
	if l := s.relay.stores.Lives.Load(); l != nil {
		l.Reconnected(time.Now())
	}
	s.Session.Reconnected()
}

// told takes what the server says about a pull.
func (s *source) told(m *nats.Msg, now time.Time) {
	st := s.pulls.Status(m, now)
	if st.NewLeader {
		s.Session.LeaderChanged()
		s.gaps.MayHaveLost(now)
	}
	if st.Deleted && !s.Health.IsLost() {
		s.suspect.Deleted()
	}
	if st.Doubt {
		s.watchdog.Doubt()
	}
}

// take handles what has arrived, a batch at a time so that the routes' locks are taken once for many.
func (s *source) take(first *nats.Msg) {
	now := time.Now()
	drained := false
	for n, m := 0, first; ; n++ {
		switch {
		case strings.HasPrefix(m.Reply, "$JS.ACK."):
			if s.pulls.Delivered(m, now) {
				s.watchdog.Doubt() // little was asked meanwhile
			}
			s.admit(m, now, &s.batch)
		case s.Session.Reply(m):
		case pulls.IsEnd(m):
			drained = true
		default:
			if sent, ok := pulls.Contacted(m); ok {
				s.Session.Contact(sent)
			} else {
				s.told(m, now)
			}
		}
		if n >= batchSize || s.suspect.IsDoubted() {
			break
		}
		select {
		case m = <-s.pulls.Arrived():
			continue
		default:
		}
		break
	}
	s.batch.deliver()
	if drained {
		s.pulls.Drained()
	}
}
