package consumer

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/retry"
)

// An older instance, while others are updated already: what a newer one wrote was dead-lettered, or misread.
func TestRelay_whatANewerVersionWroteWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var started atomic.Int64
	route := Route{Name: "billing", Subjects: []string{"orders.>"}, Handler: HandlerFunc(func(context.Context, *Msg) error { started.Add(1); return nil })}
	// One with a record, and one that was parked.
	durable := w.cameAgain(route, 1, time.Millisecond)
	bucket, err := w.js.KeyValue(t.Context(), "RELAY_ATTEMPTS")
	if err != nil {
		t.Fatal(err)
	}
	info := durable.CachedInfo()
	key := fmt.Sprintf("ORDERS.billing.%s.1", formatBase36(info.Created))
	if _, err := bucket.Put(t.Context(), key, []byte(`{"format":9,"attempts":{"of":"another kind"}}`)); err != nil {
		t.Fatal(err)
	}
	m := nats.NewMsg("relay.due.billing.ORDERS.7-1-0")
	m.Header = retry.Wrap(retry.Origin{Route: "billing", Stream: "ORDERS", Consumer: "billing", Sequence: 7, Time: time.Now(), Subject: "orders.eu"}, nil)
	m.Header.Set("Relay-Format", "2")
	if _, err := w.js.PublishMsg(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	r, _ := w.startUnready(Config{}, route)
	w.eventually("both came", func() bool {
		came := 0
		for _, s := range r.engine.Running.Sources() {
			came += int(s.Count.Delivered.Load())
		}
		return came == 2
	})
	w.unready(r, "written by another version of relay", "until this instance is updated")
	if n := started.Load(); n > 0 {
		t.Errorf("%d were started", n)
	}
	if n := len(w.deadLetters()); n > 0 {
		t.Errorf("%d dead letters", n)
	}
	for _, s := range r.engine.Running.Sources() {
		if info := w.info(s.Stream, s.Name); info.NumAckPending != 1 || info.NumPending != 0 {
			t.Errorf("%s: %d away, %d pending", s, info.NumAckPending, info.NumPending)
		}
	}
	if e, err := bucket.Get(t.Context(), key); err != nil || !strings.Contains(string(e.Value()), `"format":9`) {
		t.Errorf("the record is %v, %v", e, err)
	}
}

func formatBase36(t time.Time) string { return strconv.FormatInt(t.UnixNano(), 36) }
