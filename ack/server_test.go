package ack

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/race"
)

// puller is a session with a real durable behind it.
type puller struct {
	t        *testing.T
	js       jetstream.JetStream // another connection, which no proxy disturbs
	nc       *nats.Conn
	s        *Session
	consumer jetstream.Consumer
	arrived  chan *nats.Msg
	got      chan received
	at       time.Time // when what next returned had arrived
}

type received struct {
	*Delivery
	at time.Time
}

// pull makes stream and durable, and hands out what is delivered. The session's connection is made with url, when that is
// not empty.
func pull(t *testing.T, srv *natstest.Server, url string, replicas int, ackWait time.Duration) *puller {
	t.Helper()
	p := &puller{t: t, js: srv.JetStream(t), arrived: make(chan *nats.Msg, 1<<16), got: make(chan received, 1<<16)}
	ctx := t.Context()
	var st jetstream.Stream
	var err error
	natstest.Eventually(t, "stream and durable are made", func() bool { // a request that comes during an election is not answered
		st, err = p.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders"}, Replicas: replicas})
		if err == nil {
			p.consumer, err = st.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
				Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxAckPending: 65_536,
			})
		}
		return err == nil
	})
	again := nats.ReconnectHandler(func(*nats.Conn) { p.s.Reconnected(); p.pull() })
	opts := []nats.Option{nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond), again}
	if url == "" {
		p.nc = srv.Conn(t, opts...)
	} else {
		if p.nc, err = nats.Connect(url, opts...); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.nc.Close)
	}
	created := p.consumer.CachedInfo().Created
	identity := Identity{StreamCreated: st.CachedInfo().Created, ConsumerCreated: created}
	box := p.nc.NewInbox()
	p.s = NewSession(Config{Inbox: box, Conn: p.nc, Link: func() uint64 { return p.nc.Stats().Reconnects }, AckWait: ackWait, Identity: identity, Info: func(ctx context.Context) (Info, error) {
		info, err := p.consumer.Info(ctx)
		if err != nil {
			return Info{}, err
		}
		identity.ConsumerCreated = info.Created
		return Info{Identity: identity, AckPending: info.NumAckPending}, nil
	}})
	if _, err := p.nc.ChanSubscribe(box+".>", p.arrived); err != nil {
		t.Fatal(err)
	}
	run, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { p.s.Run(run) })
	running.Go(func() { p.loop(run) })
	t.Cleanup(func() { stop(); running.Wait() })
	p.pull()
	return p
}

func (p *puller) pull() {
	body := fmt.Appendf(nil, `{"batch":50000,"expires":%d}`, time.Minute)
	if err := p.nc.PublishRequest("$JS.API.CONSUMER.MSG.NEXT.ORDERS.billing", p.s.cfg.Inbox+".p", body); err != nil {
		p.t.Logf("pull: %v", err)
	}
}

func (p *puller) loop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-p.arrived:
			switch {
			case strings.HasPrefix(m.Reply, "$JS.ACK."):
				if d, err := p.s.Receive(m); err != nil {
					p.t.Error(err)
				} else if d != nil {
					p.got <- received{d, time.Now()}
				}
			case p.s.Reply(m):
			case m.Header.Get("Status") != "": // of a pull
				if m.Header.Get("Description") == "Leadership Change" {
					p.s.LeaderChanged()
				}
				p.pull()
			}
		case <-time.After(2 * time.Second): // a pull that comes during an election is not answered
			p.pull()
		}
	}
}

func (p *puller) publish(n int) {
	p.t.Helper()
	for i := range n {
		if _, err := p.js.PublishAsync("orders", []byte(strconv.Itoa(i))); err != nil {
			p.t.Fatal(err)
		}
		if i%1000 == 999 || i == n-1 { // more at once than nats.go likes
			<-p.js.PublishAsyncComplete()
		}
	}
}

func (p *puller) next() *Delivery {
	p.t.Helper()
	select {
	case r := <-p.got:
		p.at = r.at
		return r.Delivery
	case <-time.After(patience):
		p.t.Fatalf("nothing is delivered: %+v", p.s.Stats())
		return nil
	}
}

const patience = 20 * time.Second

// info is asked until there is an answer: a cluster may be electing.
func (p *puller) info() (info *jetstream.ConsumerInfo) {
	p.t.Helper()
	natstest.Eventually(p.t, "the server answers", func() bool {
		ctx, cancel := context.WithTimeout(p.t.Context(), time.Second)
		defer cancel()
		var err error
		info, err = p.consumer.Info(ctx)
		return err == nil
	})
	return info
}

