package worker

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler/internal/handlertest"
)

// While one still writes, another must read: the process may not read before it has written.
func TestLead_regressionRousesOneThatWaits(t *testing.T) {
	for range 50 { // the order of a map is random
		leads, writes, waits := &call{id: "leads"}, &call{id: "writes"}, &call{id: "waits"}
		c := &child{pool: &pool{shared: &shared{}}, calls: map[string]*call{}, reader: leads, writer: writes}
		for _, cl := range []*call{leads, writes, waits} {
			cl.child, cl.wake = c, make(chan struct{}, 1)
			c.calls[cl.id] = cl
		}
		c.out.max = 1000
		c.out.from = strings.NewReader(`{"id":"leads","verdict":"ack"}` + "\n")
		c.lead(leads)
		if !leads.done || c.reader != nil || len(writes.wake) != 0 || len(waits.wake) != 1 {
			t.Fatalf("done %v, reader %v, roused: writes %d, waits %d", leads.done, c.reader, len(writes.wake), len(waits.wake))
		}
	}
}

// A start that fails for want of something is not the program's fault, however long that lasts; and a process that works on a
// message, however slowly, is a start that succeeded.
func TestHandle_regressionFailedStartsAreJudged(t *testing.T) {
	h := newHandler(t, config(t, ""))
	h.cfg.Grace = time.Millisecond
	unbegun := func(why error) error {
		c := &child{pool: h.pool, ended: make(chan struct{}), stillborn: true, death: fmt.Errorf("start: %w", why)}
		close(c.ended)
		return h.failed(t.Context(), c, message("ack"), errTaken, 1)
	}
	longAgo := func() {
		h.starts.Succeeded()
		_ = h.starts.Failed(syscall.ENOENT, time.Now().Add(-time.Minute))
	}
	longAgo()
	handlertest.Want(t, unbegun(syscall.EMFILE), handlertest.NotStarted)
	handlertest.Want(t, unbegun(syscall.ENOENT), handlertest.FailRoute)

	longAgo()
	ctx, cancel := context.WithCancel(t.Context())
	slow := make(chan error, 1)
	go func(m *consumer.Msg) { slow <- h.Handle(ctx, m) }(message("hang"))
	inHand(t, h, 1)
	c := h.places.shared[0].child
	for end := time.Now().Add(long); !c.reads() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	handlertest.Want(t, unbegun(syscall.ENOENT), handlertest.NotStarted)
	cancel()
	<-slow
	// One that had begun before says nothing of it.
	h.starts.Succeeded()
	_ = h.starts.Failed(syscall.ENOENT, time.Now())
	h.starts.SucceededAt(c.started)
	handlertest.Want(t, h.starts.Failed(syscall.ENOENT, time.Now().Add(time.Minute)), handlertest.FailRoute)
}
