//go:build chaos

package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/dlq"
	"github.com/relaymq/relay/internal/natstest"

	"github.com/nats-io/nats-server/v2/server"
)

// fill stores n dead letters of the route billing, each of a subject of its own unless subjects says how many there are.
func fill(t testing.TB, js jetstream.JetStream, n, subjects int) *dlq.Store {
	t.Helper()
	store, err := dlq.Open(t.Context(), js, dlq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	next := make(chan int, 1000)
	var work sync.WaitGroup
	at := time.Now().Add(-time.Hour)
	for range 64 {
		work.Go(func() {
			for i := range next {
				e := dlq.Entry{
					Origin: ack.Origin{
						Route: "billing", Stream: "ORDERS", Consumer: "billing", Sequence: uint64(i + 1), Time: at.Add(time.Duration(i)),
						Subject: fmt.Sprintf("orders.%d.created", i%subjects), Attempts: 1 + i%20, Deliveries: 20,
						FirstFailure: at, LastFailure: at.Add(time.Minute),
						LastError: fmt.Sprintf("POST http://10.0.0.%d:9000/hook: 503 Service Unavailable: upstream %d", i%250, i),
					},
					Header: nats.Header{"Trace-Id": {fmt.Sprint(i)}, "Content-Type": {"application/json"}},
					Data:   fmt.Appendf(nil, `{"n":%d,"customer":{"id":%d},"total":%d.5}`, i, i%1000, i%500),
					Reason: dlq.Exhausted, Instance: "host-1",
				}
				if i%10 == 0 {
					e.Reason = dlq.Rejected
				}
				if err := store.Put(t.Context(), "", e); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	work.Wait()
	return store
}

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
		{"dlq ls --count --error-match upstream.[0-9]+7$", "100000", 10 * time.Second},
		{"dlq ls --count --subject orders.77.*", "1", 10 * time.Second},
		{"dlq ls --group-by error", "1000000", 10 * time.Second},
		{"dlq ls --count --body .customer.id=42", "1000", 30 * time.Second},
		{"dlq replay --dry-run --route billing", "1000000 dead letters", 15 * time.Second},
	} {
		began := time.Now()
		p := spawn(t, w.dir, nil, strings.Fields(c.args)...)
		rss := peak(p)
		took := time.Since(began)
		t.Logf("relay %-50s %8v %5d MiB", c.args, took.Round(time.Millisecond), rss)
		if p.cmd.ProcessState.ExitCode() != 0 || !strings.Contains(p.out.String(), c.want) {
			t.Errorf("relay %s: exit %d\n%s%s", c.args, p.cmd.ProcessState.ExitCode(), tail(p.out.String()), tail(p.err.String()))
		}
		if took > c.limit {
			t.Errorf("relay %s took %v, want %v", c.args, took, c.limit)
		}
		if rss > 256 {
			t.Errorf("relay %s took %d MiB", c.args, rss)
		}
	}
}
