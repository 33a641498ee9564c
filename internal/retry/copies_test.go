package retry

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
	"github.com/relaymq/relay/internal/ownstream"
)

// copyIn is the copy of a message that the retry stream stored last.
func copyIn(t *testing.T, r *Stream, o Origin) (c Origin, m *nats.Msg, seq uint64) {
	t.Helper()
	m, seq, err := ownstream.LastFromLeader(t.Context(), r.js, r.name, r.copies(o))
	if err == nil {
		c, err = UnwrapOrigin(m.Header)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c, m, seq
}

// onBoth runs a test with a retry stream of one and of three replicas.
func onBoth(t *testing.T, test func(t *testing.T, r *Stream, js jetstream.JetStream)) {
	t.Run("R1", func(t *testing.T) {
		r, js := retryStream(t)
		test(t, r, js)
	})
	t.Run("R3", func(t *testing.T) {
		js := natstest.Cluster(t, 3)[0].JetStream(t)
		r, err := OpenStream(t.Context(), js, "relay", "RELAY_RETRY", 3)
		if err != nil {
			t.Fatal(err)
		}
		test(t, r, js)
	})
}

var plenty = Room{Messages: 1000}

// An original comes again because its ack was lost, fails again, and is parked with its lower count: over the copy that waits with a greater
// one, or beside the one that has come due. Its attempts then went back, and it started more often than max_attempts.
func TestRetryStream_regressionAnOldDeliveryReplacesNoCopyWithMoreAttempts(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, r *Stream, js jetstream.JetStream) {
		park := func(attempts int, due time.Duration, own uint64) {
			t.Helper()
			o := originOf(1)
			o.Attempts = attempts
			// A stream of a busy cluster may be without a leader for a moment.
			var err error
			natstest.Eventually(t, "it is parked", func() bool {
				err = r.Park(t.Context(), o, nil, nil, time.Now().Add(due), plenty, own)
				return !errors.Is(err, jetstream.ErrNoStreamResponse)
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		want := func(subject string, attempts int) (seq uint64) {
			t.Helper()
			c, m, seq := copyIn(t, r, originOf(1))
			if c.Attempts != attempts || m.Subject != "relay."+subject+".billing.ORDERS."+originOf(1).token() || messages(t, js, "relay.>") != 1 {
				t.Fatalf("%d copies, the last one on %s with %d attempts, want one on %s with %d", messages(t, js, "relay.>"), m.Subject, c.Attempts, subject, attempts)
			}
			return seq
		}
		park(3, time.Hour, 0)
		park(2, time.Hour, 0)
		park(3, 0, 0)
		want("park", 3)
		park(4, 0, 0)
		natstest.Eventually(t, "the copy is due", func() bool {
			_, m, _ := copyIn(t, r, originOf(1))
			return m.Subject == r.dueSubject(originOf(1))
		})
		own := want("due", 4)
		park(1, time.Hour, 0)
		park(4, time.Hour, 0)
		want("due", 4)
		for o, is := range map[int]bool{3: true, 4: true, 5: false} {
			old := originOf(1)
			old.Attempts = o
			if ahead, err := r.Ahead(t.Context(), old, 0); err != nil || ahead != is {
				t.Errorf("a copy is ahead of %d attempts: %v, %v", o, ahead, err)
			}
		}
		if ahead, err := r.Ahead(t.Context(), originOf(1), own); err != nil || ahead {
			t.Errorf("a copy is ahead of itself: %v, %v", ahead, err)
		}
		// The delivery itself goes on, and once only.
		park(5, time.Hour, own)
		park(5, 0, own)
		if c, m, _ := copyIn(t, r, originOf(1)); c.Attempts != 5 || m.Subject == r.dueSubject(originOf(1)) {
			t.Errorf("the last copy is on %s with %d attempts", m.Subject, c.Attempts)
		}
		// What was parked without an attempt has the count of its own delivery.
		if err := r.Forward(t.Context(), originOf(1), Wrap(originOf(1), nil), nil); err != nil {
			t.Fatal(err)
		}
		if err := r.Bring(t.Context(), originOf(1), nil, nil, plenty); err != nil {
			t.Fatal(err)
		}
		if n := messages(t, js, "relay.>"); n != 2 { // what is parked, and the delivery that nobody acknowledged
			t.Errorf("%d messages, want 2", n)
		}
		// A replay begins anew.
		again := originOf(1)
		again.Attempts, again.Replay = 1, 1
		if err := r.Park(t.Context(), again, nil, nil, time.Now().Add(time.Hour), plenty, 0); err != nil {
			t.Fatal(err)
		}
		park(9, 0, 0)
		if c, _, _ := copyIn(t, r, again); c.Replay != 1 || c.Attempts != 1 {
			t.Errorf("replay %d with %d attempts", c.Replay, c.Attempts)
		}
	})
}

// Copies that are parked at once are one, that with the most attempts. A replicated stream refuses one while its rival is only proposed.
func TestRetryStream_ofCopiesParkedAtOnceTheGreatestCountWins(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, r *Stream, js jetstream.JetStream) {
		var parking sync.WaitGroup
		stored := make([]bool, 7)
		for n := range stored {
			parking.Go(func() {
				o := originOf(1)
				o.Attempts = n
				for try := 0; try < 20 && !stored[n]; try++ {
					stored[n] = r.Park(t.Context(), o, nil, nil, time.Now().Add(time.Hour), plenty, 0) == nil
				}
			})
		}
		parking.Wait()
		c, _, _ := copyIn(t, r, originOf(1))
		if n := messages(t, js, "relay.>"); n != 1 || c.Attempts != len(stored)-1 {
			t.Errorf("%d copies, the last one with %d attempts; parked: %v", n, c.Attempts, stored)
		}
	})
}

