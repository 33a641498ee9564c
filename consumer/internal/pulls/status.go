package pulls

import (
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/provision"
)

// Status is what a word of the server about a pull means.
type Status struct {
	Doubt     bool // the durable may not be what it was
	Deleted   bool // the durable was deleted, or its stream
	NewLeader bool // it has another leader, or will have one: what was sent to the one before may be lost
}

// Status takes what the server says about a pull; a message of the inbox that is neither a delivery nor an answer.
func (p *Puller) Status(m *nats.Msg, now time.Time) Status {
	id, err := strconv.Atoi(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
	if err != nil {
		return Status{}
	}
	p.heard = now
	code, text := m.Header.Get("Status"), m.Header.Get("Description")
	leaderChanged := code == "409" && strings.EqualFold(text, "Leadership Change")
	switch {
	case code == "100": // heartbeat: the pull is parked
		p.refused, p.electing, p.share.Backlog = 0, false, false
		return Status{}
	case code == "408" || code == "404": // it is over, and nothing is wrong
		p.electing = false
		if messages, bytes, ok := pending(m); ok && p.IsDraining() {
			p.requests.Cut(id, messages, bytes) // the rest is waited for
			return Status{}
		}
		p.requests.Over(id)
		return Status{}
	case code == "409" && (text == "Batch Completed" || strings.HasSuffix(text, "MaxBytes")):
		// There were bytes to spare, or the next message did not fit any more.
		messages, bytes, ok := pending(m)
		if !ok {
			p.requests.Over(id)
			return Status{}
		}
		unused := p.requests.Cut(id, messages, bytes)
		p.share.Backlog = p.share.Backlog || text != "Batch Completed"
		p.refused, p.share.Least = 0, max(p.share.Least, 2*unused) // it is larger than all that was asked for
		return Status{}
	}
	pin := p.requests.PinOf(id)
	p.requests.Over(id)
	if code == "423" || leaderChanged {
		p.losePin(pin)
	}
	p.cfg.Log.Debug("pull refused", "status", code, "description", text)
	p.electing = p.electing || code == "503"
	if !leaderChanged && (code != "409" || !strings.EqualFold(text, "Server Shutdown")) {
		p.backOff(now)
		return Status{Doubt: true, Deleted: code == "409" && strings.EqualFold(text, "Consumer Deleted")}
	}
	p.electing = true
	switch { // the new leader is asked; the old one still takes pulls for a moment, and forgets them
	case leaderChanged && now.Sub(p.ledAt) > electingSilence:
		// The new leader says so, of each pull that was parked when the old one ended. Pulls that were made since are lost.
		p.requests.GiveUp()
		p.refused, p.ledAt = 0, now
		p.again(now, electingPause)
		return Status{NewLeader: true}
	case p.refused == 0:
		p.again(now, electingPause)
		return Status{NewLeader: true}
	case now.Before(p.notYet): // each pull is told, also those that nobody waits for any more
		return Status{NewLeader: true}
	}
	p.backOff(now)
	return Status{NewLeader: true, Doubt: true}
}

// pending is what the server will not send of a pull, if it says so.
func pending(m *nats.Msg) (messages, bytes int, ok bool) {
	messages, err := strconv.Atoi(m.Header.Get("Nats-Pending-Messages"))
	bytes, err2 := strconv.Atoi(m.Header.Get("Nats-Pending-Bytes"))
	return messages, bytes, err == nil && err2 == nil
}

// The server pins whoever it delivers to while nobody is pinned, and tells it the pin with each message. A change of the leader drops the pin.
// What the pin is for: provision/pin.go.

// pinHeader is what the server adds to each message.
const pinHeader = "Nats-Pin-Id"

// notePin takes the pin off a delivery.
func (p *Puller) notePin(m *nats.Msg) {
	if m.Header == nil {
		return
	}
	if id := m.Header.Get(pinHeader); id != "" {
		p.pin = id
		if delete(m.Header, pinHeader); len(m.Header) == 0 {
			m.Header = nil
		}
	}
}

// losePin notes that the server does not know the pin of a pull: it has another leader, or somebody else was pinned. While this instance has
// the claim, whoever that is is thrown out, and it pulls anew.
func (p *Puller) losePin(of string) {
	if of == "" || of != p.pin {
		return
	}
	p.pin = ""
	p.requests.endPinned(of)
	p.unpin()
}

// unpin has the server forget whom it pinned, while this instance has the claim and knows no pin: somebody who has the claim no more, or this instance, by
// a delivery that was lost on its way. Without the pin of that delivery it would get nothing until the server forgets it by itself, after a minute (package
// provision).
func (p *Puller) unpin() {
	if p.pin == "" && p.cfg.Leased() && p.cfg.Holds() {
		_ = p.cfg.Conn.PublishRequest(p.cfg.API+"CONSUMER.UNPIN."+p.cfg.Stream+"."+p.cfg.Durable, p.cfg.Conn.NewInbox(), []byte(`{"group":"`+provision.PinGroup+`"}`))
	}
}
