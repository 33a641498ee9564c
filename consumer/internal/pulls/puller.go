package pulls

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer/internal/link"
	"github.com/relaymq/relay/internal/provision"
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
)

// Config says for whom a [Puller] asks. Its functions must not block.
type Config struct {
	Conn            *nats.Conn
	JS              jetstream.JetStream
	API             string // prefix of the subjects of the JetStream API
	Stream, Durable string
	// Elsewhere says that the leader of the durable is on another server than the connection, whatever its name.
	Elsewhere bool
	Log       *slog.Logger

	Link     *link.Link
	Durables func() int // that share the link
	// Among is a period as it is with as many instances as there are.
	Among func(period time.Duration) time.Duration
	// DrainTime is how long a drain may take.
	DrainTime func() time.Duration

	// Leased tells whether one instance at a time pulls, and the next one gives back what was lost on the way to this one.
	Leased func() bool
	Lease  time.Duration // how long it has the durable without a renewal
	Holds  func() bool   // this instance may have messages of the durable

	Stops func() bool // nothing may be pulled
	Room  func() (messages, bytes int)
	Full  func() bool // too much waits for the server, whatever there is room for
	// InHand is how many deliveries are not settled, and how many settlements are not confirmed.
	InHand func() (live, unconfirmed int)
}

// Puller asks for the messages of one durable, and judges what the server says of that. Unless it says otherwise, a method is for the one goroutine
// that receives. None blocks.
type Puller struct {
	*Inbox
	heard    time.Time // any message of a pull: a delivery, a heartbeat, a status
	got      time.Time // a delivery
	notYet   time.Time // no pull before then
	refused  int       // pulls in a row
	electing bool      // the durable may have no leader just now
	ledAt    time.Time // when a new leader last said so, and pulls began anew
	share    link.Puller
	mean     int    // bytes, of the latest messages
	pin      string // of a leased one: what the server knows this instance by
}

// New returns one for a durable that is not open yet.
func New(cfg Config) *Puller { return &Puller{Inbox: newInbox(cfg)} }

// Open makes the inbox of a durable that is there, on which so many messages wait.
func (p *Puller) Open(pending uint64) {
	p.Begin()
	p.share = link.Puller{Wake: p.Wake, Least: link.LeastPull, Backlog: pending > 0}
}

// Start is called before the first pull.
func (p *Puller) Start(now time.Time) { p.heard, p.got = now, now }

// Leave ends the part of the link that it had.
func (p *Puller) Leave() { p.cfg.Link.Leave(&p.share) }

// Heard is when anything of a pull came last.
func (p *Puller) Heard() time.Time { return p.heard }

// Got is when a delivery came last.
func (p *Puller) Got() time.Time { return p.got }

// Ask pulls for what there is room for, once half of it is worth asking. While it drains it says when no pull is about to end any more.
func (p *Puller) Ask(now time.Time) {
	p.hearNobody(now)
	p.ask(now)
	if !p.requests.Winding() && p.IsDraining() {
		p.woundDown()
	}
}

