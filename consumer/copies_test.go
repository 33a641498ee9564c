package consumer

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/supervise"
)

// A message was parked, or dead-lettered, and the ack of its delivery was lost with the instance. It came again without a record, failed again
// from the first attempt on, and lived on beside its copy or after its dead letter: it started up to max_attempts times more.
func TestRelay_regressionAnOriginalThatComesAgainBesideItsCopyStartsOnce(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		parkAfter    time.Duration
		parked, dead bool
		record       int // attempts of the record of an earlier delivery
		starts       int64
	}{
		"parked, and it would be given back":               {parked: true, starts: 1},
		"parked, and it would be parked":                   {parkAfter: time.Millisecond, parked: true, starts: 1},
		"parked, after earlier attempts that were no copy": {parked: true, record: 2, starts: 1},
		"dead, and it would be given back":                 {dead: true, starts: 1},
		"dead, and it would be parked":                     {parkAfter: time.Millisecond, dead: true, starts: 1},
		"nowhere else":                                     {starts: 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var starts atomic.Int64
			route := Route{
				Name: "billing", Subjects: []string{"orders.>"},
				Retry: Retry{MaxAttempts: 5, ParkAfter: tc.parkAfter, Backoff: soonAgain},
				Handler: HandlerFunc(func(context.Context, *Msg) error {
					starts.Add(1)
					return errors.New("fails")
				}),
			}
			durable := w.cameAgain(route, 1, 0)
			at := w.storedAt("ORDERS", 1)
			origin := retry.Origin{Route: "billing", Stream: "ORDERS", Consumer: "billing", Sequence: 1, Time: at, Subject: "orders.eu", Attempts: 3, FirstFailure: at, LastFailure: at}
			if tc.record > 0 {
				bucket, err := retry.OpenBucket(t.Context(), w.js, "RELAY_ATTEMPTS", 1)
				if err != nil {
					t.Fatal(err)
				}
				records := bucket.Records("ORDERS", "billing", durable.CachedInfo().Created)
				if err := records.Put(t.Context(), 1, 0, retry.Record{Attempts: tc.record, FirstFailure: at, LastFailure: at}); err != nil {
					t.Fatal(err)
				}
			}
			if tc.parked {
				retries, err := retry.AttachStream(t.Context(), w.js, "relay", "RELAY_RETRY")
				if err == nil {
					err = retries.Park(t.Context(), origin, nil, nil, time.Now().Add(time.Hour), retry.Room{}, 0)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if tc.dead {
				letters, err := dlq.Attach(t.Context(), w.js, "")
				if err == nil {
					err = letters.Put(t.Context(), "", dlq.Entry{Origin: origin, Reason: dlq.Reason(supervise.ReasonExhausted)})
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			w.start(Config{Logger: quiet}, route)
			w.eventually("it started", func() bool { return starts.Load() > 0 })
			w.eventually("nothing is left but its copy", func() bool {
				kept := 0
				if tc.parked {
					kept = 1
				}
				info := w.info("ORDERS", "billing")
				return info.NumPending+uint64(info.NumAckPending) == 0 && w.kept("relay.>") == kept
			})
			if n := starts.Load(); n != tc.starts {
				t.Errorf("%d starts, want %d", n, tc.starts)
			}
			if n := len(w.deadLetters()); (n == 1) != (tc.dead || !tc.parked) {
				t.Errorf("%d dead letters", n)
			}
		})
	}
}
