package ack

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// nowhere is a connection of which only the last reply subject is kept.
type nowhere struct{ reply string }

func noLink() uint64 { return 0 }

func (n *nowhere) Publish(string, []byte) error { return nil }

func (n *nowhere) PublishRequest(_, reply string, _ []byte) error {
	n.reply = reply
	return nil
}

// BenchmarkSession is the way of a message that succeeds: it arrives, is acked, and the ack is confirmed.
func BenchmarkSession(b *testing.B) {
	for _, inFlight := range []int{1, 64, 4096} {
		b.Run(fmt.Sprintf("%d in flight", inFlight), func(b *testing.B) {
			conn := &nowhere{}
			s := NewSession(Config{Inbox: "_INBOX.0123456789012345678901", Conn: conn, Link: noLink, AckWait: 30 * time.Second})
			sub := &nats.Subscription{}
			deliveries := make([]*Delivery, inFlight)
			stored := time.Now().UnixNano()
			arriving := make([]*nats.Msg, b.N)
			for i := range arriving {
				arriving[i] = &nats.Msg{Subject: "orders.eu.created", Sub: sub, Reply: fmt.Sprintf("$JS.ACK.ORDERS.billing.1.%d.%d.%d.0", i+1, i+1, stored)}
			}
			answer := &nats.Msg{}
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i += inFlight {
				n := min(inFlight, b.N-i)
				for j := range n {
					d, err := s.Receive(arriving[i+j])
					if err != nil {
						b.Fatal(err)
					}
					deliveries[j] = d
				}
				for j := range n {
					if err := deliveries[j].Ack(nil); err != nil {
						b.Fatal(err)
					}
				}
				for s.Stats().Unconfirmed > 0 {
					answer.Subject = conn.reply
					s.Reply(answer)
					s.closeUp()
				}
			}
			b.StopTimer()
			if st := s.Stats(); st.Confirmed != uint64(b.N) || st.Unconfirmed != 0 {
				b.Fatalf("%+v", st)
			}
		})
	}
}

// BenchmarkSession_contended has handlers ack while the pull loop receives and confirms.
func BenchmarkSession_contended(b *testing.B) {
	conn := &publishedTo{answers: make(chan string, 1<<20)}
	s := NewSession(Config{Inbox: "_INBOX.0123456789012345678901", Conn: conn, Link: noLink, AckWait: 30 * time.Second})
	sub := &nats.Subscription{}
	stored := time.Now().UnixNano()
	arriving := make([]*nats.Msg, b.N)
	for i := range arriving {
		arriving[i] = &nats.Msg{Subject: "orders.eu.created", Sub: sub, Reply: fmt.Sprintf("$JS.ACK.ORDERS.billing.1.%d.%d.%d.0", i+1, i+1, stored)}
	}
	work := make(chan *Delivery, 1024)
	for range 64 {
		go func() {
			for d := range work {
				_ = d.Ack(nil)
			}
		}()
	}
	defer close(work)
	b.ReportAllocs()
	b.ResetTimer()
	confirm := func(reply string) { s.Reply(&nats.Msg{Subject: reply}) }
	for i := range arriving {
		d, err := s.Receive(arriving[i])
		if err != nil {
			b.Fatal(err)
		}
		for sent := false; !sent; {
			select {
			case work <- d:
				sent = true
			case r := <-conn.answers:
				confirm(r)
			}
		}
	}
	for s.Stats().Confirmed < uint64(b.N) {
		select {
		case r := <-conn.answers:
			confirm(r)
		default:
			s.closeUp()
		}
	}
}

type publishedTo struct{ answers chan string }

func (p *publishedTo) Publish(string, []byte) error { return nil }

func (p *publishedTo) PublishRequest(_, reply string, _ []byte) error {
	p.answers <- reply
	return nil
}
