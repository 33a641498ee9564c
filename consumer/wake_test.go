package consumer

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/orders"
)

// One answer with Retry-After: 3600 stopped a route for an hour, and resume did not end it.
func TestWake_regressionResumeEndsARetryAfterOnAllInstances(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var up atomic.Bool
	l := newLedger()
	route := countingRoute(l)
	route.Supervisor.RetryAfter = "route"
	route.Handler = HandlerFunc(func(_ context.Context, m *Msg) error {
		if up.Load() {
			l.note(m)
			return nil
		}
		return RetryAfter(time.Hour, errors.New("too many requests"))
	})
	a, _ := w.start(Config{Instance: "a"}, route)
	w.publish("orders.eu", 3)
	w.eventually("the route waits", func() bool { return a.Status().Routes[0].State == control.StateWaiting })
	up.Store(true)
	list, bad, err := control.Wake(t.Context(), w.nc, "relay", orders.Order{Route: "billing", By: "eve@host"})
	if err != nil || len(bad) > 0 || len(list) != 1 || !list[0].Known || list[0].State != control.StateWaiting || list[0].Since == nil {
		t.Fatalf("%+v, %v, %v", list, bad, err)
	}
	w.eventually("the route flows", func() bool { return a.Status().Routes[0].State == control.StateFlowing })
	list, _, err = control.Wake(t.Context(), w.nc, "relay", orders.Order{Route: "shipping"})
	if err != nil || len(list) != 1 || list[0].Known {
		t.Errorf("another route: %+v, %v", list, err)
	}
}
