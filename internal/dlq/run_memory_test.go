package dlq

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/retry"
)

// 150 dead letters of 8 MiB took 1.9 GiB: up to 1,056 messages were read ahead or waiting for their confirmations, whatever
// their size. Here nobody confirms before nothing more comes, and what came by then is what was in memory.
func TestRun_whatIsInFlightIsBoundedInBytes(t *testing.T) {
	js := natstest.Start(t).JetStream(t)
	s, err := Open(t.Context(), js, Config{})
	if err != nil {
		t.Fatal(err)
	}
	const n, size, ahead = 40, 200 << 10, 1 << 20
	for i := range n {
		e := entry(uint64(i + 1))
		e.Subject, e.Data = fmt.Sprint("orders.", i), bytes.Repeat([]byte{'x'}, size)
		put(t, s, e)
	}
	// In place of the retry stream: it takes messages and confirms them late.
	nc := js.Conn()
	sub, err := nc.SubscribeSync("relay.due.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		t.Fatal(err)
	}
	run := newRun(t, s, openJobs(t, js), Job{}, Choice{})
	run.ahead = ahead
	ended := make(chan error, 1)
	go func() { ended <- run.Do(t.Context()) }()
	var open []*nats.Msg
	most, seen := 0, map[string]bool{}
	for taken := 0; taken < n; {
		patience := 300 * time.Millisecond // for one more, beside those that are open
		if len(open) == 0 {
			patience = 30 * time.Second
		}
		m, err := sub.NextMsg(patience)
		if err == nil {
			if o, _, err := retry.Unwrap(m.Header); err != nil || seen[o.Subject] {
				t.Fatalf("%q came twice, or %v", o.Subject, err)
			} else {
				seen[o.Subject] = true
			}
			open = append(open, m)
			most = max(most, len(open))
			continue
		}
		if len(open) == 0 {
			t.Fatalf("nothing more comes after %d of %d", taken, n)
		}
		for _, m := range open {
			if err := m.Respond([]byte(`{"stream":"RELAY_RETRY","seq":1}`)); err != nil {
				t.Fatal(err)
			}
		}
		taken += len(open)
		open = nil
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if most*size > ahead || most < 2 {
		t.Errorf("%d messages of %d bytes were in flight at once, the bound is %d bytes", most, size, ahead)
	}
	if left := messages(t, js, s.Name()); left != 0 {
		t.Errorf("%d entries are left", left)
	}
}

// One message larger than the bound is handed over alone.
func TestRun_oneMessageLargerThanTheBoundIsLetIn(t *testing.T) {
	s, js := setup(t, Config{})
	for i := range 5 {
		e := entry(uint64(i + 1))
		e.Data = bytes.Repeat([]byte{'x'}, 100<<10)
		put(t, s, e)
	}
	run := newRun(t, s, openJobs(t, js), Job{}, Choice{})
	run.ahead = 10 << 10
	if err := run.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := messages(t, js, s.Name()); left != 0 {
		t.Errorf("%d entries are left", left)
	}
}
