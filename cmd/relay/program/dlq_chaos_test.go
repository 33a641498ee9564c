//go:build chaos

package program

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
)

// peak waits for the end of a process and returns how many MiB it had at most, as last seen. Its rusage would count what the
// test itself had when it forked.
func peak(p *process) (mib int) {
	for {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
		for line := range strings.Lines(string(status)) {
			var kib int
			if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
				mib = max(mib, kib>>10)
			}
		}
		select {
		case <-p.exited:
			return mib
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// The figures of issue 5: first page of a million entries in a second, a filtered count in ten, memory bounded. It measures
// the commands as a user runs them, process start included; with the race detector the bounds are not meant.
func TestChaos_millionDeadLetters(t *testing.T) {
	w := newWorld(t, billing, natstest.WithConfig("jetstream {max_file_store: 16GB}"))
	began := time.Now()
	fill(t, w.js, 1_000_000, 1_000_000)
	t.Logf("stored in %v", time.Since(began).Round(time.Second))
	for _, c := range []struct {
		args  string
		want  string
		limit time.Duration
	}{
		{"dlq ls", "There may be more", time.Second},
		{"dlq ls --after 900000", "There may be more", time.Second},
		{"dlq ls --count", "1000000", time.Second},
		{"dlq ls --count --route billing", "1000000", 10 * time.Second},
		{"dlq ls --count --reason dead", "100000", 10 * time.Second},
		{"dlq ls --count --attempts 20", "50000", 10 * time.Second},
		{"dlq ls --count --error-match upstream.[0-9]+7$", "99999", 10 * time.Second},
		{"dlq ls --count --subject orders.77.*", "1", 10 * time.Second},
		{"dlq ls --group-by error", "1000000", 10 * time.Second},
		{"dlq ls --count --body .customer.id=42", "1000", 30 * time.Second},
		{"dlq replay --dry-run --route billing", "1000000 dead letters", 15 * time.Second},
	} {
		began := time.Now()
		p := spawn(t, w.dir, nil, strings.Fields(c.args)...)
		rss := peak(p)
		took := time.Since(began)
		state := p.cmd.ProcessState
		t.Logf("relay %-50s %8v, CPU %8v, %4d MiB", c.args, took.Round(time.Millisecond), (state.UserTime() + state.SystemTime()).Round(time.Millisecond), rss)
		if p.cmd.ProcessState.ExitCode() != 0 || !strings.Contains(p.out.String(), c.want) {
			t.Errorf("relay %s: exit %d\n%s%s", c.args, p.cmd.ProcessState.ExitCode(), tail(p.out.String()), tail(p.err.String()))
		}
		if took > c.limit {
			t.Errorf("relay %s took %v, want %v", c.args, took, c.limit)
		}
		if rss > 300 {
			t.Errorf("relay %s took %d MiB", c.args, rss)
		}
	}
}

// I-19 and the figures of issue 5: 100,000 dead letters at 5,000 a second, beside live traffic of which at least nine tenths
// must go on as before.
func TestChaos_replayRate(t *testing.T) {
	const n, rate = 100_000, 5000
	w := newReplays(t)
	l := newLive(t, w, 2000)
	r := replays{n: n, subjects: 100, rate: rate}
	var alone, beside lived
	r.during = func(w *world, running func() bool) {
		natstest.Eventually(t, "the replay is at work", func() bool { return left(t, w.js, "RELAY_DLQ") < n })
		beside = l.measure(t, func(began time.Time) bool { return running() })
	}
	took := r.do(t, w)
	alone = l.measure(t, func(began time.Time) bool { return time.Since(began) < 15*time.Second })
	l.stop()
	t.Logf("live traffic alone:             %v", alone)
	t.Logf("live traffic beside the replay: %v", beside)
	if ratio := beside.rate / alone.rate; ratio < 0.9 {
		t.Errorf("live traffic keeps %.2f", ratio)
	}
	got := n / took.Seconds()
	t.Logf("%.0f a second", got)
	if got < 0.9*rate || got > 1.1*rate {
		t.Errorf("%.0f a second, want %d", got, rate)
	}
}

func TestChaos_replayKilledTenTimes(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	replays{n: 100_000, subjects: 100, rate: 5000, killCommand: 10, rnd: rand.New(rand.NewPCG(seed, 0))}.do(t, newReplays(t))
}

func TestChaos_replayRelayKilledTenTimes(t *testing.T) {
	const n, rate = 100_000, 5000
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	took := replays{n: n, subjects: 100, rate: rate, killRelay: 10, rnd: rand.New(rand.NewPCG(seed, 0))}.do(t, newReplays(t))
	got := n / took.Seconds()
	t.Logf("%.0f a second", got)
	if got < 0.9*rate || got > 1.1*rate {
		t.Errorf("%.0f a second, want %d", got, rate)
	}
}

// live is traffic at a steady rate through a route of its own.
type live struct {
	w     *world
	end   chan struct{}
	work  sync.WaitGroup
	sent  atomic.Int64
	mu    sync.Mutex
	delay []time.Duration // from the publish to the hand-over by the route, of what was handled since it was last taken
}

// lived is what became of live traffic in a while.
type lived struct {
	rate, published float64 // a second
	p50, p99        time.Duration
}

func (l lived) String() string {
	return fmt.Sprintf("%.0f handled a second of %.0f published, p50 %v, p99 %v", l.rate, l.published, l.p50.Round(time.Millisecond), l.p99.Round(time.Millisecond))
}

func newLive(t *testing.T, w *world, rate int) *live {
	l := &live{w: w, end: make(chan struct{})}
	c, err := w.js.CreateConsumer(t.Context(), "LIVED", jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy})
	if err != nil {
		t.Fatal(err)
	}
	consuming, err := c.Consume(func(m jetstream.Msg) {
		at, err := strconv.ParseInt(string(m.Data()), 10, 64)
		if err != nil {
			t.Error(err)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.delay = append(l.delay, time.Since(time.Unix(0, at)))
	})
	if err != nil {
		t.Fatal(err)
	}
	l.work.Go(func() {
		defer func() {
			consuming.Stop()
			<-consuming.Closed()
		}()
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		began := time.Now()
		for n := 0; ; {
			select {
			case <-l.end:
				return
			case <-tick.C:
			}
			for ; n < int(time.Since(began).Seconds()*float64(rate)); n++ {
				if _, err := w.js.PublishAsync(fmt.Sprintf("live.%d", n%50), strconv.AppendInt(nil, time.Now().UnixNano(), 10)); err != nil {
					t.Error(err)
					return
				}
				l.sent.Add(1)
			}
		}
	})
	t.Cleanup(l.stop)
	return l
}

func (l *live) stop() {
	select {
	case <-l.end:
	default:
		close(l.end)
	}
	l.work.Wait()
}

// measure watches the traffic while more says so.
func (l *live) measure(t *testing.T, more func(began time.Time) bool) (got lived) {
	t.Helper()
	began := time.Now()
	sent := l.sent.Load()
	l.mu.Lock()
	l.delay = nil
	l.mu.Unlock()
	for more(began) {
		time.Sleep(5 * time.Millisecond)
	}
	took := time.Since(began).Seconds()
	l.mu.Lock()
	all := slices.Sorted(slices.Values(l.delay))
	l.mu.Unlock()
	if len(all) == 0 {
		t.Fatal("no live traffic")
	}
	return lived{
		rate: float64(len(all)) / took, published: float64(l.sent.Load()-sent) / took,
		p50: all[len(all)/2], p99: all[len(all)*99/100],
	}
}
