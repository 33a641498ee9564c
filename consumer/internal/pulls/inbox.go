// Package pulls asks the server for the messages of a durable, and receives what comes of it. A [Puller] decides when to ask for how much: by what
// there is room for, by its part of the link, and by what the server says of the pulls before. What becomes of a message is for its user.
package pulls

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Inbox is where all comes that is sent for a durable: the deliveries and statuses of its pulls, and the answers to what its session sends. Unless
// it says otherwise, a method is for the one goroutine that receives.
type Inbox struct {
	cfg  Config
	name string // fixed by Begin
	// woken has who receives look whether there is more room.
	woken   chan struct{}
	allOver chan struct{} // closed when it drains and no pull that is about to end is outstanding
	wound   sync.Once
	drained chan struct{} // closed when nothing more arrives, and what did was looked at
	ended   chan struct{} // closed when nobody receives any more

	mu       sync.Mutex     // held by who receives for each change of these, and by others to read them
	all      chan *nats.Msg // in the order of the wire
	answers  *nats.Subscription
	draining bool

	requests Requests // the pulls; their subscriptions are fixed while it drains
}

// arrivedSize bounds what has arrived and was not looked at. Requests are bounded so that it does not fill; if it does,
// nats.go drops messages, which JetStream delivers again and whose confirmations are asked for again. An inbox begins with room for
// arrivedLittle, and gets the rest when it has use for it: 1,000 routes of which each gets a few messages a second need 350 MiB less.
const (
	arrivedSize   = 32 << 10
	arrivedLittle = 1 << 10
)

// newInbox returns one for a durable that is not open yet.
func newInbox(cfg Config) *Inbox {
	return &Inbox{
		cfg: cfg, woken: make(chan struct{}, 1), allOver: make(chan struct{}), drained: make(chan struct{}), ended: make(chan struct{}), all: make(chan *nats.Msg, arrivedLittle),
	}
}

// Begin gives it a name: subjects below that are its own.
func (a *Inbox) Begin() { a.name = a.cfg.Conn.NewInbox() }

// Name is what the subjects of the inbox begin with.
func (a *Inbox) Name() string { return a.name }

// Subscribe begins to receive: answers on <name>.a.*, and of pulls on <name>.p<lane>.<id>. After an error Close ends what it began.
func (a *Inbox) Subscribe() (err error) {
	if a.answers, err = a.cfg.Conn.ChanSubscribe(a.name+".a.*", a.all); err != nil {
		return err
	}
	for i := range a.requests.Lanes {
		if a.requests.Lanes[i].Sub, err = a.cfg.Conn.ChanSubscribe(a.name+".p"+strconv.Itoa(i)+".*", a.all); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the subscriptions.
func (a *Inbox) Close() {
	for i := range a.requests.Lanes {
		if sub := a.requests.Lanes[i].Sub; sub != nil {
			_ = sub.Unsubscribe()
		}
	}
	if a.answers != nil {
		_ = a.answers.Unsubscribe()
	}
}

// Arrived brings what has come, in the order of the wire. It may be another channel each time.
func (a *Inbox) Arrived() chan *nats.Msg { return a.all }

// Woken has a value when somebody called Wake.
func (a *Inbox) Woken() <-chan struct{} { return a.woken }

// Room is how many messages may have arrived and not have been looked at. It may be called by anybody.
func (a *Inbox) Room() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return cap(a.all)
}

// mayArrive tells whether there is room for what comes of one more pull of batch messages beside out that are outstanding, and for the answers about all that are in hand. If
// not, it makes room once all that was asked for is here.
func (a *Inbox) mayArrive(out, batch int, live, unconfirmed int) bool {
	if cap(a.all) == arrivedSize {
		return true
	}
	return 2*(out+batch+live+unconfirmed) <= cap(a.all) || out == 0 && a.widen()
}

// widen has all that arrives from now on go to a larger channel. Nothing is on its way but answers, and what a pull brings that was given up.
func (a *Inbox) widen() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.draining {
		return false
	}
	wide := make(chan *nats.Msg, arrivedSize)
	var subs [1 + Lanes]*nats.Subscription
	for i := range subs {
		to := a.name + ".a.*"
		if i < Lanes {
			to = fmt.Sprintf("%s.p%d-wide.*", a.name, i)
		}
		var err error
		if subs[i], err = a.cfg.Conn.ChanSubscribe(to, wide); err != nil { // closed
			for _, sub := range subs[:i] {
				_ = sub.Unsubscribe()
			}
			return false
		}
	}
	narrow, before := a.all, [1 + Lanes]*nats.Subscription{Lanes: a.answers}
	for i := range a.requests.Lanes {
		before[i], a.requests.Lanes[i].Sub = a.requests.Lanes[i].Sub, subs[i]
	}
	a.all, a.answers = wide, subs[Lanes]
	go a.linger(narrow, wide, before[:])
	return true
}