func (p *Puller) ask(now time.Time) {
	stop := p.cfg.Stops() || p.IsDraining() || now.Before(p.notYet) || !p.cfg.Holds()
	p.requests.Expire(now)
	free := p.requests.Free()
	messages, room := p.cfg.Room()
	if stop || messages <= 0 {
		p.withdraw()
	}
	out, outBytes := p.requests.Outstanding()
	part := p.cfg.Link.Part(&p.share, p.cfg.Durables())
	room = min(room, part.Most)
	leased := p.cfg.Leased()
	idle := now.Sub(p.got) >= idleAfter && !leased
	silent := p.electing && now.Sub(p.got) >= missedHeartbeats
	none := stop || free == nil || p.electing && out > 0 || idle && out > 0 && !p.requests.Ending(now) || messages <= out || messages < 2*out || room <= outBytes || room < 2*outBytes || p.cfg.Full()
	// Twice the bytes that so many messages of mean size have, but at most half of the room: the next pull is sent before all
	// messages of this one are there.
	batch := messages - out
	bytes := max(min(2*batch*p.mean, (room-outBytes)/2), part.Least)
	if none = none || !p.mayArrive(out, batch); none {
		bytes = 0
	}
	if !p.cfg.Link.MayAsk(&p.share, part, outBytes, bytes) || none {
		return
	}
	expires, group := Expires, ""
	if idle { // for as many bytes as before: the message may be a large one
		batch, expires = 1, min(p.cfg.Among(idleExpires), longestPull)
	}
	if silent { // perhaps it is the link that stands still: then the server has all of these pulls in the end
		batch = 1
	}
	if leased {
		if p.pin == "" { // the server tells it with the first message
			if out > 0 {
				return
			}
			batch = 1
		}
		// What is parked for longer than a lease would get messages when this instance may not start them any more.
		expires = min(expires, p.cfg.Lease)
		group = fmt.Sprintf(`,"group":%q,"id":%q`, provision.PinGroup, p.pin)
	}
	p.requests.Last++
	id := p.requests.Last
	heartbeat := Heartbeat
	if p.electing {
		expires, heartbeat = min(expires, electingExpires), electingHeartbeat
		time.AfterFunc(electingSilence, p.Wake)
	}
	body := fmt.Appendf(nil, `{"batch":%d,"max_bytes":%d,"expires":%d,"idle_heartbeat":%d%s}`, batch, bytes, expires, heartbeat, group)
	to := p.cfg.API + "CONSUMER.MSG.NEXT." + p.cfg.Stream + "." + p.cfg.Durable
	if err := p.cfg.Conn.PublishRequest(to, strings.TrimSuffix(free.Sub.Subject, "*")+strconv.Itoa(id), body); err != nil {
		p.backOff(now) // disconnected
		return
	}
	if out == 0 {
		p.heard = now
	}
	free.ID, free.Pin, free.Left, free.Bytes, free.Asked, free.Expires = id, p.pin, batch, bytes, bytes, now.Add(expires+time.Second)
	free.Parked = idle
}

// mayArrive tells whether there is room for what comes of one more pull.
func (p *Puller) mayArrive(out, batch int) bool {
	live, unconfirmed := p.cfg.InHand()
	return p.Inbox.mayArrive(out, batch, live, unconfirmed)
}

// Tick is called about once a second. A large message may have been an exception.
func (p *Puller) Tick() {
	if !p.share.InLine() {
		p.share.Least = max(link.LeastPull, p.share.Least/2)
	}
}

// Told takes note of whether more messages wait on the durable, as a delivery tells: how many are pending after it, and how often it was delivered.
func (p *Puller) Told(pending, deliveries uint64) { p.share.Backlog = pending > 0 || deliveries > 1 }

// Delivered takes note of a delivery, and tells whether it is the first one after a pause. It takes the pin off it.
func (p *Puller) Delivered(m *nats.Msg, now time.Time) (first bool) {
	first = p.requests.Got(m)
	if p.cfg.Leased() {
		p.notePin(m)
	}
	p.mean += (m.Size() - p.mean) / 8
	p.heard, p.got, p.refused, p.electing = now, now, 0, false
	return first
}

// Reconnected forgets what the server has forgotten, and asks anew at once. A pull that survived because the server did
// not notice brings some messages more than there is room for.
func (p *Puller) Reconnected() {
	p.requests.GiveUp()
	p.refused, p.notYet = 0, time.Time{}
	p.unpin()
}

// Anew gives up all pulls. The subscriptions stay: without them, what the server sends just now would be away for AckWait.
func (p *Puller) Anew() {
	p.requests.GiveUp()
	p.pin = ""
	p.unpin()
}

// IsLost tells whether nothing was heard of a pull for too long, and then gives all up.
func (p *Puller) IsLost(now time.Time) bool {
	if out, _ := p.requests.Outstanding(); out == 0 || now.Sub(p.heard) <= missedHeartbeats {
		return false
	}
	p.requests.GiveUp()
	p.unpin()
	p.electing = true
	p.backOff(now)
	return true
}

// backOff waits before the next pull, up to a second: a server that is electing a leader must not be hammered. A leader that steps down has a
// successor within some 20 ms, and one that is killed within 4 to 9 s: until then its successor is not to wait for the next pull.
func (p *Puller) backOff(now time.Time) {
	first, most := 50*time.Millisecond, time.Second
	if p.electing && p.refused < electingTries {
		first, most = 10*time.Millisecond, 300*time.Millisecond
	}
	p.again(now, min(first<<min(p.refused, 6), most))
}

func (p *Puller) again(now time.Time, wait time.Duration) {
	p.notYet = now.Add(wait)
	p.refused++
	time.AfterFunc(wait, p.Wake)
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
func (p *Puller) hearNobody(now time.Time) {
	if out, _ := p.requests.Outstanding(); !p.electing || out == 0 || now.Sub(p.heard) < electingSilence {
		return
	}
	p.requests.GiveUp()
	p.backOff(now)
}
