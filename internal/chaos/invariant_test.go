package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/chaos/ledger"
)

// Rows about what holds without any fault of relay's surroundings: only the messages, or their handlers, are bad.

// beginAlone is the first line of a row about rates and memory: at full figures nothing runs beside it.
func beginAlone(t *testing.T) *World {
	t.Helper()
	if !Full {
		return begin(t)
	}
	return New(t)
}

// I-06: with trips off, what always fails is started as often as the policy says, not once more or less.
func TestI06_attempts(t *testing.T) {
	w := begin(t)
	h := simple(w)
	w.StartRelay("r1", h, RelayConfig{Route: M{
		"retry": M{"max_attempts": 5, "min": "200ms", "max": "200ms", "jitter": 0}, "supervisor": M{"trip_after": 0, "route_trip": M{"of": 0}, "dead_trip": M{"of": 0}},
	}})
	n := of(300, 10_000)
	w.Produce(Load{Count: n, Script: func(int) ledger.Script { return ledger.Script{Do: "fail"} }})
	r := w.Check(Expect{MaxAttempts: 5, Delay: 200 * ms, Within: 2 * time.Minute})
	if r.Dead != n || r.Starts != 5*n {
		t.Errorf("I-06: %d starts and %d dead letters of %d messages with 5 attempts each", r.Starts, r.Dead, n)
	}
	w.Figure("%d messages that always fail, on 10 keys, trips off: %d starts, %d dead letters, each message exactly 5 and 1", n, r.Starts, r.Dead)
}

// I-07: no retry before its delay is over, and none long after it.
func TestI07_gaps(t *testing.T) {
	w := beginAlone(t)
	w.StartNATS(NATSConfig{})
	w.Connect()
	w.Stream()
	stats := w.path("load.json")
	n, rate, attempts := of(100, 10_000), of(100, 300), of(4, 11)
	w.StartEmbedded("e1", M{"Load": stats, "Concurrency": 256, "RetryMin": time.Second, "RetryMax": time.Second, "AckWait": 30 * time.Second, "MaxAttempts": attempts})
	pour(w, rate, n, func(i int) string { return fmt.Sprintf("t.bad.%d", i%1000) }, says("always"))
	w.Within(time.Minute, func() bool { return readStats(stats).Failed >= n*attempts })
	w.Eventually(time.Minute, "rest", func() bool { return w.rest().done() })
	time.Sleep(300 * ms) // the last report
	s := readStats(stats)
	if len(s.Starts) != 1 || s.Starts[attempts] != n {
		t.Errorf("I-06: messages by their starts: %v, want %d with %d", s.Starts, n, attempts)
	}
	if s.Retried != n*(attempts-1) || s.Early > 0 {
		t.Errorf("I-07: of %d gaps %d are more than 50 ms too short", s.Retried, s.Early)
	}
	if s.P99 > of[int64](3000, 1000) {
		t.Errorf("I-07: p99 is %d ms late", s.P99)
	}
	if letters := len(w.Letters()); letters != n {
		t.Errorf("%d dead letters of %d messages", letters, n)
	}
	w.Figure("%d messages with %d attempts each, delay 1 s, %d new ones a second: %d gaps, %d too short; late p50 %d ms, p99 %d ms, max %d ms; each started exactly %d times",
		n, attempts, rate, s.Retried, s.Early, s.P50, s.P99, s.Max, attempts)
}

// isolation is I-08: one of a hundred subjects is bad, and so many of its messages wait.
type isolation struct {
	bad              string // bad or hang
	waiting, healthy int
	conf             M
}

// phase is one process that drains a stream, and then handles fresh messages at a moderate rate.
type phase struct {
	rate       float64       // healthy messages a second, from the first to the last
	reached    time.Duration // until the first one was handled
	p99, worst time.Duration // of fresh ones
	hung       int
}

