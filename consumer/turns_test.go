package consumer

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/natstest"
)

// linkSources are n sources with a backlog on a link with this limit.
func linkSources(n int, limit int64) (*Relay, []*source) {
	r := &Relay{link: newLink(30 * time.Second)}
	r.link.limit.Store(limit)
	var list []*source
	for range n {
		list = append(list, &source{relay: r, backlog: true, least: minLeast, woken: make(chan struct{}, 1)})
	}
	r.sources.Store(&list)
	return r, list
}

// ask is what a pull of the source does with these bytes on their way.
func (s *source) askTurn(coming int) int {
	_, least, byTurns := s.part()
	if !s.mayAsk(byTurns, coming, least) {
		return 0
	}
	return least
}

// Each of 20 durables had 256 KiB on the way, whatever the link brought.
func TestLink_regressionSourcesShareTheLimitOfASlowLink(t *testing.T) {
	const limit = 470 << 10
	_, list := linkSources(20, limit)
	coming, asked := make([]int, len(list)), make([]int, len(list))
	list[7].least = 4 << 20 // the next message is larger than the limit
	for range 10 * len(list) {
		total := 0
		for i, s := range list {
			if n := s.askTurn(coming[i]); n > 0 {
				coming[i] += n
				asked[i]++
			}
			total += coming[i]
		}
		if most := limit/2 + list[7].least; total > most || coming[7] == 0 && total > limit/2+minLeast {
			t.Fatalf("%d bytes are on their way", total)
		}
		clear(coming) // all has come
	}
	for i, n := range asked {
		if n < 10 {
			t.Errorf("source %d asked %d times", i, n)
		}
	}
}

func TestLink_anIdleSourceDoesNotWaitForItsTurn(t *testing.T) {
	_, list := linkSources(20, 470<<10)
	for _, s := range list {
		s.askTurn(0)
	}
	idle := list[19]
	idle.backlog = false
	most, _, byTurns := idle.part()
	if byTurns || most != 470<<10/20 {
		t.Errorf("an idle source may ask for %d bytes, by turns %v", most, byTurns)
	}
	if !idle.mayAsk(byTurns, 0, most/2) {
		t.Error("an idle source waits")
	}
	if idle.relay.link.limit.Store(maxComing); list[5].askTurn(0) == 0 {
		t.Error("a source waits for its turn on a fast link")
	}
}

// Who waits longest is woken once enough has come, or once who was before it wants nothing more.
func TestLink_theNextSourceIsWoken(t *testing.T) {
	_, list := linkSources(3, minLeast)
	a, b, c := list[0], list[1], list[2]
	if a.askTurn(0) == 0 || b.askTurn(0) != 0 || c.askTurn(0) != 0 {
		t.Fatal("not the first one alone may ask")
	}
	a.mayAsk(true, minLeast/2, 0)
	if len(b.woken) != 1 || len(c.woken) != 0 {
		t.Error("half has come, and not the next one was woken")
	}
	b.mayAsk(false, 0, 0)
	if len(c.woken) != 1 {
		t.Error("the next one wants nothing, and the one behind it was not woken")
	}
}

// With many durables more was asked for than the link brings within AckWait: all arrived fenced, for ever.
func TestRelay_regressionSlowLinkWithManyDurables(t *testing.T) {
	t.Parallel()
	const routes, each, size = 12, 10, 16 << 10 // 2 MiB: eight seconds, four times AckWait
	w := newWorld(t, natstest.WithListen())
	proxy := natstest.NewProxy(t, w.s.URL())
	proxy.Throttle(256 << 10)
	l := newLedger()
	var list []Route
	for i := range routes {
		subject := fmt.Sprintf("orders.r%d", i)
		for range each {
			if _, err := w.js.Publish(t.Context(), subject, make([]byte, size)); err != nil {
				t.Fatal(err)
			}
		}
		list = append(list, Route{
			Name: fmt.Sprintf("r%d", i), Subjects: []string{subject}, Start: Start{Policy: "all"}, AckWait: 2 * time.Second,
			Handler: HandlerFunc(func(_ context.Context, m *Msg) error { l.note(m); return nil }),
		})
	}
	nc, err := nats.Connect(proxy.URL(), nats.MaxReconnects(-1), nats.ReconnectBufSize(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	r, err := New(nc, Config{Logger: quiet}, list...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	began := time.Now()
	go func() { done <- r.Run(ctx) }()
	deadline := time.Now().Add(time.Minute)
	for l.len() < routes*each && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
	}
	late := uint64(0)
	for _, s := range r.openSources() {
		late += s.count.late.Load()
	}
	t.Logf("%d messages in %v, %d arrived late", l.len(), time.Since(began).Round(time.Millisecond), late)
	if l.len() != routes*each {
		t.Errorf("%d of %d messages", l.len(), routes*each)
	}
	if late > routes*each/2 {
		t.Errorf("%d of %d messages arrived late", late, routes*each)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