func TestSession_everyAckIsConfirmed(t *testing.T) {
	p := pull(t, natstest.Start(t), "", 1, 30*time.Second)
	const n = 3000
	p.publish(n)
	for range n {
		if err := p.next().Ack(nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.s.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st := p.s.Stats(); st.Confirmed != n || st.Forgotten != 0 {
		t.Errorf("%+v", st)
	}
	if info := p.info(); info.AckFloor.Stream != n || info.NumAckPending != 0 {
		t.Errorf("ack floor %d, %d pending", info.AckFloor.Stream, info.NumAckPending)
	}
}

func TestSession_confirmedAcksSurviveARestart(t *testing.T) {
	srv := natstest.Start(t)
	p := pull(t, srv, "", 1, 30*time.Second)
	p.publish(100)
	for range 100 {
		_ = p.next().Ack(nil)
	}
	if err := p.s.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	srv.Restart()
	if info := p.info(); info.AckFloor.Stream != 100 || info.NumAckPending != 0 {
		t.Errorf("after a restart: ack floor %d, %d pending", info.AckFloor.Stream, info.NumAckPending)
	}
}

// Acks and NAKs are on their way when the link breaks: nothing is handled twice, and nothing stays unconfirmed.
func TestSession_settlementsOutliveABrokenLink(t *testing.T) {
	srv := natstest.Start(t)
	proxy := natstest.NewProxy(t, srv.URL())
	p := pull(t, srv, proxy.URL(), 1, 30*time.Second)
	p.publish(200)
	var list []*Delivery
	for range 200 {
		list = append(list, p.next())
	}
	proxy.Stall()
	far := time.Now().Add(time.Hour)
	for i, d := range list {
		if i%2 == 0 {
			_ = d.Ack(nil)
		} else {
			_ = d.Nak(far)
		}
	}
	natstest.Eventually(t, "all is sent", func() bool { return p.s.Stats().Naked == 100 })
	proxy.Cut()
	proxy.Resume()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := p.s.Wait(ctx); err != nil {
		t.Fatalf("unconfirmed 5 s after the link came back: %+v", p.s.Stats())
	}
	if info := p.info(); info.NumAckPending != 100 || info.NumRedelivered != 0 {
		t.Errorf("%d pending, want the 100 that wait; %d redelivered", info.NumAckPending, info.NumRedelivered)
	}
}

// The link stalls for longer than AckWait. What arrives afterwards was sent long ago.
func TestSession_stalledLinkBringsFencedDeliveries(t *testing.T) {
	srv := natstest.Start(t)
	proxy := natstest.NewProxy(t, srv.URL())
	p := pull(t, srv, proxy.URL(), 1, time.Second)
	p.publish(1)
	if err := p.next().Ack(nil); err != nil {
		t.Fatal(err)
	}
	if err := p.s.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	proxy.Stall()
	p.publish(10)
	natstest.Eventually(t, "the leases ran out", func() bool { return p.info().NumRedelivered == 10 })
	proxy.Resume()
	d := p.next()
	if !d.Fenced() {
		t.Error("a delivery from before the stall is not fenced")
	}
	if err := d.Nak(time.Now()); !errors.Is(err, ErrFenced) {
		t.Errorf("Nak returned %v", err)
	}
}

// 5,000 messages fail at once. Sent one by one, NAKs would starve each other's redelivery.
func TestSession_naksOf5000MessagesComeBackInTime(t *testing.T) {
	p := pull(t, natstest.Start(t), "", 1, 30*time.Second)
	const n = 5000
	p.publish(n)
	due := make(map[uint64]time.Time, n)
	for i := range n {
		d := p.next()
		// Spread over two seconds, so that there are bursts beside redeliveries.
		due[d.Sequence] = time.Now().Add(500*time.Millisecond + time.Duration(i)*400*time.Microsecond)
		if err := d.Nak(due[d.Sequence]); err != nil {
			t.Fatal(err)
		}
	}
	late := make([]time.Duration, 0, n)
	for range n {
		d := p.next()
		late = append(late, p.at.Sub(due[d.Sequence]))
		_ = d.Ack(nil)
	}
	slices.Sort(late)
	t.Logf("late by p50 %v, p99 %v, max %v; earliest %v", late[n/2], late[n*99/100], late[n-1], late[0])
	if late[0] < 0 {
		t.Errorf("%v early", -late[0])
	}
	if late[n*99/100] > race.Slower*time.Second {
		t.Errorf("p99 is %v late", late[n*99/100])
	}
}

// A leader change drops what is in its queue of acks, and nobody is disconnected.
func TestSession_leaderChangesWhileAcking(t *testing.T) {
	nodes := natstest.Cluster(t, 3)
	// What a leader counted as delivered, and had not sent when it stepped down, comes again after AckWait: within patience.
	p := pull(t, nodes[0], "", 3, patience/2)
	const n = 2000
	p.publish(n)
	seen := make(map[uint64]int, n)
	for i := range n {
		d := p.next()
		seen[d.Sequence]++
		_ = d.Ack(nil)
		if i%1000 == 500 {
			natstest.Eventually(t, "the leader steps down", func() bool { // it may not be known yet
				m, err := p.nc.Request("$JS.API.CONSUMER.LEADER.STEPDOWN.ORDERS.billing", nil, time.Second)
				return err == nil && strings.Contains(string(m.Data), `"success":true`)
			})
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := p.s.Wait(ctx); err != nil {
		t.Fatalf("left unconfirmed: %+v", p.s.Stats())
	}
	t.Logf("%+v", p.s.Stats())
	for seq, times := range seen {
		if times > 1 {
			t.Errorf("message %d was handed out %d times", seq, times)
		}
	}
	natstest.Eventually(t, "all is settled", func() bool { i := p.info(); return i.AckFloor.Stream == n && i.NumAckPending == 0 })
}

// A purge has the server forget what it is about to deliver again, also one that removes nothing. It is why [Away.Recall] asks once more.
func TestServer_aPurgeForgetsWhatComesAgain(t *testing.T) {
	srv := natstest.Start(t)
	js := srv.JetStream(t)
	for _, purges := range []bool{false, true} {
		name := fmt.Sprintf("S-%t", purges)
		st, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}})
		if err != nil {
			t.Fatal(err)
		}
		c, err := st.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "d", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := js.Publish(t.Context(), name, nil); err != nil {
			t.Fatal(err)
		}
		m, err := c.Next()
		if err != nil {
			t.Fatal(err)
		}
		delivered := time.Now()
		if _, err := srv.Conn(t).Request(m.Reply(), []byte("-NAK"), time.Second); err != nil { // it is answered when it is queued
			t.Fatal(err)
		}
		if purges {
			if err := st.Purge(t.Context(), jetstream.WithPurgeSequence(1)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.Next(jetstream.FetchMaxWait(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(delivered); took > 1500*time.Millisecond != purges {
			t.Errorf("with a purge %t it came again after %v", purges, took)
		}
	}
}
