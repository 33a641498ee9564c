package consumer

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relaymq/relay/supervisor"
)

// A connection that is lost at any moment of a start is no reason to end, and none to stand still: what was asked over it is asked again.
func TestStart_theConnectionIsLostMeanwhile(t *testing.T) {
	t.Parallel()
	for range 12 {
		w, proxy := wired(t)
		w.publish("orders.a", 1)
		var handled atomic.Int64
		at := time.Duration(rand.Int64N(int64(60 * time.Millisecond)))
		began := time.Now()
		time.AfterFunc(at, proxy.Cut)
		w.startAt(proxy.URL(), Route{
			Name: "billing", Subjects: []string{"orders.>"}, Order: supervisor.OrderKey, Start: Start{Policy: "all"},
			Handler: HandlerFunc(func(context.Context, *Msg) error { handled.Add(1); return nil }),
		})
		w.eventually("it is handled", func() bool { return handled.Load() > 0 })
		if took := time.Since(began); took > 4*time.Second { // 0.2 s; what waited for an answer that was lost stood for 5 or 10 s
			t.Errorf("cut after %v: it was handled after %v", at, took)
		}
	}
}
