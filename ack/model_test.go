package ack

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"
)

// TestSession_model lets a session deal with a server, a link and another instance that do what they like: messages are
// delivered, redelivered and lost, answers too, the link stalls and breaks, the process is stopped and goes on.
func TestSession_model(t *testing.T) {
	play := func(rt *rapid.T) {
		moves := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) move {
			return move{rapid.SampledFrom(moveKinds).Draw(t, "kind"), rapid.IntRange(0, 99).Draw(t, "n")}
		}), 1, 120).Draw(rt, "moves")
		seed := rapid.Int64().Draw(rt, "seed")
		var err error
		synctest.Test(t, func(t *testing.T) { err = newModel(seed).play(moves) })
		if err != nil {
			rt.Fatal(err)
		}
	}
	for range 5 { // the rarer faults took some hundred plays to be found
		rapid.Check(t, play)
	}
}

type move struct {
	kind string
	n    int
}

var moveKinds = []string{
	"deliver", "deliver", "deliver", "ack", "ack", "nak", "nak", "give back", "release", "time", "time", "time", "time",
	"pause", "stall", "heal", "cut", "change leader", "change leader", "quiet", "end quiet",
}

const modelAckWait = 6 * time.Second

// holder is who has a message, by the server's account.
type holder int

const (
	nobody holder = iota // it waits for a delay
	us
	another
)

// modelled is a message as the server has it.
type modelled struct {
	deliveries int
	holder     holder
	until      time.Time // its lease, or its delay
	done       bool
}

// packet is something on the link.
type packet struct {
	to, reply, payload string
	delivery           *nats.Msg
	ping               time.Time // when it was sent, also in its answer
	changed            bool      // the leader of the durable
}

type model struct {
	s    *Session
	rand *rand.Rand
	sub  nats.Subscription

	messages map[uint64]*modelled
	others   holder // who gets redeliveries when it is not drawn: the end of a play is ours
	live     []*Delivery
	acked    map[uint64]bool
	naked    map[string]bool // reply subjects of deliveries that were NAKed

	stalled  bool
	links    uint64
	up, down []packet
	steps    int
	err      error
}

func newModel(seed int64) *model {
	m := &model{rand: rand.New(rand.NewSource(seed)), messages: map[uint64]*modelled{}, acked: map[uint64]bool{}, naked: map[string]bool{}}
	m.s = NewSession(Config{Inbox: inbox, Conn: m, Link: func() uint64 { return m.links }, AckWait: modelAckWait, Info: m.info})
	return m
}

func (m *model) fail(format string, args ...any) {
	if m.err == nil {
		m.err = fmt.Errorf("after %d steps: "+format, append([]any{m.steps}, args...)...)
	}
}

func (m *model) Publish(to string, payload []byte) error { return m.PublishRequest(to, "", payload) }

// PublishRequest is where the session sends. That is the moment at which it must be right.
func (m *model) PublishRequest(to, reply string, payload []byte) error {
	msg := m.messages[sequenceOf(to)]
	switch {
	case string(payload) == "+ACK":
		if m.s.acks.held {
			m.fail("+ACK of message %d while the server looks for what is due", sequenceOf(to))
		}
	case msg.holder == another:
		m.fail("%s of message %d, which another instance has", payload, sequenceOf(to))
	case msg.done:
		m.fail("%s of message %d, which is done", payload, sequenceOf(to))
	case string(payload) == "+WPI":
		if m.naked[to] {
			m.fail("+WPI follows the NAK of %s", to)
		}
	default:
		m.naked[to] = true
	}
	m.up = append(m.up, packet{to: to, reply: reply, payload: string(payload)})
	return nil
}

func (m *model) info(context.Context) (Info, error) {
	if m.stalled {
		return Info{}, errors.New("no answer")
	}
	return Info{}, nil
}

func (m *model) play(moves []move) error {
	for _, mv := range moves {
		m.move(mv)
		m.check()
	}
	// All is well again: every message must be handled in the end, and nothing stay unconfirmed.
	m.stalled, m.others = false, us
	m.s.endQuiet()
	for i := 0; i < 600 && !m.quiet(); i++ {
		for _, d := range m.live {
			m.ack(d)
		}
		m.live = nil
		m.step(true)
	}
	m.check()
	for seq, msg := range m.messages {
		if !msg.done {
			m.fail("message %d is never handled: %+v", seq, *msg)
		}
	}
	if st := m.s.Stats(); st.Unconfirmed != 0 || st.Live != 0 {
		m.fail("left behind: %+v", st)
	}
	return m.err
}

func (m *model) quiet() bool {
	for _, msg := range m.messages {
		if !msg.done {
			return false
		}
	}
	st := m.s.Stats()
	return st.Unconfirmed == 0 && st.Live == 0
}

