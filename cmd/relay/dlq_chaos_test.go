//go:build chaos

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

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
	w := newWorld(t, billing, natstest.WithOptions(func(o *server.Options) { o.JetStreamMaxStore = 16 << 30 }))
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

// I-19 and the figures of issue 5: 100,000 dead letters at 5,000 a second.
func TestChaos_replayRate(t *testing.T) {
	const n, rate = 100_000, 5000
	took := replayUnderKills(t, n, rate, 0, nil)
	got := n / took.Seconds()
	t.Logf("%.0f a second", got)
	if got < 0.9*rate || got > 1.1*rate {
		t.Errorf("%.0f a second, want %d", got, rate)
	}
}

func TestChaos_replayKilledTenTimes(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	replayUnderKills(t, 100_000, 5000, 10, rand.New(rand.NewPCG(seed, 0)))
}
