package consumer

import (
	"fmt"

	"github.com/nats-io/nats.go"
)

// mayArrive tells whether there is room for what comes of one more pull, and for the answers about all that the routes have in hand. If
// not, it makes room once all that was asked for is here.
func (s *source) mayArrive(out, batch int) bool {
	if cap(s.arrived) == arrivedSize {
		return true
	}
	st := s.session.Stats()
	return 2*(out+batch+st.Live+st.Unconfirmed) <= cap(s.arrived) || out == 0 && s.widen()
}

// widen has all that arrives from now on go to a larger channel. Nothing is on its way but answers, and what a pull brings that was given
// up: the server delivers that again.
func (s *source) widen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return false
	}
	wide := make(chan *nats.Msg, arrivedSize)
	var subs [1 + lanes]*nats.Subscription
	for i := range subs {
		to := s.inbox + ".a.*"
		if i < lanes {
			to = fmt.Sprintf("%s.p%d-wide.*", s.inbox, i)
		}
		var err error
		if subs[i], err = s.relay.nc.ChanSubscribe(to, wide); err != nil { // closed
			for _, sub := range subs[:i] {
				_ = sub.Unsubscribe()
			}
			return false
		}
	}
	for i := range s.asked.lanes {
		_ = s.asked.lanes[i].sub.Unsubscribe()
		s.asked.lanes[i].sub = subs[i]
	}
	// Answers that the server sends before it knows of the new subscription come to the old one. Without them no ack would be confirmed
	// for two seconds, and soon nothing more be asked for.
	narrow, before := s.arrived, s.answers
	s.arrived, s.answers = wide, subs[lanes]
	_ = before.Drain()
	go func() {
		_ = s.relay.nc.FlushTimeout(settleTimeout) // with its answer all of them are here
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

// withdraw takes back what is parked for long, when nothing may come any more: a pull whose subject nobody hears is dropped by the server.
func (s *source) withdraw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.asked.lanes {
		l := &s.asked.lanes[i]
		if l.left == 0 || !l.parked || s.draining { // who drains ends the subscriptions
			continue
		}
		sub, err := s.relay.nc.ChanSubscribe(fmt.Sprintf("%s.p%d-%d.*", s.inbox, i, l.id), s.arrived)
		if err != nil {
			continue // closed
		}
		_ = l.sub.Drain() // what is on its way still arrives
		l.sub = sub
		l.end()
	}
}