func (m *model) move(mv move) {
	var d *Delivery
	if n := len(m.live); n > 0 {
		d = m.live[mv.n%n]
	}
	switch mv.kind {
	case "deliver":
		for range mv.n%5 + 1 {
			seq := uint64(len(m.messages) + 1)
			m.messages[seq] = &modelled{}
			m.give(seq, us)
		}
		m.flow()
	case "time":
		for range mv.n%20 + 1 {
			m.step(true)
		}
	case "pause": // SIGSTOP, perhaps for longer than AckWait; what runs first afterwards is chance
		for range mv.n + 1 {
			m.step(false)
		}
		if mv.n%2 == 0 {
			m.drive()
		}
	case "stall":
		m.stalled = true
	case "heal":
		m.stalled = false
	case "cut":
		m.up, m.down, m.stalled = nil, nil, false
		m.links++
		m.s.Reconnected()
	case "change leader": // it forgets what it has not taken yet
		m.up = slices.DeleteFunc(m.up, func(p packet) bool { return p.ping.IsZero() })
		m.down = append(m.down, packet{changed: true})
	case "quiet":
		m.s.acks.held = true
	case "end quiet":
		m.s.endQuiet()
	case "ack":
		m.ack(d)
	case "nak":
		if d != nil {
			_ = d.Nak(time.Now().Add(time.Duration(mv.n-10) * 60 * time.Millisecond))
		}
	case "give back":
		if d != nil {
			_ = d.GiveBack()
		}
	case "release":
		if d != nil {
			d.Release()
		}
	}
}

func (m *model) ack(d *Delivery) {
	if d != nil && d.Ack(nil) == nil {
		if m.acked[d.Sequence] && m.messages[d.Sequence].deliveries == 1 {
			m.fail("message %d acked twice and delivered once", d.Sequence)
		}
		m.acked[d.Sequence] = true
	}
}

// step is a tenth of a second; while the process is stopped only the others move.
func (m *model) step(running bool) {
	m.steps++
	time.Sleep(burstEvery)
	if running && m.steps%5 == 0 {
		m.up = append(m.up, packet{ping: time.Now()})
	}
	m.serve()
	if running {
		m.flow()
		m.drive()
	} else if !m.stalled {
		m.arriveAtServer()
	}
}

// drive is what Run does with each tick.
func (m *model) drive() {
	m.s.burst()
	m.s.extend(m.s.now())
	if m.steps%10 == 0 {
		m.s.look(context.Background())
	}
}

// serve is the server's clock.
func (m *model) serve() {
	for seq := range uint64(len(m.messages)) {
		seq++
		msg := m.messages[seq]
		if msg.done {
			continue
		}
		if msg.holder == another && m.rand.Intn(20) == 0 {
			if m.rand.Intn(2) == 0 || m.others == us {
				msg.done = true
				continue
			}
			msg.holder, msg.until = nobody, time.Now().Add(time.Duration(m.rand.Intn(2000))*time.Millisecond)
		}
		if time.Now().Before(msg.until) {
			continue
		}
		to := us
		if m.others != us && m.rand.Intn(2) == 0 {
			to = another
		}
		m.give(seq, to)
	}
}

func (m *model) give(seq uint64, to holder) {
	msg := m.messages[seq]
	msg.deliveries++
	msg.holder, msg.until = to, time.Now().Add(modelAckWait)
	if to == us {
		m.down = append(m.down, packet{delivery: &nats.Msg{Sub: &m.sub, Reply: reply(seq, msg.deliveries, storedAt)}})
	}
}

// flow lets pass what is on the link.
func (m *model) flow() {
	if m.stalled {
		return
	}
	m.arriveAtServer()
	list := m.down
	m.down = nil
	for _, p := range list {
		switch {
		case p.delivery != nil:
			d, err := m.s.Receive(p.delivery)
			if err != nil {
				m.fail("%v", err)
			}
			if d == nil {
				continue
			}
			if d.Fenced() {
				d.Release()
				continue
			}
			m.live = append(m.live, d)
		case p.changed:
			m.s.LeaderChanged()
		case !p.ping.IsZero():
			m.s.Contact(p.ping)
		default:
			m.s.Reply(&nats.Msg{Subject: p.to})
		}
	}
	m.live = stillLive(m.live)
}

func stillLive(list []*Delivery) (still []*Delivery) {
	for _, d := range list {
		if d.state == live {
			still = append(still, d)
		}
	}
	return still
}

func (m *model) arriveAtServer() {
	list := m.up
	m.up = nil
	for _, p := range list {
		if !p.ping.IsZero() {
			m.down = append(m.down, packet{ping: p.ping})
			continue
		}
		msg := m.messages[sequenceOf(p.to)]
		switch {
		case msg.done:
		case p.payload == "+ACK":
			msg.done = true
		case p.payload == "+WPI":
			if msg.holder != nobody {
				msg.until = time.Now().Add(modelAckWait)
			}
		default:
			var delay time.Duration
			_, _ = fmt.Sscanf(p.payload, `-NAK {"delay":%d}`, &delay)
			msg.holder, msg.until = nobody, time.Now().Add(delay)
		}
		if p.reply != "" {
			m.down = append(m.down, packet{to: p.reply})
		}
	}
}

func sequenceOf(to string) (seq uint64) {
	_, _ = fmt.Sscan(strings.Split(to, ".")[5], &seq)
	return seq
}

// check holds after every move.
func (m *model) check() {
	st := m.s.Stats()
	waiting := uint64(len(m.s.naks))
	if st.Received != st.Acked+st.Naked+st.Fenced+st.Released+uint64(st.Live)+waiting {
		m.fail("deliveries do not add up: %+v, and %d wait for the burst", st, waiting)
	}
	if st.Acked+st.Naked+waiting != st.Confirmed+st.Forgotten+uint64(st.Unconfirmed) {
		m.fail("settlements do not add up: %+v, and %d wait for the burst", st, waiting)
	}
}
