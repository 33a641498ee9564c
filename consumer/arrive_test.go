package consumer

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/supervisor"
)

// A durable has little memory until it has use for more: each of 1,000 idle ones had room for 32,768 messages that arrive at once.
// Nothing is lost on the way to more, and nothing comes twice: neither while all succeeds, nor when thousands wait for their retry.
func TestRelay_roomForWhatArrivesGrowsWithNeed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const n = 20_000
	var mu sync.Mutex
	attempts := make(map[uint64]int)
	count := func(least int) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			for _, k := range attempts {
				if k < least {
					return false
				}
			}
			return len(attempts) == n
		}
	}
	retry := Retry{Backoff: supervisor.Backoff{Min: 100 * time.Millisecond, Max: 100 * time.Millisecond}}
	fails := Route{Name: "fails", Subjects: []string{"orders.>"}, Start: StartAll, Retry: retry, Concurrency: 64, Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
		mu.Lock()
		defer mu.Unlock()
		if attempts[m.Sequence]++; attempts[m.Sequence] == 1 && m.Sequence%2 == 0 {
			return errors.New("once")
		}
		return nil
	})}
	r, _ := w.start(Config{Logger: quiet}, fails)
	room := func(due bool) (n int) {
		for _, s := range r.openSources() {
			if s.due == due {
				s.arrivals.mu.Lock()
				n = cap(s.arrivals.all)
				s.arrivals.mu.Unlock()
			}
		}
		return n
	}
	w.eventually("both durables are open", func() bool { return room(false) > 0 && room(true) > 0 })
	if a, b := room(false), room(true); a != arrivedLittle || b != arrivedLittle {
		t.Errorf("room for %d and %d at rest", a, b)
	}
	for i := range n {
		if _, err := w.js.PublishAsync("orders."+strconv.Itoa(i), nil); err != nil {
			t.Fatal(err)
		}
		if i%1000 == 999 {
			<-w.js.PublishAsyncComplete()
		}
	}
	<-w.js.PublishAsyncComplete()
	w.eventually("all are handled", count(1))
	w.settled("ORDERS", "fails")
	if room(false) != arrivedSize {
		t.Errorf("room for %d after %d messages", room(false), n)
	}
	mu.Lock()
	defer mu.Unlock()
	for seq, k := range attempts {
		if want := 1 + int(1-seq%2); k != want {
			t.Fatalf("message %d had %d attempts, want %d", seq, k, want)
		}
	}
	for _, s := range r.openSources() {
		s.arrivals.mu.Lock()
		defer s.arrivals.mu.Unlock()
		for i := range s.arrivals.asked.lanes {
			if n, err := s.arrivals.asked.lanes[i].sub.Dropped(); n > 0 || err != nil {
				t.Errorf("%d messages were dropped, %v", n, err)
			}
		}
		if n, err := s.arrivals.answers.Dropped(); n > 0 || err != nil {
			t.Errorf("%d answers were dropped, %v", n, err)
		}
	}
}

// What the server sends to a subscription before it knows of the one that takes over arrives, too: answers to acks were lost, and nothing was
// asked for until they were asked for again, two seconds later.
func TestSource_regressionNoAnswerIsLostOnTheWayToMoreRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t, natstest.WithListen())
	proxy := natstest.NewProxy(t, w.s.URL())
	nc, err := nats.Connect(proxy.URL())
	w.do(err)
	t.Cleanup(nc.Close)
	r, err := New(nc, Config{Logger: quiet}, Route{Name: "a", Subjects: []string{"orders.>"}, Start: StartAll, Handler: HandlerFunc(hangs)})
	w.do(err)
	s := newSource(r, "ORDERS", "a", false)
	s.arrivals.inbox = nc.NewInbox()
	s.arrivals.answers, err = nc.ChanSubscribe(s.arrivals.inbox+".a.*", s.arrivals.all)
	w.do(err)
	w.do(s.arrivals.subscribe())
	w.do(nc.Flush())
	proxy.Delay(100 * time.Millisecond)
	server := w.s.Conn(t)
	w.do(server.Publish(s.arrivals.inbox+".a.1", nil))
	w.do(server.Flush()) // it is on its way
	if !s.arrivals.widen() || cap(s.arrivals.all) != arrivedSize {
		t.Fatalf("room for %d", cap(s.arrivals.all))
	}
	w.do(nc.Flush())
	w.do(server.Publish(s.arrivals.inbox+".a.2", nil))
	for _, want := range []string{".a.1", ".a.2"} {
		select {
		case m := <-s.arrivals.all:
			if m.Subject != s.arrivals.inbox+want {
				t.Errorf("%s came", m.Subject)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s did not come", want)
		}
	}
	s.close()
}
