package ack_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/ack"
)

// Pull is a pull loop of one's own on a durable of a stream: it handles n messages, and returns when the server has confirmed the ack of each. The
// session keeps the leases of messages that take longer than half of the ack wait, and settles each message once.
func Pull(ctx context.Context, nc *nats.Conn, stream, durable string, n int, handle func(*nats.Msg) error) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	from, err := js.Stream(ctx, stream)
	if err != nil {
		return err
	}
	consumer, err := from.Consumer(ctx, durable)
	if err != nil {
		return err
	}
	identity := func(info *jetstream.ConsumerInfo) ack.Identity {
		return ack.Identity{StreamCreated: from.CachedInfo().Created, ConsumerCreated: info.Created}
	}
	inbox := nc.NewInbox()
	session := ack.NewSession(ack.Config{
		Inbox: inbox, Conn: nc, Link: func() uint64 { return nc.Stats().Reconnects },
		AckWait: consumer.CachedInfo().Config.AckWait, Identity: identity(consumer.CachedInfo()),
		Info: func(ctx context.Context) (ack.Info, error) {
			info, err := consumer.Info(ctx)
			if err != nil {
				return ack.Info{}, err
			}
			return ack.Info{Identity: identity(info), AckPending: info.NumAckPending}, nil
		},
	})
	arrived := make(chan *nats.Msg, 1024)
	sub, err := nc.ChanSubscribe(inbox+".>", arrived)
	if err != nil {
		return err
	}
	defer sub.Unsubscribe()
	running, stop := context.WithCancel(ctx)
	defer stop()
	go session.Run(running)
	pull := fmt.Appendf(nil, `{"batch":%d,"expires":%d}`, 2*n, 30*time.Second)
	if err := nc.PublishRequest("$JS.API.CONSUMER.MSG.NEXT."+stream+"."+durable, inbox+".pull", pull); err != nil {
		return err
	}
	for handled := 0; handled < n || session.Stats().Unconfirmed > 0; {
		var m *nats.Msg
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case m = <-arrived:
		case <-time.After(10 * time.Millisecond): // look again whether all is confirmed
			continue
		}
		if !strings.HasPrefix(m.Reply, "$JS.ACK.") {
			session.Reply(m) // the server's answer to a settlement
			continue
		}
		d, err := session.Receive(m)
		if err != nil {
			return err
		}
		if d == nil { // it came again while its ack was on the way
			continue
		}
		if handle(m) != nil {
			err = d.Nak(time.Now().Add(time.Second)) // it comes again in a second
		} else if err = d.Ack(nil); err == nil {
			handled++
		}
		if err != nil && !errors.Is(err, ack.ErrFenced) { // fenced: another instance may have it by now
			return err
		}
	}
	return nil
}

func Example() {
	nc, err := nats.Connect(nats.DefaultURL, nats.ReconnectBufSize(-1))
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	err = Pull(context.Background(), nc, "ORDERS", "billing", 100, func(m *nats.Msg) error {
		fmt.Println(m.Subject)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}