// run measures without the bad subject and with it, in turns. Both streams are drained from their beginning each time, by
// a new durable and a new process; the bad messages come first.
func (c isolation) run(t *testing.T) {
	w := beginAlone(t)
	w.StartNATS(NATSConfig{})
	w.Connect()
	for _, name := range []string{"BASE", "BESIDE"} {
		w.must("make the stream", func(ctx context.Context) error {
			_, err := w.js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}, Storage: jetstream.FileStorage})
			return err
		})
	}
	pour(w, 0, c.waiting, func(int) string { return "BESIDE." + c.bad + ".99" }, says(""))
	for _, name := range []string{"BASE", "BESIDE"} {
		pour(w, 0, c.healthy, func(i int) string { return fmt.Sprintf("%s.ok.%d", name, i%99) }, says(""))
	}
	var base, beside []phase
	for round := range of(2, 7) {
		for turn := range 2 {
			if (round+turn)%2 == 0 {
				base = append(base, c.phase(w, "BASE", round))
			} else {
				beside = append(beside, c.phase(w, "BESIDE", round))
			}
		}
	}
	var ratios []float64
	for i := range base {
		ratios = append(ratios, beside[i].rate/base[i].rate)
	}
	ratio := median(ratios, func(r float64) float64 { return r })
	rate := func(p phase) float64 { return p.rate }
	p99 := func(p phase) time.Duration { return p.p99 }
	worst := func(p phase) time.Duration { return p.worst }
	p99Base, p99Beside := median(base, p99), median(beside, p99)
	slowest := slices.MaxFunc(beside, func(a, b phase) int { return int(a.worst - b.worst) }).worst
	// A slice shares the machine with other rows, and sees gross harm only.
	if least := of(0.2, 0.95); ratio < least && (Full || slices.Max(ratios) < least) {
		t.Errorf("I-08: the healthy subjects keep %.3f of their rate (%.3f), want ≥ %.2f", ratio, ratios, least)
	}
	if most := of(10*time.Second, 2*time.Second); slowest > most {
		t.Errorf("I-08: a fresh healthy message took %v, want ≤ %v", slowest, most)
	}
	// Below 10 ms it is the machine that is measured.
	if Full && p99Beside > max(2*p99Base, 10*ms) {
		t.Errorf("I-08: p99 of fresh healthy messages is %v, without the bad subject %v", p99Beside, p99Base)
	}
	w.Figure("%d messages of one %s subject wait beside 99 healthy ones: healthy %.0f/s of %.0f/s (medians), ratios %.3f, median %.3f; first one after %v; fresh ones p99 %v of %v, slowest %v of %v, over all rounds %v; %d timeouts",
		c.waiting, c.bad, median(beside, rate), median(base, rate), ratios, ratio, median(beside, func(p phase) time.Duration { return p.reached }).Round(ms),
		p99Beside, p99Base, median(beside, worst), median(base, worst), slowest, median(beside, func(p phase) int { return p.hung }))
}

// kept is how many messages wait in the durable of a stream and in the retry stream.
func (w *World) kept(ctx context.Context, stream string) (int, error) {
	durable, err := w.durableInfo(ctx, stream, "work")
	if err != nil {
		return 0, err
	}
	retry, err := w.js.Stream(ctx, "RELAY_RETRY")
	if err != nil {
		return 0, err
	}
	return int(durable.NumPending+retry.CachedInfo().State.Msgs) + durable.NumAckPending, nil
}

func (c isolation) phase(w *World, stream string, round int) phase {
	w.T.Helper()
	name := fmt.Sprintf("%s%d", stream, round)
	stats := w.path(name + ".json")
	conf := M{"Load": stats, "Subjects": []string{stream + ".>"}, "Stream": stream, "AckWait": 30 * time.Second, "Drain": 300 * ms,
		"MaxAttempts": 20, "RetryMin": 500 * ms, "RetryMax": 10 * time.Minute, "TripAfter": 5, "RouteTripAfter": 20}
	for k, v := range c.conf {
		conf[k] = v
	}
	began := time.Now()
	e := w.StartEmbedded(name, conf)
	w.Eventually(2*time.Minute, "the healthy messages are handled", func() bool { return readStats(stats).OK >= c.healthy })
	if stream == "BESIDE" {
		ctx, cancel := w.ctx(5 * time.Second)
		kept, err := w.kept(ctx, stream)
		cancel()
		if err != nil || kept < c.waiting*9/10 {
			w.T.Errorf("only %d of %d bad messages wait (%v)", kept, c.waiting, err)
		}
	}
	n := of(200, 4000)
	// Those of earlier rounds are in the stream, too. They must not be before the new ones.
	w.Eventually(time.Minute, "the fresh messages of earlier rounds are handled", func() bool { return readStats(stats).Handled >= c.healthy+round*n })
	pour(w, of(200, 2000), n, func(i int) string { return fmt.Sprintf("%s.fresh.%d", stream, i%99) }, func() string {
		return strconv.FormatInt(time.Now().UnixNano(), 10)
	})
	w.Eventually(time.Minute, "fresh messages are handled", func() bool { return readStats(stats).Fresh >= n })
	s := readStats(stats)
	e.Signal(syscall.SIGTERM)
	if _, ended := e.Wait(10 * time.Second); !ended {
		w.T.Errorf("%s does not end: %s", name, tail(e.LogText(), 5))
	}
	w.Done(e.Proc)
	w.must("delete the durable and what is parked", func(ctx context.Context) error {
		err := w.js.DeleteConsumer(ctx, stream, "work")
		if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return err
		}
		if err = w.js.DeleteStream(ctx, "RELAY_RETRY"); errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil
		}
		return err
	})
	us := func(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
	p := phase{
		rate: float64(c.healthy-1) / s.LastOK.Sub(s.FirstOK).Seconds(), reached: s.FirstOK.Sub(began), p99: us(s.FreshP99), worst: us(s.FreshMax), hung: s.Hung,
	}
	w.Note("%s: %+v, handled %d, again %d, failed %d", name, p, s.Handled, s.Again, s.Failed)
	return p
}

