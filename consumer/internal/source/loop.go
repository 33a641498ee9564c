package source

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/identity"
	"github.com/relaymq/relay/consumer/internal/pulls"
	"github.com/relaymq/relay/consumer/internal/watchdog"
	"github.com/relaymq/relay/internal/beat"
	"github.com/relaymq/relay/internal/supervise"
)

const batchSize = 256

// loop is the pull loop of a source: it asks for messages, and hands out what arrives. What it has beside the source is for its own goroutine only.
type loop struct {
	*Source
	suspect identity.Watch
	spares  spares
	batch   batch // of take
}

// pullerConfig is how the source asks for messages.
func pullerConfig(s *Source) pulls.Config {
	in := s.in
	return pulls.Config{
		Conn: in.Conn, JS: in.JS, API: in.API, Stream: s.stream, Durable: s.durable, Elsewhere: in.Domain != "", Log: s.log,
		Link: in.Link, Durables: func() int { return len(in.Open()) }, Among: in.Stores.AmongMany, DrainTime: in.DrainTime,
		Leased: s.leased, Lease: in.Lease, Holds: s.MayStart,
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
func (l *loop) run(ctx context.Context) (next *Source) {
	ctx, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.Session.Run(ctx)
	}()
	var noting sync.WaitGroup
	if l.leased() {
		noting.Go(func() { l.Takeover.NoteInHand(ctx) })
	}
	connected := l.in.Conn.StatusChanged(nats.CONNECTED)
	checking := make(chan finding, 1)
	confirmed := make(chan watchdog.Finding, 1)
	busy, confirming := false, false
	ask := func(q watchdog.Question) {
		busy = true
		go func() { checking <- l.check(ctx, q) }()
	}
	defer func() {
		if v := recover(); v != nil {
			panic(v) // waiting for the session, which goes on, would hide it for ever
		}
		l.in.Conn.RemoveStatusListener(connected)
		stop()
		if busy {
			if found := <-checking; found.next != nil {
				found.next.Close()
			}
		}
		if confirming {
			<-confirmed
		}
		noting.Wait()
		<-done // with it ends what it asks of the server
		l.ordered.inOrder.Wait()
		l.Pulls.Leave()
		l.Close()
		l.Pulls.Ended()
	}()
	l.Pulls.Start(time.Now())
	tick := beat.NewTicker(pulls.Heartbeat)
	defer tick.Stop()
	for {
		l.Pulls.Ask(time.Now())
		arrived := l.Pulls.Arrived()
		if l.suspect.IsDoubted() {
			arrived = nil
			l.Session.Pause()
			if l.suspect.Asks() { // beside a look, which may wait for what has nothing to do with this
				confirming = true
				go func() { confirmed <- l.Watchdog.Confirm(ctx) }()
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case m := <-arrived:
			l.take(m)
		case <-l.Pulls.Woken():
		case <-connected:
			l.reconnected()
		case found := <-checking:
			busy = false
			if found.next != nil {
				l.giveBackArrived()
				return found.next
			}
			wasLost := l.IsLost()
			l.checked(found, time.Now())
			if !wasLost && l.IsLost() {
				ask(l.Watchdog.Now(time.Now())) // it may be there again
			}
		case f := <-confirmed:
			confirming = false
			if !l.IsLost() {
				l.Watchdog.Act(f, time.Now())
			}
			if over, held := l.suspect.Answered(); over {
				l.Session.Resume()
				if held != nil { // it was counted when it came
					l.admit(held, time.Now(), &l.batch)
					l.batch.deliver()
				}
			}
			switch {
			case l.IsLost() && busy:
				l.Watchdog.Doubt() // what is asked just now was asked of the durable before
			case l.IsLost():
				ask(l.Watchdog.Now(time.Now())) // it may be there again
			}
		case now := <-tick.C:
			tick.Next()
			if now.Sub(l.Pulls.Got()) > time.Second {
				l.spares = nil // there is nothing to do
			}
			l.Unwanted.strays.Tell(now)
			if !l.due {
				l.Unwanted.claims.Soon(now)
			}
			l.CatchUp.Soon(now)
			if !l.in.Conn.IsConnected() || l.ordered.behind.Load() > 0 {
				l.ordered.gaps.Suspend(now)
			}
			l.ordered.gaps.Attend(now)
			l.Pulls.Tick()
			if busy {
				continue
			}
			if q, due := l.Watchdog.Due(now); due {
				ask(q)
			}
		}
	}
}

// room is what the routes could use. A route that waits for time does not hold back the others that share the durable.
func (s *Source) room() (room supervise.Room) {
	flowing, missing := false, s.ordered.gaps.Coming(time.Now())
	for _, rt := range s.routes {
		free, flows := rt.Group.Free()
		if flows && rt.Ordered {
			free.Messages = max(free.Messages, missing)
		}
		switch free = rt.Within(free); {
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

func (s *Source) hasRoom() bool {
	room := s.room()
	return room.Messages > 0 && room.Bytes > 0 && !s.holdsBack()
}

// holdsBack tells whether too much waits for the server already, whatever the routes could use.
func (s *Source) holdsBack() bool {
	return s.ordered.behind.Load() > MaxBehind || s.Unwanted.strays.Many() || s.Session.Stats().Unconfirmed > MaxUnconfirmed ||
		slices.ContainsFunc(s.routes, func(rt *Route) bool { return rt.Path.Full() || rt.Memory.Full() })
}

// MaxUnconfirmed keeps a server that confirms slowly from being asked for more.
const MaxUnconfirmed = 8192

// reconnected forgets what the server has forgotten.
func (l *loop) reconnected() {
	l.Pulls.Reconnected()
	l.ordered.gaps.MayHaveLost(time.Now())
	if lives := l.in.Stores.Lives.Load(); lives != nil {
		lives.Reconnected(time.Now())
	}
	l.Session.Reconnected()
}

// told takes what the server says about a pull.
func (l *loop) told(m *nats.Msg, now time.Time) {
	st := l.Pulls.Status(m, now)
	if st.NewLeader {
		l.Session.LeaderChanged()
		l.ordered.gaps.MayHaveLost(now)
	}
	if st.Deleted && !l.Health.IsLost() {
		l.suspect.Deleted()
	}
	if st.Doubt {
		l.Watchdog.Doubt()
	}
}

// take handles what has arrived, a batch at a time so that the routes' locks are taken once for many.
func (l *loop) take(first *nats.Msg) {
	now := time.Now()
	drained := false
	for n, m := 0, first; ; n++ {
		switch {
		case strings.HasPrefix(m.Reply, "$JS.ACK."):
			if l.Pulls.Delivered(m, now) {
				l.Watchdog.Doubt() // little was asked meanwhile
			}
			l.admit(m, now, &l.batch)
		case l.Session.Reply(m):
		case pulls.IsEnd(m):
			drained = true
		default:
			if sent, ok := pulls.Contacted(m); ok {
				l.Session.Contact(sent)
			} else {
				l.told(m, now)
			}
		}
		if n >= batchSize || l.suspect.IsDoubted() {
			break
		}
		select {
		case m = <-l.Pulls.Arrived():
			continue
		default:
		}
		break
	}
	l.batch.deliver()
	if drained {
		l.Pulls.Drained()
	}
}