// A time-out proves nothing: what is there counts. What another durable has parked of the same route is another copy.
func TestRetryStream_whatIsThereIsReadBack(t *testing.T) {
	r, js := retryStream(t)
	later := time.Now().Add(time.Hour)
	if err := r.Park(t.Context(), originOf(1), nil, nil, later, plenty, 0); err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Park(over, originOf(1), nil, nil, later, plenty, 0); err != nil {
		t.Errorf("it is stored, and yet: %v", err)
	}
	other := originOf(1)
	other.Consumer, other.Attempts = "billing-old", 9
	if err := r.Park(t.Context(), other, nil, nil, later, plenty, 0); err != nil {
		t.Error(err)
	}
	if c, _, _ := copyIn(t, r, originOf(1)); c.Consumer != "billing" || messages(t, js, "relay.>") != 2 {
		t.Errorf("it is that of %s, %d are there", c.Consumer, messages(t, js, "relay.>"))
	}
}

// What it costs to have the greatest count win: one condition of a publish.
func BenchmarkRetryStream_park(b *testing.B) {
	js := natstest.Start(b).JetStream(b)
	r, err := OpenStream(b.Context(), js, "relay", "RELAY_RETRY", 1)
	if err != nil {
		b.Fatal(err)
	}
	later := time.Now().Add(time.Hour)
	for n := 0; b.Loop(); n++ {
		if err := r.Park(b.Context(), originOf(uint64(n+1)), nil, []byte(fmt.Sprint(n)), later, Room{}, 0); err != nil {
			b.Fatal(err)
		}
	}
}

// Two durables brought the same message, which no route wanted: the second one could not be kept, and stayed in its durable for ever.
func TestRetryStream_regressionWhatNoRouteWantsIsKeptForEachDurable(t *testing.T) {
	t.Parallel()
	r, js := retryStream(t)
	for _, durable := range []string{"a", "b", "a"} {
		o := originOf(1)
		o.Route, o.Consumer = NoRoute, durable
		if err := r.Park(t.Context(), o, nil, nil, time.Now().Add(time.Hour), Room{}, 0); err != nil {
			t.Fatal(err)
		}
	}
	if n := messages(t, js, "relay.park.~.>"); n != 2 {
		t.Errorf("%d are kept, want one of each durable", n)
	}
	moved, err := r.Move(t.Context(), Move{From: NoRoute, Stream: originOf(1).Stream, To: func(o Origin) string {
		if o.Consumer == "b" {
			return "billing"
		}
		return ""
	}})
	if err != nil || moved != 1 || messages(t, js, "relay.*.billing.>") != 1 || messages(t, js, "relay.park.~.>") != 1 {
		t.Errorf("%d moved, %v", moved, err)
	}
}
