package consumer

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/retry"
)

// A relay that starts anew knows of the dead letters that are stored: its own counters begin at 0.
func TestRelay_storedDeadLettersAreCountedAfterARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	store, err := dlq.Open(t.Context(), w.js, dlq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 7 {
		route := "orders"
		if i >= 5 {
			route = "other"
		}
		e := dlq.Entry{Origin: retry.Origin{Route: route, Stream: "ORDERS", Consumer: "orders", Sequence: uint64(i + 1), Time: time.Now(), Subject: fmt.Sprint("orders.", i), Attempts: 1}, Reason: dlq.Rejected}
		if err := store.Put(t.Context(), "", e); err != nil {
			t.Fatal(err)
		}
	}
	r, _ := w.start(Config{}, Route{Name: "orders", Subjects: []string{"orders.>"}, Start: Start{Policy: "all"}, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil })})
	w.eventually("the dead letters are counted", func() bool {
		n, known := r.engine.Upkeep.Dead("orders")
		return known && n == 5
	})
	if n, _ := r.engine.Upkeep.Dead("other"); n != 0 {
		t.Errorf("%d of a route that this relay does not have", n)
	}
}
