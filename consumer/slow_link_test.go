package consumer

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/natstest"
)

// With many durables more was asked for than the link brings within AckWait: all arrived fenced, for ever.
func TestRelay_regressionSlowLinkWithManyDurables(t *testing.T) {
	t.Parallel()
	const routes, each, size = 12, 10, 16 << 10 // 2 MiB: eight seconds, four times AckWait
	w := newWorld(t)
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
	deadline := time.Now().Add(2 * time.Minute)
	for l.len() < routes*each && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
	}
	late := uint64(0)
	for _, s := range r.engine.Running.Sources() {
		late += s.Count.Late.Load()
	}
	t.Logf("%d messages in %v, %d arrived late", l.len(), time.Since(began).Round(time.Millisecond), late)
	if l.len() != routes*each {
		t.Errorf("%d of %d messages", l.len(), routes*each)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// More was asked for than the link brings within AckWait: what came was fenced, and came again, for ever (512 KB/s, 110 of 300
// messages after five minutes).
func TestRelay_slowLinkBringsWhatItCan(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
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
	deadline := time.Now().Add(2 * time.Minute)
	for l.len() < messages && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
	}
	t.Logf("%d messages in %v, %d bytes may be on their way", l.len(), time.Since(began).Round(time.Millisecond), r.engine.Link.Coming())
	if l.len() != messages {
		t.Errorf("%d of %d messages", l.len(), messages)
	}
	// Three halves on an idle machine. A busy one looks like a slower link than it is; before, it was ten times as many and no end.
	if info := w.info("ORDERS", "billing"); info.Delivered.Consumer > messages*3 {
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
