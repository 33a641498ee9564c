package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// publishWindow is how many messages a publisher has unconfirmed at most.
const publishWindow = 2048

// publisher stores messages in a stream, confirmed in the order of the wire.
type publisher struct {
	nc       *nats.Conn
	inbox    string
	answers  *nats.Subscription
	window   chan struct{}
	refused  chan error
	subjects []string
	body     []byte
	n        uint64
}

// routesOf is how many first tokens subjects have; each is a route's in the job with several routes.
const routesOf = 4

func subjectOf(i int) string { return "bench." + strconv.Itoa(i%routesOf) + "." + strconv.Itoa(i) }

func newPublisher(nc *nats.Conn, subjects, size int, seed uint64) (*publisher, error) {
	p := &publisher{
		nc: nc, inbox: nc.NewInbox(), window: make(chan struct{}, publishWindow), refused: make(chan error, 1),
		body: make([]byte, max(size, stampLen)),
	}
	random := rand.New(rand.NewPCG(seed, 1))
	for i := range p.body {
		p.body[i] = byte(random.Uint32())
	}
	for _, i := range random.Perm(subjects) {
		p.subjects = append(p.subjects, subjectOf(i))
	}
	var err error
	p.answers, err = nc.Subscribe(p.inbox, func(m *nats.Msg) {
		// {"stream":…,"seq":…} or {"error":…}
		if len(m.Data) < 3 || string(m.Data[:3]) != `{"s` {
			select {
			case p.refused <- fmt.Errorf("not stored: %s %s", m.Header.Get("Status"), m.Data):
			default:
			}
		}
		<-p.window
	})
	return p, err
}

// send publishes the next message, stamped.
func (p *publisher) send(at time.Time) error {
	stamp(p.body, at, p.n)
	p.window <- struct{}{}
	subject := p.subjects[p.n%uint64(len(p.subjects))]
	p.n++
	return p.nc.PublishRequest(subject, p.inbox, p.body)
}

// wait returns when all is confirmed.
func (p *publisher) wait(atMost time.Duration) error {
	deadline := time.NewTimer(atMost)
	defer deadline.Stop()
	for range cap(p.window) {
		select {
		case p.window <- struct{}{}:
		case <-deadline.C:
			return errors.New("the stream does not confirm what is published")
		}
	}
	for range cap(p.window) {
		<-p.window
	}
	select {
	case err := <-p.refused:
		return err
	default:
		return nil
	}
}
