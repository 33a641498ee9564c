package pulls

import (
	"slices"
	"time"

	"github.com/nats-io/nats.go"
)

// Expires is how long a pull lasts while messages come, and Heartbeat how often the server says that it is parked. IdleRenew is how long before the
// end of a pull that is parked for long the next one is made, on a tick: then their heartbeats come together.
const (
	Expires   = 2 * time.Second
	Heartbeat = time.Second
	IdleRenew = 3 * Heartbeat / 2
)

// Lanes is how many pulls may be outstanding. Each next one is made when half of what is wanted has come, so that what
// is outstanding of the earlier ones halves each time.
const Lanes = 8

// Lane holds one pull at a time. The server serves parked pulls in turns, not one after the other, and a delivery does not
// say which pull it answers: that is known by its subscription alone. With the deliveries of several pulls in one
// account, the end of one pull could not be told from the progress of another, and each pull that is lost would narrow
// the window for as long as messages keep coming.
type Lane struct {
	Sub     *nats.Subscription
	ID      int    // of the pull; later ones are greater
	Pin     string // under which it was made
	Left    int    // what the server may still send for it
	Bytes   int    // of these, as the server counts them; it ends the pull before a message that is too many
	Asked   int    // bytes, at the beginning
	Expires time.Time
	Parked  bool // it is for the first message after a pause
}

// End says that nothing more comes.
func (l *Lane) End() { l.Left, l.Bytes = 0, 0 }

// Requests are the pulls that the server has not answered in full.
type Requests struct {
	Lanes [Lanes]Lane
	Last  int // id of the latest one
}

// Outstanding is how many messages, and bytes of them, the server may still send.
func (p *Requests) Outstanding() (n, bytes int) {
	for i := range p.Lanes {
		n += p.Lanes[i].Left
		bytes += p.Lanes[i].Bytes
	}
	return n, bytes
}

// Winding tells whether the server is about to end some of them. One that is parked for long is not waited for.
func (p *Requests) Winding() bool {
	return slices.ContainsFunc(p.Lanes[:], func(l Lane) bool { return l.Left > 0 && !l.Parked })
}

// Ending tells whether all of them are parked, and are over soon.
func (p *Requests) Ending(now time.Time) bool {
	return !slices.ContainsFunc(p.Lanes[:], func(l Lane) bool { return l.Left > 0 && (!l.Parked || l.Expires.Sub(now) > time.Second+IdleRenew) })
}

// Free is a lane without a pull; nil when there is none.
func (p *Requests) Free() *Lane {
	for i := range p.Lanes {
		if l := &p.Lanes[i]; l.Left == 0 {
			return l
		}
	}
	return nil
}

// Got counts a delivery, and tells whether it is the first one after a pause.
func (p *Requests) Got(m *nats.Msg) (first bool) {
	for i := range p.Lanes {
		if l := &p.Lanes[i]; l.Sub == m.Sub {
			first = l.Parked && l.Left > 0
			l.Left, l.Bytes = l.Left-1, l.Bytes-m.Size()
			if l.Left <= 0 || l.Bytes <= 0 { // below, of a pull that was given up
				l.End()
			}
			return first
		}
	}
	return false
}

// Over ends the pull with this id.
func (p *Requests) Over(id int) {
	for i := range p.Lanes {
		if l := &p.Lanes[i]; l.ID == id {
			l.End()
		}
	}
}

// Cut takes off what the server will not send of the pull with this id, by what it says is pending. The rest may still come:
// of a replicated durable messages wait for a quorum, and a status does not (nats-server, consumer.go, deliverMsg). It returns
// how many bytes the pull was for if nothing comes of it, and 0 otherwise.
func (p *Requests) Cut(id, messages, bytes int) (unused int) {
	for i := range p.Lanes {
		if l := &p.Lanes[i]; l.ID == id && l.Left > 0 {
			if bytes == l.Asked {
				unused = bytes
			}
			if l.Left, l.Bytes = l.Left-messages, l.Bytes-bytes; l.Left <= 0 || l.Bytes <= 0 {
				l.End()
			}
		}
	}
	return unused
}

// Expire ends those whose answer is overdue.
func (p *Requests) Expire(now time.Time) {
	for i := range p.Lanes {
		if l := &p.Lanes[i]; l.Left > 0 && now.After(l.Expires) {
			l.End()
		}
	}
}

// GiveUp ends all of them.
func (p *Requests) GiveUp() {
	for i := range p.Lanes {
		p.Lanes[i].End()
	}
}

// endPinned ends those that were made under this pin.
func (p *Requests) endPinned(pin string) {
	for i := range p.Lanes {
		if l := &p.Lanes[i]; l.Pin == pin {
			l.End()
		}
	}
}

// PinOf is the pin under which a pull was made.
func (p *Requests) PinOf(id int) string {
	for i := range p.Lanes {
		if l := &p.Lanes[i]; l.ID == id {
			return l.Pin
		}
	}
	return ""
}
