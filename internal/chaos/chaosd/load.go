package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/relaymq/relay/consumer"
)

// load is the handler of the rows about rates. Messages on …ok.> succeed, after a while if they are to; those on …bad.>
// fail until the attempt that their body says, or for ever without one. Those on …hang.> take until their timeout. It counts,
// and measures how late retries come: the delay is constant and without jitter, so a retry is due at the last failure plus
// the delay. Of what is on …fresh.> the body is when it was published: it measures how long that took to come here.
type load struct {
	file   string
	delay  time.Duration
	takes  time.Duration // what succeeds
	outage time.Duration // in which everything fails, once so many messages were handled
	after  int
	status func() consumer.Status

	mu     sync.Mutex
	made   time.Time
	down   time.Time            // the outage began
	seen   []uint64             // a bit for each sequence that was handled
	failed map[uint64]time.Time // by sequence: the last failure
	starts map[uint64]int       // of those on …bad.>
	late   []time.Duration
	fresh  []time.Duration
	stats  LoadStats
}

// LoadStats is written to the file named by embedConfig.Load every 100 ms.
type LoadStats struct {
	OK, Failed, Retried, Recovered, Waiting int
	// Lateness of retries, in milliseconds.
	P50, P99, Max, Early int64
	At                   time.Time

	// When the first message on …ok.> ended, and the last one.
	FirstOK, LastOK  time.Time
	Hung, HangingNow int
	// Fresh messages, and how long they took, in microseconds.
	Fresh                        int
	FreshP50, FreshP99, FreshMax int64
	// Handled sequences, and how many were handled again.
	Handled, Again int
	// Starts of failing messages by their number: 11 messages had 3.
	Starts map[int]int
	// The most that the stash held when looked at, and the most memory of the process, in bytes.
	Stash  int
	MaxRSS int64
}

func newLoad(c embedConfig) *load {
	return &load{
		file: c.Load, delay: c.RetryMin, takes: c.Takes, outage: c.Outage, after: c.OutageAfter,
		made: time.Now(), failed: make(map[uint64]time.Time), starts: make(map[uint64]int),
	}
}

var errBad = errors.New("bad")

func (l *load) handle(ctx context.Context, m *consumer.Msg) error {
	if strings.Contains(m.Subject, ".hang") {
		l.hanging(1)
		defer l.hanging(-1)
		<-ctx.Done()
		return ctx.Err()
	}
	if !strings.Contains(m.Subject, ".bad") {
		return l.good(m)
	}
	if string(m.Data) == "wait" {
		l.mu.Lock()
		l.stats.Waiting++
		l.mu.Unlock()
		return consumer.RetryIn(9*time.Minute, errBad) // longer than the row, and less than park_after
	}
	now := time.Now()
	until, err := strconv.Atoi(string(m.Data))
	if err != nil {
		until = math.MaxInt
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.starts[m.Sequence]++
	if last, ok := l.failed[m.Sequence]; ok {
		l.late = append(l.late, now.Sub(last)-l.delay)
		l.stats.Retried++
	}
	if m.Attempt <= until {
		l.failed[m.Sequence] = now
		l.stats.Failed++
		return errBad
	}
	delete(l.failed, m.Sequence)
	l.stats.Recovered++
	return nil
}

func (l *load) hanging(by int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stats.HangingNow += by
	if by > 0 {
		l.stats.Hung++
	}
}

func (l *load) good(m *consumer.Msg) error {
	if l.takes > 0 {
		time.Sleep(l.takes)
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.outage > 0 && l.stats.Handled >= l.after {
		if l.down.IsZero() {
			l.down = now
		}
		if now.Sub(l.down) < l.outage {
			return errBad
		}
	}
	l.handled(m.Sequence)
	if strings.Contains(m.Subject, ".fresh") {
		ns, _ := strconv.ParseInt(string(m.Data), 10, 64)
		if sent := time.Unix(0, ns); sent.After(l.made) { // else it is of an earlier process, and no longer fresh
			l.fresh = append(l.fresh, now.Sub(sent))
			l.stats.Fresh++
		}
		return nil
	}
	if l.stats.OK++; l.stats.OK == 1 {
		l.stats.FirstOK = now
	}
	l.stats.LastOK = now
	return nil
}

func (l *load) handled(seq uint64) {
	for uint64(len(l.seen)) <= seq/64 {
		l.seen = append(l.seen, 0)
	}
	word, bit := &l.seen[seq/64], uint64(1)<<(seq%64)
	if *word&bit != 0 {
		l.stats.Again++
		return
	}
	*word |= bit
	l.stats.Handled++
}

// maxRSS is the most memory that this process has had, by the kernel's count. That of getrusage begins with its parent's.
func maxRSS() (bytes int64) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if kb, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			_, _ = fmt.Sscan(kb, &bytes)
		}
	}
	return bytes << 10
}

// report writes the counts for the harness.
func (l *load) report(ctx context.Context) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		stash := 0
		if l.status != nil {
			for _, r := range l.status().Routes {
				stash = max(stash, r.Stash)
			}
		}
		l.mu.Lock()
		l.stats.Stash = max(l.stats.Stash, stash)
		s := l.stats
		s.MaxRSS = maxRSS()
		s.Starts = make(map[int]int)
		for _, n := range l.starts {
			s.Starts[n]++
		}
		fresh := slices.Clone(l.fresh)
		var h [60_001]int // milliseconds; the last one is more
		for _, d := range l.late {
			ms := d.Milliseconds()
			if ms < -50 {
				s.Early++
			}
			h[min(max(ms, 0), 60_000)]++
			s.Max = max(s.Max, ms)
		}
		n := len(l.late)
		l.mu.Unlock()
		seen := 0
		for ms, c := range h {
			if seen < (n+1)/2 && seen+c >= (n+1)/2 {
				s.P50 = int64(ms)
			}
			if seen < n*99/100 && seen+c >= n*99/100 {
				s.P99 = int64(ms)
			}
			seen += c
		}
		if slices.Sort(fresh); len(fresh) > 0 {
			s.FreshP50, s.FreshP99 = fresh[len(fresh)/2].Microseconds(), fresh[len(fresh)*99/100].Microseconds()
			s.FreshMax = fresh[len(fresh)-1].Microseconds()
		}
		s.At = time.Now()
		b, err := json.Marshal(s)
		if err != nil {
			panic(err)
		}
		if os.WriteFile(l.file+".new", b, 0o600) == nil {
			_ = os.Rename(l.file+".new", l.file)
		}
	}
}
