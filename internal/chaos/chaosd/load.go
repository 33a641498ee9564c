package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/relaymq/relay/consumer"
)

// load is the handler of the rows about rates. Messages on …ok.> succeed; those on …bad.> fail until the attempt that
// their body says. It counts, and measures how late retries come: the delay is constant and without jitter, so a retry
// is due at the last failure plus the delay.
type load struct {
	file  string
	delay time.Duration

	mu     sync.Mutex
	failed map[uint64]time.Time // by sequence: the last failure
	late   []time.Duration
	stats  LoadStats
}

// LoadStats is written to the file named by embedConfig.Load every 100 ms.
type LoadStats struct {
	OK, Failed, Retried, Recovered, Waiting int
	// Lateness of retries, in milliseconds.
	P50, P99, Max, Early int64
	At                   time.Time
}

func newLoad(c embedConfig) *load {
	return &load{file: c.Load, delay: c.RetryMin, failed: make(map[uint64]time.Time)}
}

var errBad = errors.New("bad")

func (l *load) handle(_ context.Context, m *consumer.Msg) error {
	if !strings.Contains(m.Subject, ".bad") {
		l.mu.Lock()
		l.stats.OK++
		l.mu.Unlock()
		return nil
	}
	if string(m.Data) == "wait" {
		l.mu.Lock()
		l.stats.Waiting++
		l.mu.Unlock()
		return consumer.RetryIn(9*time.Minute, errBad) // longer than the row, and less than park_after
	}
	now := time.Now()
	until, _ := strconv.Atoi(string(m.Data))
	l.mu.Lock()
	defer l.mu.Unlock()
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
		l.mu.Lock()
		s := l.stats
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
