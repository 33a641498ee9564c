package consumer

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/relaymq/relay/internal/control"
)

// How old is the oldest message that waits, in its durable, parked, and when all is done; and how old were those that are through.
func TestMetrics_agesOfMessages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	release := make(chan struct{})
	r, _ := w.start(Config{}, Route{
		Name: "billing", Subjects: []string{"orders.>"}, Retry: Retry{ParkAfter: time.Millisecond},
		Handler: HandlerFunc(func(ctx context.Context, m *Msg) error {
			if m.Subject == "orders.later" && m.Attempt == 1 {
				return RetryIn(time.Hour, context.DeadlineExceeded)
			}
			select {
			case <-release:
			case <-ctx.Done():
			}
			return ctx.Err()
		}),
	})
	w.publish("orders.eu", 2)
	first, err := w.js.Stream(t.Context(), "ORDERS")
	if err != nil {
		t.Fatal(err)
	}
	stored, err := first.GetMsg(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	rt := r.engine.Routes.All()[0]
	w.eventually("the oldest is found", func() bool {
		_, _ = control.Ask(t.Context(), w.nc, "relay", control.StatusRequest{}) // has the server asked
		at, known := rt.Oldest()
		return known && at.Equal(stored.Time)
	})
	w.publish("orders.later", 1)
	close(release)
	parked, err := first.GetMsg(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	w.eventually("the parked one is the oldest", func() bool {
		_, _ = control.Ask(t.Context(), w.nc, "relay", control.StatusRequest{})
		at, known := rt.Oldest()
		return known && at.Equal(parked.Time)
	})
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(r.Collector())
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var ages *dto.Histogram
	for _, f := range families {
		if f.GetName() == "relay_message_age_seconds" {
			ages = f.GetMetric()[0].GetHistogram()
		}
	}
	if ages.GetSampleCount() != 2 || len(ages.GetBucket()) == 0 || len(ages.GetPositiveSpan()) == 0 {
		t.Errorf("ages: %v, want two in classic and native buckets", ages)
	}
}
