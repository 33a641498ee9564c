package consumer

import (
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// lanes is how many pulls may be outstanding. Each next one is made when half of what is wanted has come, so that what
// is outstanding of the earlier ones halves each time.
const lanes = 8

// lane holds one pull at a time. The server serves parked pulls in turns, not one after the other, and a delivery does not
// say which pull it answers: that is known by its subscription alone. With the deliveries of several pulls in one
// account, the end of one pull could not be told from the progress of another, and each pull that is lost would narrow
// the window for as long as messages keep coming.
type lane struct {
	sub     *nats.Subscription
	id      int    // of the pull; later ones are greater
	pin     string // under which it was made
	left    int    // what the server may still send for it
	bytes   int    // of these, as the server counts them; it ends the pull before a message that is too many
	asked   int    // bytes, at the beginning
	expires time.Time
	parked  bool // it is for the first message after a pause
}

// end says that nothing more comes.
func (l *lane) end() { l.left, l.bytes = 0, 0 }

// pullRequests are the pulls that the server has not answered in full.
type pullRequests struct {
	lanes [lanes]lane
	next  int // id
}

func (p *pullRequests) outstanding() (n, bytes int) {
	for i := range p.lanes {
		n += p.lanes[i].left
		bytes += p.lanes[i].bytes
	}
	return n, bytes
}

// winding tells whether the server is about to end some of them. One that is parked for long is not waited for.
func (p *pullRequests) winding() bool {
	return slices.ContainsFunc(p.lanes[:], func(l lane) bool { return l.left > 0 && !l.parked })
}

// ending tells whether all of them are parked, and are over soon.
func (p *pullRequests) ending(now time.Time) bool {
	return !slices.ContainsFunc(p.lanes[:], func(l lane) bool { return l.left > 0 && (!l.parked || l.expires.Sub(now) > time.Second+idleRenew) })
}

// free is a lane without a pull; nil when there is none.
func (p *pullRequests) free() *lane {
	for i := range p.lanes {
		if l := &p.lanes[i]; l.left == 0 {
			return l
		}
	}
	return nil
}

// got counts a delivery, and tells whether it is the first one after a pause.
func (p *pullRequests) got(m *nats.Msg) (first bool) {
	for i := range p.lanes {
		if l := &p.lanes[i]; l.sub == m.Sub {
			first = l.parked && l.left > 0
			l.left, l.bytes = l.left-1, l.bytes-m.Size()
			if l.left <= 0 || l.bytes <= 0 { // below, of a pull that was given up
				l.end()
			}
			return first
		}
	}
	return false
}

// over ends the pull with this id.
func (p *pullRequests) over(id int) {
	for i := range p.lanes {
		if l := &p.lanes[i]; l.id == id {
			l.end()
		}
	}
}

// cut takes off what the server will not send of the pull with this id, by what it says is pending. The rest may still come:
// of a replicated durable messages wait for a quorum, and a status does not (nats-server, consumer.go, deliverMsg). It returns
// how many bytes the pull was for if nothing comes of it, and 0 otherwise.
func (p *pullRequests) cut(id, messages, bytes int) (unused int) {
	for i := range p.lanes {
		if l := &p.lanes[i]; l.id == id && l.left > 0 {
			if bytes == l.asked {
				unused = bytes
			}
			if l.left, l.bytes = l.left-messages, l.bytes-bytes; l.left <= 0 || l.bytes <= 0 {
				l.end()
			}
		}
	}
	return unused
}

// expire ends those whose answer is overdue.
func (p *pullRequests) expire(now time.Time) {
	for i := range p.lanes {
		if l := &p.lanes[i]; l.left > 0 && now.After(l.expires) {
			l.end()
		}
	}
}

// giveUp ends all of them.
func (p *pullRequests) giveUp() {
	for i := range p.lanes {
		p.lanes[i].end()
	}
}

// subscribe makes the lanes, on the subjects <inbox>.p<lane>.<id>.
func (a *arrivals) subscribe() error {
	for i := range a.asked.lanes {
		sub, err := a.relay.nc.ChanSubscribe(a.inbox+".p"+strconv.Itoa(i)+".*", a.all)
		if err != nil {
			return err
		}
		a.asked.lanes[i].sub = sub
	}
	return nil
}

func (a *arrivals) unsubscribe() {
	for i := range a.asked.lanes {
		_ = a.asked.lanes[i].sub.Unsubscribe()
	}
	_ = a.answers.Unsubscribe()
}
