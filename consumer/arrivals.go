package consumer

import (
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/ack"
)

// arrivals is where all comes that a source is sent: the deliveries and statuses of its pulls, and the answers to what its session sends.
type arrivals struct {
	*binding

	// Fixed when the source is open:
	inbox string
	// woken has the pull loop look whether there is more room.
	woken   chan struct{}
	allOver chan struct{} // closed when it drains and no pull that is about to end is outstanding
	wound   sync.Once
	drained chan struct{} // closed when nothing more arrives, and what did is with the routes
	ended   chan struct{} // closed when the pull loop is over

	mu       sync.Mutex     // held by the pull loop for each change of these, and by others to read them
	all      chan *nats.Msg // in the order of the wire
	answers  *nats.Subscription
	asked    pullRequests // of the pull loop only, but for its subscriptions, which are fixed while it drains
	draining bool
}

// arrivedSize bounds what has arrived and was not looked at. Requests are bounded so that it does not fill; if it does,
// nats.go drops messages, which JetStream delivers again and whose confirmations are asked for again. A source begins with room for
// arrivedLittle, and gets the rest when it has use for it: 1,000 routes of which each gets a few messages a second need 350 MiB less.
const (
	arrivedSize   = 32 << 10
	arrivedLittle = 1 << 10
)

func newArrivals(b *binding) arrivals {
	return arrivals{
		binding: b, woken: make(chan struct{}, 1), allOver: make(chan struct{}), drained: make(chan struct{}), ended: make(chan struct{}), all: make(chan *nats.Msg, arrivedLittle),
	}
}

// mayArrive tells whether there is room for what comes of one more pull, and for the answers about all that the routes have in hand. If
// not, it makes room once all that was asked for is here.
func (a *arrivals) mayArrive(out, batch int, session *ack.Session) bool {
	if cap(a.all) == arrivedSize {
		return true
	}
	st := session.Stats()
	return 2*(out+batch+st.Live+st.Unconfirmed) <= cap(a.all) || out == 0 && a.widen()
}

// widen has all that arrives from now on go to a larger channel. Nothing is on its way but answers, and what a pull brings that was given
// up: the server delivers that again.
func (a *arrivals) widen() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.draining {
		return false
	}
	wide := make(chan *nats.Msg, arrivedSize)
	var subs [1 + lanes]*nats.Subscription
	for i := range subs {
		to := a.inbox + ".a.*"
		if i < lanes {
			to = fmt.Sprintf("%s.p%d-wide.*", a.inbox, i)
		}
		var err error
		if subs[i], err = a.relay.nc.ChanSubscribe(to, wide); err != nil { // closed
			for _, sub := range subs[:i] {
				_ = sub.Unsubscribe()
			}
			return false
		}
	}
	for i := range a.asked.lanes {
		_ = a.asked.lanes[i].sub.Unsubscribe()
		a.asked.lanes[i].sub = subs[i]
	}
	// Answers that the server sends before it knows of the new subscription come to the old one. Without them no ack would be confirmed
	// for two seconds, and soon nothing more be asked for.
	narrow, before := a.all, a.answers
	a.all, a.answers = wide, subs[lanes]
	_ = before.Drain()
	go func() {
		_ = a.relay.nc.FlushTimeout(settleTimeout) // with its answer all of them are here
		for {
			select {
			case m := <-narrow:
				select {
				case wide <- m:
				default: // its confirmation is asked for again
				}
			default:
				return
			}
		}
	}()
	return true
}

// waiting is how many have arrived and were not looked at.
func (a *arrivals) waiting() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.all)
}

// withdraw takes back what is parked for long, when nothing may come any more: a pull whose subject nobody hears is dropped by the server.
func (a *arrivals) withdraw() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.asked.lanes {
		l := &a.asked.lanes[i]
		if l.left == 0 || !l.parked || a.draining { // who drains ends the subscriptions
			continue
		}
		sub, err := a.relay.nc.ChanSubscribe(fmt.Sprintf("%s.p%d-%d.*", a.inbox, i, l.id), a.all)
		if err != nil {
			continue // closed
		}
		_ = l.sub.Drain() // what is on its way still arrives
		l.sub = sub
		l.end()
	}
}

// wake makes the pull loop look whether there is more room.
func (a *arrivals) wake() {
	select {
	case a.woken <- struct{}{}:
	default:
	}
}

// contact tells the session, in the order of the wire, that the server answered something sent then.
func (a *arrivals) contact(sent time.Time) {
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