// lingerFor is how long subscriptions stay after others took their place.
const lingerFor = time.Second

// linger hands on what still comes to the subscriptions before, and ends them. The server chooses who gets a message, and sends it a moment later. If
// a subscription ends in between, nobody gets the message, also when there is another subscription by then. Without the answer that so got lost no
// ack would be confirmed for two seconds, and soon nothing more be asked for. Meanwhile answers come twice, which does no harm.
func (a *Inbox) linger(from <-chan *nats.Msg, to chan<- *nats.Msg, subs []*nats.Subscription) {
	end := time.NewTimer(lingerFor)
	defer end.Stop()
	for {
		select {
		case m := <-from:
			select {
			case to <- m:
			default: // its confirmation is asked for again
			}
			continue
		case <-end.C:
		case <-a.ended:
		}
		for _, sub := range subs {
			_ = sub.Unsubscribe()
		}
		return
	}
}

// Waiting is how many have arrived and were not looked at.
func (a *Inbox) Waiting() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.all)
}

// withdraw takes back what is parked for long, when nothing may come any more: a pull whose subject nobody hears is dropped by the server.
func (a *Inbox) withdraw() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.requests.Lanes {
		l := &a.requests.Lanes[i]
		if l.Left == 0 || !l.Parked || a.draining { // who drains ends the subscriptions
			continue
		}
		sub, err := a.cfg.Conn.ChanSubscribe(fmt.Sprintf("%s.p%d-%d.*", a.name, i, l.ID), a.all)
		if err != nil {
			continue // closed
		}
		_ = l.Sub.Drain() // what is on its way still arrives
		l.Sub = sub
		l.End()
	}
}

// Abandon takes all pulls back: the durable is gone, and another one of the same name would send for them. What is on its way still arrives.
func (a *Inbox) Abandon() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests.GiveUp()
	for i := range a.requests.Lanes {
		_ = a.requests.Lanes[i].Sub.Drain()
	}
}

// Wake makes the pull loop look whether there is more room.
func (a *Inbox) Wake() {
	select {
	case a.woken <- struct{}{}:
	default:
	}
}

// Contact tells the session, in the order of the wire, that the server answered something sent then.
func (a *Inbox) Contact(sent time.Time) {
	m := &nats.Msg{Subject: contactMark, Data: []byte(sent.Sub(epoch).String())}
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case a.all <- m:
	default: // full of proofs of contact
	}
}

// contactMark is the subject of a message that relay puts among the arrived ones itself.
const contactMark = "contact"

// epoch makes monotonic times of durations.
var epoch = time.Now()

// Contacted tells whether a message that has arrived was put there by Contact, and for what time.
func Contacted(m *nats.Msg) (sent time.Time, ok bool) {
	if m.Subject != contactMark {
		return time.Time{}, false
	}
	d, err := time.ParseDuration(string(m.Data))
	return epoch.Add(d), err == nil
}
