package strays

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/looks"
	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/pool"
	"github.com/relaymq/relay/internal/retry"
)

// What is kept for no route is handed over to the route that wants it, of its own durable only, and each message is looked at once.
func TestClaims(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	open := func() *retry.Stream {
		t.Helper()
		s, err := retry.OpenStream(t.Context(), js, "relay", "RELAY_RETRY", 1)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	retries := open()
	sequence := uint64(0)
	keep := func(durable, subject string) {
		t.Helper()
		sequence++
		o := retry.Origin{Route: retry.NoRoute, Stream: "ORDERS", Consumer: durable, Sequence: sequence, Time: time.Now(), Subject: subject}
		if err := retries.Park(t.Context(), o, nil, []byte("x"), time.Now().Add(time.Hour), retry.Room{Messages: 100, Bytes: 1 << 20}, 0); err != nil {
			t.Fatal(err)
		}
	}
	asked := 0
	c := NewClaims(ClaimsConfig{
		Log: slog.New(slog.DiscardHandler), Stream: "ORDERS", Durable: "billing", Pool: pool.New(1),
		Retries: func() *retry.Stream { return retries }, Work: t.Context,
		Wants: func(subject string) string {
			if asked++; subject == "orders.eu" {
				return "europe"
			}
			return ""
		},
	})
	look := func(what string, want, ask int) {
		t.Helper()
		c.cfg.Looks, asked = looks.New(js), 0 // nobody has looked lately
		if n, err := c.look(t.Context()); err != nil || n != want || asked != ask {
			t.Errorf("%s: %d are handed over and %d looked at, want %d and %d; %v", what, n, asked, want, ask, err)
		}
	}
	keep("billing", "orders.eu")
	keep("billing", "orders.us")
	keep("other", "orders.eu")
	look("at first", 1, 2)
	look("it moved one", 0, 0)
	look("nothing came", 0, 0)
	keep("billing", "orders.eu")
	look("one came", 1, 1)

	if err := js.DeleteStream(t.Context(), "RELAY_RETRY"); err != nil {
		t.Fatal(err)
	}
	retries = open()
	keep("billing", "orders.eu")
	look("the retry stream was made anew", 1, 1)

	keep("billing", "orders.eu")
	now := time.Now()
	for range 3 { // it looks once
		c.cfg.Looks = looks.New(js)
		c.Soon(now)
	}
	c.cfg.Pool.Wait()
	look("it has looked", 0, 0)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	c.cfg.Looks, c.cfg.Work = looks.New(js), func() context.Context { return ended }
	c.Soon(now.Add(claimEvery))
	c.cfg.Pool.Wait()
	if c.busy.Load() {
		t.Error("it never looks again")
	}
}