// median of what f says of each.
func median[T any, V int | float64 | time.Duration](list []T, f func(T) V) V {
	var values []V
	for _, x := range list {
		values = append(values, f(x))
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// I-08 with handlers that return at once: the machine is the bound.
func TestI08_failing(t *testing.T) {
	isolation{bad: "bad", waiting: of(1000, 10_000), healthy: of(10_000, 2_000_000), conf: M{"Concurrency": 64}}.run(t)
}

// I-08 with handlers of 5 ms on 64 slots: the slots are the bound, and each one that hangs is missed.
func TestI08_hanging(t *testing.T) {
	isolation{bad: "hang", waiting: of(1000, 10_000), healthy: of(3000, 40_000), conf: M{
		"Concurrency": 64, "Takes": 5 * ms, "Timeout": 2 * time.Second,
	}}.run(t)
}

// I-08, when more messages of the bad subject wait than the durable may have outstanding.
func TestI08_beyondMaxAckPending(t *testing.T) {
	w := beginAlone(t)
	w.StartNATS(NATSConfig{})
	w.Connect()
	w.Stream()
	stats := w.path("load.json")
	bad, healthy, fresh := of(70_000, 10*65_536), of(1000, 100_000), of(300, 30_000)
	pour(w, 0, bad, func(int) string { return "t.bad.1" }, says(""))
	pour(w, 0, healthy, func(i int) string { return fmt.Sprintf("t.ok.%d", i%99) }, says(""))
	began := time.Now()
	w.StartEmbedded("e1", M{
		"Load": stats, "Concurrency": 64, "AckWait": 30 * time.Second, "MaxAttempts": 20, "RetryMin": 500 * ms,
		"RetryMax": 10 * time.Minute, "TripAfter": 5, "RouteTripAfter": 20,
	})
	w.Eventually(3*time.Minute, "the healthy messages are handled", func() bool { return readStats(stats).OK >= healthy })
	took, s := time.Since(began), readStats(stats)
	pour(w, of(100, 1000), fresh, func(i int) string { return fmt.Sprintf("t.fresh.%d", i%99) }, func() string {
		return strconv.FormatInt(time.Now().UnixNano(), 10)
	})
	w.Eventually(time.Minute, "fresh messages are handled", func() bool { return readStats(stats).Fresh >= fresh })
	f := readStats(stats)
	if most := of(10*time.Second, 2*time.Second); time.Duration(f.FreshMax)*time.Microsecond > most {
		t.Errorf("I-08: a fresh healthy message took %d µs, want ≤ %v", f.FreshMax, most)
	}
	// Nothing is lost of those that wait: they are in the stream, or parked.
	var kept int
	w.must("look at the streams", func(ctx context.Context) (err error) {
		kept, err = w.kept(ctx, w.stream)
		return err
	})
	if kept < bad {
		t.Errorf("I-08: only %d of %d bad messages are left", kept, bad)
	}
	if f.MaxRSS > 256<<20 {
		t.Errorf("I-08: %d MiB of memory, want ≤ 256", f.MaxRSS>>20)
	}
	w.Figure("%d messages of one bad subject ahead of %d healthy ones: the first of these after %v, all after %v; fresh ones p99 %d µs, slowest %d µs; %d bad ones are kept; RSS %d MiB",
		bad, healthy, s.FirstOK.Sub(began).Round(ms), took.Round(ms), f.FreshP99, f.FreshMax, kept, f.MaxRSS>>20)
}

// I-10: a million subjects, and an outage in their midst in which what was fetched waits in the stash.
func TestI10_millionSubjects(t *testing.T) {
	w := beginAlone(t)
	w.StartNATS(NATSConfig{})
	w.Connect()
	w.Stream()
	stats := w.path("load.json")
	n, stash := of(20_000, 1_000_000), 10_000
	pour(w, 0, n, func(i int) string { return fmt.Sprintf("t.ok.%d", i) }, says(`{"order":1}`))
	w.StartEmbedded("e1", M{
		"Load": stats, "Concurrency": 256, "AckWait": 30 * time.Second, "MaxAttempts": 20, "RetryMin": 500 * ms, "RetryMax": 10 * time.Minute,
		"TripAfter": 5, "RouteTripAfter": 20, "Stash": stash, "Outage": of(time.Second, 5*time.Second), "OutageAfter": n / 4,
	})
	w.Eventually(5*time.Minute, "all are handled", func() bool { return readStats(stats).Handled >= n })
	w.Eventually(time.Minute, "rest", func() bool { return w.rest().done() })
	s := readStats(stats)
	letters := len(w.Letters())
	if s.Handled != n || s.Again > 0 || letters > 0 {
		t.Errorf("I-10: of %d messages %d were handled, %d again, %d dead-lettered", n, s.Handled, s.Again, letters)
	}
	if s.Stash > stash || s.Stash == 0 {
		t.Errorf("I-10: the stash held %d messages, its bound is %d", s.Stash, stash)
	}
	if s.MaxRSS > 256<<20 {
		t.Errorf("I-10: %d MiB of memory, want ≤ 256", s.MaxRSS>>20)
	}
	w.Figure("%d subjects, all failing for a while: 0 lost, %d handled again, %d dead letters; at most %d of %d messages in the stash, RSS ≤ %d MiB", n, s.Again, letters, s.Stash, stash, s.MaxRSS>>20)
}
