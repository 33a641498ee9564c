package consumer

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/consumer/internal/link"
	"github.com/relaymq/relay/consumer/internal/pulls"
	"github.com/relaymq/relay/internal/beat"
	"github.com/relaymq/relay/internal/provision"
	"github.com/relaymq/relay/supervisor"
)

const (
	// After so long without a delivery, one pull for one message is parked, for much longer. Its heartbeats come as often, so that a pull
	// that is lost is noticed as soon. It is over with the first message, so that no such pull is outstanding beside others: what is
	// parked for long cannot be taken back.
	idleAfter   = 5 * time.Second
	idleExpires = 30 * time.Second
	longestPull = time.Minute // the same with many instances
	// missedHeartbeats is how long nothing may be heard of a pull before it counts as lost.
	missedHeartbeats = 2500 * time.Millisecond
	batchSize        = 256
)

// run pulls messages and hands them out until ctx is done, or until a durable that was lost is there again: then it returns
// the source that takes over. The session runs beside it.
func (s *source) run(ctx context.Context) (next *source) {
	ctx, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.session.Run(ctx)
	}()
	var noting sync.WaitGroup
	if s.leased() {
		noting.Go(func() { s.takeover.NoteInHand(ctx) })
	}
	connected := s.relay.nc.StatusChanged(nats.CONNECTED)
	checking := make(chan finding, 1)
	busy := false
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
		s.relay.link.Leave(&s.pulls.puller)
		s.close()
		s.arrivals.Ended()
	}()
	s.pulls.lastHeard, s.pulls.lastGot = time.Now(), time.Now()
	tick := beat.NewTicker(pulls.Heartbeat)
	defer tick.Stop()
	for {
		s.hearNobody(time.Now())
		s.pull(time.Now())
		if !s.arrivals.Requests.Winding() && s.arrivals.IsDraining() {
			s.arrivals.WoundDown()
		}
		select {
		case <-ctx.Done():
			return nil
		case m := <-s.arrivals.Arrived():
			s.take(m)
		case <-s.arrivals.Woken():
		case <-connected:
			s.reconnected()
		case found := <-checking:
			busy = false
			if found.next != nil {
				return found.next
			}
			s.checked(found, time.Now())
		case now := <-tick.C:
			tick.Next()
			s.release(now)
			s.strays.Tell(now)
			s.claimSoon(now)
			s.catchUp.Soon(now)
			s.gaps.Attend(now, s.relay.nc.IsConnected() && s.ordered.behind.Load() == 0)
			if !s.pulls.puller.InLine() {
				s.pulls.puller.Least = max(link.LeastPull, s.pulls.puller.Least/2)
			}
			if !busy && s.suspicious(now) {
				busy = true
				afresh, missed, waits := s.watchdog.afresh, uint64(0), 0
				if s.leased() {
					missed = s.takeover.StillMissing(s.gaps)
					if s.gaps.Missing() {
						waits = s.gaps.Seen()
					}
				}
				go func() { checking <- s.check(ctx, afresh, waits, missed) }()
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
	return s.ordered.behind.Load() > maxBehind || s.strays.Many() || s.session.Stats().Unconfirmed > maxUnconfirmed ||
		slices.ContainsFunc(s.routes, func(rt *route) bool { return rt.aside.full() || rt.full() })
}

// maxUnconfirmed keeps a server that confirms slowly from being asked for more.
const maxUnconfirmed = 8192

// pull asks for what there is room for, once half of it is worth asking.
func (s *source) pull(now time.Time) {
	stop := s.health.Stops() || s.arrivals.IsDraining() || now.Before(s.pulls.retryPull) || !s.mayStart()
	s.arrivals.Requests.Expire(now)
	free, room := s.arrivals.Requests.Free(), s.room()
	if stop || room.Messages <= 0 {
		s.arrivals.Withdraw()
	}
	out, outBytes := s.arrivals.Requests.Outstanding()
	part := s.relay.link.Part(&s.pulls.puller, len(s.relay.openSources()))
	room.Bytes = min(room.Bytes, part.Most)
	idle := now.Sub(s.pulls.lastGot) >= idleAfter && !s.leased()
	silent := s.pulls.electing && now.Sub(s.pulls.lastGot) >= missedHeartbeats
	none := stop || free == nil || s.pulls.electing && out > 0 || idle && out > 0 && !s.arrivals.Requests.Ending(now) || room.Messages <= out || room.Messages < 2*out || room.Bytes <= outBytes || room.Bytes < 2*outBytes || s.holdsBack()
	// Twice the bytes that so many messages of mean size have, but at most half of the room: the next pull is sent before all
	// messages of this one are there.
	batch := room.Messages - out
	bytes := max(min(2*batch*s.pulls.mean, (room.Bytes-outBytes)/2), part.Least)
	if none = none || !s.mayArrive(out, batch); none {
		bytes = 0
	}
	if !s.relay.link.MayAsk(&s.pulls.puller, part, outBytes, bytes) || none {
		return
	}
	expires, group := pulls.Expires, ""
	if idle { // for as many bytes as before: the message may be a large one
		batch, expires = 1, min(s.relay.amongMany(idleExpires), longestPull)
	}
	if silent { // perhaps it is the link that stands still: then the server has all of these pulls in the end
		batch = 1
	}
	if s.leased() {
		if s.pulls.pin == "" { // the server tells it with the first message
			if out > 0 {
				return
			}
			batch = 1
		}
		// What is parked for longer than a lease would get messages when this instance may not start them any more.
		expires = min(expires, s.relay.cfg.Fleet.lease())
		group = fmt.Sprintf(`,"group":%q,"id":%q`, provision.PinGroup, s.pulls.pin)
	}
	s.arrivals.Requests.Last++
	id := s.arrivals.Requests.Last
	heartbeat := pulls.Heartbeat
	if s.pulls.electing {
		expires, heartbeat = min(expires, electingExpires), electingHeartbeat
		time.AfterFunc(electingSilence, s.arrivals.Wake)
	}
	body := fmt.Appendf(nil, `{"batch":%d,"max_bytes":%d,"expires":%d,"idle_heartbeat":%d%s}`, batch, bytes, expires, heartbeat, group)
	to := s.relay.api + "CONSUMER.MSG.NEXT." + s.stream + "." + s.durable
	if err := s.relay.nc.PublishRequest(to, strings.TrimSuffix(free.Sub.Subject, "*")+strconv.Itoa(id), body); err != nil {
		s.pulls.backOff(now) // disconnected
		return
	}
	if out == 0 {
		s.pulls.lastHeard = now
	}
	free.ID, free.Pin, free.Left, free.Bytes, free.Asked, free.Expires = id, s.pulls.pin, batch, bytes, bytes, now.Add(expires+time.Second)
	free.Parked = idle
}

// mayArrive tells whether there is room for what comes of one more pull.
func (s *source) mayArrive(out, batch int) bool {
	st := s.session.Stats()
	return s.arrivals.MayArrive(out, batch, st.Live, st.Unconfirmed)
}

// reconnected forgets what the server has forgotten, and asks anew at once. A pull that survived because the server did
// not notice brings some messages more than there is room for.
func (s *source) reconnected() {
	s.arrivals.Requests.GiveUp()
	s.gaps.MayHaveLost(time.Now())
	s.pulls.refused, s.pulls.retryPull = 0, time.Time{}
	if l := s.relay.lives.Load(); l != nil {
		l.Reconnected(time.Now())
	}
	s.session.Reconnected()
}

// pulling is what the pull loop of a source knows of its pulls, beside those that are outstanding. It is of that loop only.
type pulling struct {
	wake      func()      // has the loop look again
	lastHeard time.Time   // any message of a pull: a delivery, a heartbeat, a status
	lastGot   time.Time   // a delivery
	retryPull time.Time   // no pull before then
	refused   int         // pulls in a row
	electing  bool        // the durable may have no leader just now
	ledAt     time.Time   // when a new leader last said so, and pulls began anew
	puller    link.Puller // its part of what the link brings
	mean      int         // bytes, of the latest messages
	pin       string      // of a leased one: what the server knows this instance by
}

// backOff waits before the next pull, up to a second: a server that is electing a leader must not be hammered. A leader that steps down has a
// successor within some 20 ms, and one that is killed within 4 to 9 s: until then its successor is not to wait for the next pull.
func (p *pulling) backOff(now time.Time) {
	first, most := 50*time.Millisecond, time.Second
	if p.electing && p.refused < electingTries {
		first, most = 10*time.Millisecond, 300*time.Millisecond
	}
	p.again(now, min(first<<min(p.refused, 6), most))
}

func (p *pulling) again(now time.Time, wait time.Duration) {
	p.retryPull = now.Add(wait)
	p.refused++
	time.AfterFunc(wait, p.wake)
}

// A pull that reaches no leader is lost without a word. So while one is elected pulls have short heartbeats, and the next one is made soon when
// there is none.
const (
	electingHeartbeat = 100 * time.Millisecond
	electingSilence   = 250 * time.Millisecond
	electingExpires   = 5 * time.Second
	electingPause     = 20 * time.Millisecond
	electingTries     = 40 // which take longer than an election
)

// hearNobody makes a pull anew that reached no leader.
func (s *source) hearNobody(now time.Time) {
	if out, _ := s.arrivals.Requests.Outstanding(); !s.pulls.electing || out == 0 || now.Sub(s.pulls.lastHeard) < electingSilence {
		return
	}
	s.arrivals.Requests.GiveUp()
	s.pulls.backOff(now)
}

// take handles what has arrived, a batch at a time so that the routes' locks are taken once for many.
func (s *source) take(first *nats.Msg) {
	now := time.Now()
	drained := false
	for n, m := 0, first; ; n++ {
		switch {
		case strings.HasPrefix(m.Reply, "$JS.ACK."):
			if s.arrivals.Requests.Got(m) {
				s.watchdog.doubt.Store(true) // little was asked meanwhile
			}
			if s.leased() {
				s.pulls.notePin(m)
			}
			s.pulls.mean += (m.Size() - s.pulls.mean) / 8
			s.pulls.lastHeard, s.pulls.lastGot, s.pulls.refused, s.pulls.electing = now, now, 0, false
			s.admit(m, now, &s.batch)
		case s.session.Reply(m):
		case pulls.IsEnd(m):
			drained = true
		default:
			if sent, ok := pulls.Contacted(m); ok {
				s.session.Contact(sent)
			} else {
				s.status(m, now)
			}
		}
		if n >= batchSize {
			break
		}
		select {
		case m = <-s.arrivals.Arrived():
			continue
		default:
		}
		break
	}
	s.batch.deliver()
	if drained {
		s.arrivals.Drained()
	}
}

// status is what the server says about a pull.
func (s *source) status(m *nats.Msg, now time.Time) {
	id, err := strconv.Atoi(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
	if err != nil {
		return
	}
	s.pulls.lastHeard = now
	code, text := m.Header.Get("Status"), m.Header.Get("Description")
	switch code {
	case "100": // heartbeat: the pull is parked
		s.pulls.refused, s.pulls.electing, s.pulls.puller.Backlog = 0, false, false
		return
	case "408", "404": // it is over, and nothing is wrong
		s.pulls.electing = false
		messages, err := strconv.Atoi(m.Header.Get("Nats-Pending-Messages"))
		bytes, err2 := strconv.Atoi(m.Header.Get("Nats-Pending-Bytes"))
		if s.arrivals.IsDraining() && err == nil && err2 == nil {
			s.arrivals.Requests.Cut(id, messages, bytes) // the rest is waited for
			return
		}
		s.arrivals.Requests.Over(id)
		return
	}
	if code == "409" && (text == "Batch Completed" || strings.HasSuffix(text, "MaxBytes")) {
		// There were bytes to spare, or the next message did not fit any more.
		messages, err := strconv.Atoi(m.Header.Get("Nats-Pending-Messages"))
		bytes, err2 := strconv.Atoi(m.Header.Get("Nats-Pending-Bytes"))
		if err != nil || err2 != nil {
			s.arrivals.Requests.Over(id)
			return
		}
		unused := s.arrivals.Requests.Cut(id, messages, bytes)
		s.pulls.puller.Backlog = s.pulls.puller.Backlog || text != "Batch Completed"
		s.pulls.refused, s.pulls.puller.Least = 0, max(s.pulls.puller.Least, 2*unused) // it is larger than all that was asked for
		return
	}
	pin := s.arrivals.Requests.PinOf(id)
	s.arrivals.Requests.Over(id)
	if code == "423" || code == "409" && strings.EqualFold(text, "Leadership Change") {
		s.losePin(pin)
	}
	s.log.Debug("pull refused", "status", code, "description", text)
	s.pulls.electing = s.pulls.electing || code == "503"
	if code == "409" && (strings.EqualFold(text, "Leadership Change") || strings.EqualFold(text, "Server Shutdown")) {
		s.session.LeaderChanged()
		s.gaps.MayHaveLost(time.Now())
		s.pulls.electing = true
		switch { // the new leader is asked; the old one still takes pulls for a moment, and forgets them
		case strings.EqualFold(text, "Leadership Change") && now.Sub(s.pulls.ledAt) > electingSilence:
			// The new leader says so, of each pull that was parked when the old one ended. Pulls that were made since are lost.
			s.arrivals.Requests.GiveUp()
			s.pulls.refused, s.pulls.ledAt = 0, now
			s.pulls.again(now, electingPause)
			return
		case s.pulls.refused == 0:
			s.pulls.again(now, electingPause)
			return
		case now.Before(s.pulls.retryPull): // each pull is told, also those that nobody waits for any more
			return
		}
	}
	s.pulls.backOff(now)
	s.watchdog.doubt.Store(true)
}
