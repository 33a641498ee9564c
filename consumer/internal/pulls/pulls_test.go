package pulls

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/relaymq/relay/internal/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.Leaks()...) }

func open(t *testing.T, nc *nats.Conn) *Inbox {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	a := newInbox(Config{
		Conn: nc, JS: js, Stream: "ORDERS", Durable: "a", Leased: func() bool { return false }, DrainTime: func() time.Duration { return time.Second },
	})
	a.Begin()
	if err := a.Subscribe(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

// next is the next message that has arrived.
func next(t *testing.T, a *Inbox) *nats.Msg {
	t.Helper()
	select {
	case m := <-a.Arrived():
		return m
	case <-time.After(10 * time.Second):
		t.Fatal("nothing came")
		return nil
	}
}

// What the server sends to a subscription before it knows of the one that takes over arrives, too: answers to acks were lost, and nothing was
// asked for until they were asked for again, two seconds later.
func TestInbox_regressionNoAnswerIsLostOnTheWayToMoreRoom(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	proxy := natstest.NewProxy(t, s.URL())
	nc, err := nats.Connect(proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	a := open(t, nc)
	flush := func(nc *nats.Conn) {
		t.Helper()
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	flush(nc)
	proxy.Delay(100 * time.Millisecond)
	server := s.Conn(t)
	say := func(subject string) {
		t.Helper()
		if err := server.Publish(a.Name()+subject, nil); err != nil {
			t.Fatal(err)
		}
		flush(server)
	}
	say(".a.1") // it is on its way
	if a.Room() != arrivedLittle || !a.mayArrive(0, 256, 0, 0) {
		t.Errorf("room for %d before much is asked for", a.Room())
	}
	if a.mayArrive(256, 256, 256, 256) || a.Room() != arrivedLittle {
		t.Error("there is more room while pulls are outstanding whose messages would be lost")
	}
	if !a.mayArrive(0, 1024, 0, 0) || a.Room() != arrivedSize {
		t.Fatalf("room for %d", a.Room())
	}
	flush(nc)
	say(".a.2")
	say(".p3-wide.9")
	missing := map[string]bool{a.Name() + ".a.1": true, a.Name() + ".a.2": true, a.Name() + ".p3-wide.9": true}
	for len(missing) > 0 {
		delete(missing, next(t, a).Subject) // an answer may come twice
	}
	a.Ended()
}

// Stop returns when what was sent before it was looked at. What proves contact comes in the order of the wire.
// The server may have chosen the subscriptions that get an answer before it knows of the new one, and send it after it has ended the old one. Then
// nobody got it, and all acks that it was to confirm waited for two seconds.
func TestInbox_regressionNoAnswerIsLostBetweenTwoSubscriptions(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	nc, server := s.Conn(t), s.Conn(t)
	for range 200 {
		a := open(t, nc)
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		stop, sent := make(chan struct{}), make(chan int)
		go func() {
			n := 0
			defer func() { sent <- n }()
			for ; n < arrivedSize/2; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if server.Publish(a.Name()+".a."+strconv.Itoa(n), nil) != nil || server.Flush() != nil {
					return
				}
			}
		}()
		came := make(map[string]bool)
		for len(came) < 20 { // answers come all the time
			came[next(t, a).Subject] = true
		}
		if !a.widen() {
			t.Fatal("it is not wide")
		}
		time.Sleep(2 * time.Millisecond)
		close(stop)
		n := <-sent
		for len(came) < n {
			came[next(t, a).Subject] = true
		}
		a.Close()
		a.Ended()
	}
}

func TestInbox_stop(t *testing.T) {
	t.Parallel()
	nc := natstest.Start(t).Conn(t)
	a := open(t, nc)
	sent := time.Now()
	if err := nc.Publish(a.Name()+".p0.1", nil); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if a.Waiting() != 1 {
		t.Errorf("%d wait", a.Waiting())
	}
	a.Contact(sent)
	a.Wake()
	a.Wake() // it does not block
	<-a.Woken()
	var stopped sync.WaitGroup
	stopped.Go(a.Stop)
	if m := next(t, a); m.Subject != a.Name()+".p0.1" || IsEnd(m) {
		t.Errorf("%s came", m.Subject)
	}
	if got, ok := Contacted(next(t, a)); !ok || !got.Equal(sent) {
		t.Errorf("contact %v, %v, want %v", got, ok, sent)
	}
	if m := next(t, a); !IsEnd(m) {
		t.Errorf("%s came", m.Subject)
	}
	if !a.IsDraining() || a.mayArrive(0, 10_000, 0, 0) {
		t.Error("it takes more while it drains")
	}
	a.Drained()
	stopped.Wait()
	a.woundDown()
	a.woundDown()
	a.Ended()
}

// A pull that is parked for long is taken back by the end of its subscription; what comes in answer to others still does.
func TestInbox_withdraw(t *testing.T) {
	t.Parallel()
	nc := natstest.Start(t).Conn(t)
	a := open(t, nc)
	for i := range 2 {
		l := a.requests.Free()
		l.ID, l.Left, l.Bytes, l.Parked = i+1, 1, 10, i == 0
	}
	a.withdraw()
	if n, _ := a.requests.Outstanding(); n != 1 || !a.requests.Winding() {
		t.Errorf("%d messages are outstanding", n)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	for subject, heard := range map[string]bool{".p0.1": false, ".p0-1.3": true, ".p1.2": true} {
		if err := nc.Publish(a.Name()+subject, nil); err != nil {
			t.Fatal(err)
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		if n := a.Waiting(); n == 1 != heard {
			t.Errorf("%s: %d came", subject, n)
		} else if n == 1 {
			<-a.Arrived()
		}
	}
}

// No pull is left to the durable that takes the place of one that is gone. Answers to acks still come.
func TestInbox_Abandon(t *testing.T) {
	t.Parallel()
	nc := natstest.Start(t).Conn(t)
	a := open(t, nc)
	l := a.requests.Free()
	l.ID, l.Left, l.Bytes = 1, 1, 10
	a.Abandon()
	if n, _ := a.requests.Outstanding(); n != 0 {
		t.Errorf("%d messages are outstanding", n)
	}
	for subject, heard := range map[string]bool{".p0.1": false, ".p1.2": false, ".a.1": true} {
		for _, do := range []func() error{nc.Flush, func() error { return nc.Publish(a.Name()+subject, nil) }, nc.Flush} {
			if err := do(); err != nil {
				t.Fatal(err)
			}
		}
		if n := a.Waiting(); n == 1 != heard {
			t.Errorf("%s: %d came", subject, n)
		} else if n == 1 {
			<-a.Arrived()
		}
	}
}

// What is outstanding is never more than was asked for, nor less than nothing, whatever the server says and in whichever order.
func TestRequests_outstanding(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var p Requests
		for i := range p.Lanes {
			p.Lanes[i].Sub = new(nats.Subscription)
		}
		now := time.Now()
		asked, bytes, got := 0, 0, 0
		n := rapid.IntRange
		t.Repeat(map[string]func(*rapid.T){
			"ask": func(t *rapid.T) {
				l := p.Free()
				if l == nil {
					if out, _ := p.Outstanding(); out < Lanes {
						t.Fatalf("no lane is free, and %d messages are outstanding", out)
					}
					return
				}
				p.Last++
				l.ID, l.Left, l.Bytes, l.Parked = p.Last, n(1, 5).Draw(t, "messages"), n(1, 1000).Draw(t, "bytes"), rapid.Bool().Draw(t, "parked")
				l.Asked, l.Expires, l.Pin = l.Bytes, now.Add(time.Duration(n(0, 10).Draw(t, "expires"))*time.Second), "pin"
				asked, bytes = asked+l.Left, bytes+l.Bytes
			},
			"got": func(t *rapid.T) {
				l := &p.Lanes[n(0, Lanes-1).Draw(t, "lane")]
				first := l.Parked && l.Left > 0
				if p.Got(&nats.Msg{Sub: l.Sub, Data: make([]byte, n(0, 500).Draw(t, "size"))}) != first {
					t.Fatal("the first message after a pause is not told from others")
				}
				got++
			},
			"over": func(t *rapid.T) { p.Over(n(1, 1+p.Last).Draw(t, "id")) },
			"cut": func(t *rapid.T) {
				p.Cut(n(1, 1+p.Last).Draw(t, "id"), n(0, 5).Draw(t, "messages"), n(0, 1000).Draw(t, "bytes"))
			},
			"expire": func(t *rapid.T) { now = now.Add(3 * time.Second); p.Expire(now) },
			"": func(t *rapid.T) {
				out, of := p.Outstanding()
				if out < 0 || of < 0 || out > asked || of > bytes {
					t.Fatalf("%d messages and %d bytes of %d and %d are outstanding", out, of, asked, bytes)
				}
				for _, l := range p.Lanes {
					if l.Left == 0 && l.Bytes != 0 || l.Left > 0 && l.Bytes <= 0 {
						t.Fatalf("a lane with %d messages and %d bytes", l.Left, l.Bytes)
					}
				}
				if out == 0 && (p.Winding() || !p.Ending(now)) {
					t.Fatal("something is about to end, and nothing is outstanding")
				}
				if p.Last > 0 && p.PinOf(p.Last) != "pin" {
					t.Fatal("the pin of the latest pull is not known")
				}
			},
		})
		p.GiveUp()
		if out, of := p.Outstanding(); out != 0 || of != 0 {
			t.Fatalf("%d messages and %d bytes of pulls that were given up", out, of)
		}
	})
}

// A pull of which nothing came says so: the next message is larger than all that was asked for.
func TestRequests_cut(t *testing.T) {
	t.Parallel()
	var p Requests
	p.Lanes[0] = Lane{ID: 1, Left: 5, Bytes: 100, Asked: 100}
	p.Lanes[1] = Lane{ID: 2, Left: 5, Bytes: 80, Asked: 100}
	if n := p.Cut(1, 5, 100); n != 100 {
		t.Errorf("%d bytes were of no use, want 100", n)
	}
	if n := p.Cut(2, 2, 30); n != 0 || p.Lanes[1].Left != 3 || p.Lanes[1].Bytes != 50 {
		t.Errorf("%d bytes were of no use; %+v", n, p.Lanes[1])
	}
}
