package ack

import (
	"testing"
	"time"
)

// A connection that writes to a link that is stuck holds its own lock. The session asked it with its lock held, and whatever needs the
// session stood still as well.
func TestSession_regressionConnectionIsAskedWithoutTheLock(t *testing.T) {
	w := newWorld(t, time.Minute)
	d := w.arrive(1, 1)
	w.check(d.Ack(nil), nil)
	m := w.wire[0]
	asked, held, answered := make(chan struct{}), make(chan struct{}), make(chan struct{})
	w.s.cfg.Link = func() uint64 { close(asked); <-held; return 0 }
	go func() {
		defer close(answered)
		w.confirm(m)
	}()
	<-asked
	free := make(chan struct{})
	go func() {
		defer close(free)
		w.s.Stats()
	}()
	select {
	case <-free:
	case <-time.After(10 * time.Second):
		t.Error("the session is locked while the connection is asked")
	}
	close(held)
	<-answered
	<-free
	w.stats("Confirmed:1 Unconfirmed:0")
}
