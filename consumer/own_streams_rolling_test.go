package consumer

import (
	"context"
	"testing"
	"time"

	"github.com/relaymq/relay/dlq"
)

// In a rolling change an instance with a lower dlq.max_age starts while one with the old value still runs: that one took the change for
// somebody's edit of the stream, and undid it. An edit by somebody is still set back.
func TestRelay_rollingChangeOfLimitsIsNotUndone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := Route{Name: "orders", Subjects: []string{"orders.>"}, Start: StartAll, Handler: HandlerFunc(func(context.Context, *Msg) error { return nil })}
	older, _ := w.start(Config{Instance: "older", DLQ: dlq.Config{MaxAge: 48 * time.Hour, MaxBytes: 2 << 20}}, rt)
	newer, _ := w.start(Config{Instance: "newer", DLQ: dlq.Config{MaxAge: 24 * time.Hour, MaxBytes: 1 << 20}}, rt)
	is := func(age time.Duration, bytes int64) func() bool {
		return func() bool {
			c := w.settings("RELAY_DLQ")
			return c.MaxAge == age && c.MaxBytes == bytes
		}
	}
	w.eventually("the newer configuration holds", is(24*time.Hour, 1<<20))
	for range 2 {
		older.compareOwnStreams(t.Context(), true)
		newer.compareOwnStreams(t.Context(), true)
	}
	if !is(24*time.Hour, 1<<20)() {
		t.Errorf("the older instance set the stream to %+v", w.settings("RELAY_DLQ"))
	}
	edited := w.settings("RELAY_DLQ")
	edited.MaxAge, edited.Duplicates = time.Hour, time.Minute
	if _, err := w.js.UpdateStream(t.Context(), edited); err != nil {
		t.Fatal(err)
	}
	newer.compareOwnStreams(t.Context(), true)
	if !is(24*time.Hour, 1<<20)() {
		t.Errorf("an edit by somebody stays: %+v", w.settings("RELAY_DLQ"))
	}
}
