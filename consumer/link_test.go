package consumer

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/natstest"
)

func TestLink_limitFollowsWhatComes(t *testing.T) {
	l := newLink(30 * time.Second)
	now, bytes := time.Unix(0, 0), uint64(0)
	pass := func(trip time.Duration, rate int) {
		now, bytes = now.Add(max(trip, time.Second)), bytes+uint64(float64(rate)*max(trip, time.Second).Seconds())
		l.measured(trip, true, bytes, now)
	}
	for range 4 {
		pass(time.Millisecond, 100<<20)
	}
	if n := l.coming(); n != maxComing {
		t.Errorf("a fast link: %d bytes, want %d", n, maxComing)
	}
	pass(20*time.Second, 512<<10)
	if n := l.coming(); n < 1<<20 || n > 2<<20 {
		t.Errorf("512 KiB/s: %d bytes, want what comes in an eighth of 30s", n)
	}
	pass(2500*time.Millisecond, 512<<10)
	if n := l.coming(); n > 2<<20 {
		t.Errorf("as before: %d bytes", n)
	}
	for range 6 {
		pass(time.Millisecond, 0)
	}
	if n := l.coming(); n != maxComing {
		t.Errorf("fast again: %d bytes, want %d", n, maxComing)
	}
}

// A route that was added with a short AckWait got leases that were nearly over: contact was proven as seldom as before.
func TestLink_regressionAShorterAckWaitHasContactProvenMoreOften(t *testing.T) {
	l := newLink(30 * time.Second)
	l.cover(30 * time.Second)
	if l.every() != time.Second || len(l.shorter) != 0 {
		t.Errorf("every %v, told %d times", l.every(), len(l.shorter))
	}
	for _, ackWait := range []time.Duration{4 * time.Second, 2 * time.Second, time.Hour} {
		l.cover(ackWait)
	}
	if l.every() != 250*time.Millisecond || len(l.shorter) != 1 {
		t.Errorf("every %v, told %d times", l.every(), len(l.shorter))
	}
}

// More was asked for than the link brings within AckWait: what came was fenced, and came again, for ever (512 KB/s, 110 of 300
// messages after five minutes).
func TestRelay_slowLinkBringsWhatItCan(t *testing.T) {
	t.Parallel()
	w := newWorld(t, natstest.WithListen())
	proxy := natstest.NewProxy(t, w.s.URL())
	proxy.Throttle(256 << 10)
	body := make([]byte, 32<<10)
	const messages = 150 // eighteen seconds, nine times AckWait
	for range messages {
		if _, err := w.js.Publish(t.Context(), "orders.eu", body); err != nil {
			t.Fatal(err)
		}
	}
	nc, err := nats.Connect(proxy.URL(), nats.MaxReconnects(-1), nats.ReconnectBufSize(-1))
	if err != nil {
		t.Fatal(err)
	}
	l := newLedger()
	r, err := New(nc, Config{Logger: quiet}, Route{
		Name: "billing", Subjects: []string{"orders.>"}, Start: Start{Policy: "all"}, AckWait: 2 * time.Second,
		Handler: HandlerFunc(func(_ context.Context, m *Msg) error { l.note(m); return nil }),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	began := time.Now()
	go func() { done <- r.Run(ctx) }()
	deadline := time.Now().Add(time.Minute)
	for l.len() < messages && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
	}
	t.Logf("%d messages in %v, %d bytes may be on their way", l.len(), time.Since(began).Round(time.Millisecond), r.link.coming())
	if l.len() != messages {
		t.Errorf("%d of %d messages", l.len(), messages)
	}
	if info := w.info("ORDERS", "billing"); info.Delivered.Consumer > messages*3/2 {
		t.Errorf("%d deliveries of %d messages", info.Delivered.Consumer, messages)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	closed := make(chan struct{})
	nc.SetClosedHandler(func(*nats.Conn) { close(closed) })
	nc.Close()
	<-closed
}
