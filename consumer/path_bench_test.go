package consumer

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/engine"
	"github.com/relaymq/relay/consumer/internal/source"
)

// acksKept is a connection that keeps the reply subjects of the acks sent on it.
type acksKept struct {
	mu      sync.Mutex
	replies []string
	sent    int
	want    int
	all     chan struct{} // has room for one; told when there are as many as wanted
}

func (a *acksKept) Publish(string, []byte) error { return a.PublishRequest("", "", nil) }

func (a *acksKept) PublishRequest(_, reply string, _ []byte) error {
	a.mu.Lock()
	if reply != "" {
		a.replies = append(a.replies, reply)
	}
	a.sent++
	last := a.sent == a.want
	a.mu.Unlock()
	if last {
		a.all <- struct{}{}
	}
	return nil
}

// answers returns the reply subjects since it was last called.
func (a *acksKept) answers() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := a.replies
	a.replies = nil
	return list
}

// BenchmarkPath is the whole way of a message that succeeds at once, without a server: it has arrived, is admitted, taken
// to its route, handled, acked, and the ack is confirmed. An operation is one message.
func BenchmarkPath(b *testing.B) {
	for _, c := range []struct {
		name   string
		routes int
		own    bool
	}{{"one route", 1, false}, {"one route, own bytes", 1, true}, {"four routes, one durable", 4, false}} {
		b.Run(c.name, func(b *testing.B) { benchmarkPath(b, c.routes, c.own) })
	}
}

func benchmarkPath(b *testing.B, routes int, own bool) {
	succeed := HandlerFunc(func(context.Context, *Msg) error { return nil })
	var cfgs []Route
	for i := range routes {
		cfgs = append(cfgs, Route{
			Name: fmt.Sprintf("r%d", i), Durable: "d", Subjects: []string{fmt.Sprintf("orders.%d.>", i)}, Handler: succeed, OwnBytes: own,
		})
	}
	r, err := New(&nats.Conn{}, Config{}, cfgs...)
	if err != nil {
		b.Fatal(err)
	}
	s := source.New(r.engine.Durables, "ORDERS", "d")
	s.Join(engine.NewUnit(r.engine, s))
	for _, rt := range r.engine.Routes.All() {
		rt.Path.Work = b.Context()
		s.Add(&rt.Source, rt.Spec.Subjects...)
		defer rt.Group.Close(context.Background())
	}
	conn := &acksKept{all: make(chan struct{}, 1)}
	s.Session = ack.NewSession(ack.Config{Inbox: "_INBOX.0123456789012345678901", Conn: conn, Link: func() uint64 { return 0 }, AckWait: 30 * time.Second})

	const batch = 256
	arriving := make([]*nats.Msg, 4*batch)
	sub := &nats.Subscription{}
	for i := range arriving {
		arriving[i] = &nats.Msg{
			Subject: fmt.Sprintf("orders.%d.%d", i%routes, i%100), Sub: sub, Data: make([]byte, 128),
			Reply: fmt.Sprintf("$JS.ACK.ORDERS.d.1.%d.%d.%d.0", i+1, i+1, time.Now().UnixNano()),
		}
	}
	answer := &nats.Msg{}
	over, cancel := context.WithCancel(b.Context())
	cancel()
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i += batch {
		n := min(batch, b.N-i)
		if i%len(arriving) == 0 {
			source.Renumbered(s) // the numbers begin again
		}
		conn.sent, conn.want = 0, n
		for j := 1; j < n; j++ {
			s.Pulls.Arrived() <- arriving[(i+j)%len(arriving)]
		}
		source.Take(s, arriving[i%len(arriving)])
		<-conn.all
		for {
			for _, reply := range conn.answers() {
				answer.Subject = reply
				s.Session.Reply(answer)
			}
			if s.Session.Wait(over) == nil { // it has the last ones confirmed
				break
			}
		}
	}
	b.StopTimer()
	if st := s.Session.Stats(); st.Confirmed != uint64(b.N) || st.Unconfirmed != 0 {
		b.Fatalf("%+v", st)
	}
}
