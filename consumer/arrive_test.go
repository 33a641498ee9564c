package consumer

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/relaymq/relay/supervisor"
)

// A durable has little memory until it has use for more: each of 1,000 idle ones had room for 32,768 messages that arrive at once.
// Nothing is lost on the way to more, and nothing comes twice: neither while all succeeds, nor when thousands wait for their retry.
func TestRelay_roomForWhatArrivesGrowsWithNeed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const n = 20_000
	var mu sync.Mutex
	attempts := make(map[uint64]int)
	count := func(least int) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			for _, k := range attempts {
				if k < least {
					return false
				}
			}
			return len(attempts) == n
		}
	}
	retry := Retry{Backoff: supervisor.Backoff{Min: 100 * time.Millisecond, Max: 100 * time.Millisecond}}
	fails := Route{Name: "fails", Subjects: []string{"orders.>"}, Start: StartAll, Retry: retry, Concurrency: 64, Handler: HandlerFunc(func(_ context.Context, m *Msg) error {
		mu.Lock()
		defer mu.Unlock()
		if attempts[m.Sequence]++; attempts[m.Sequence] == 1 && m.Sequence%2 == 0 {
			return errors.New("once")
		}
		return nil
	})}
	r, _ := w.start(Config{Logger: quiet}, fails)
	room := func(due bool) (n int) {
		for _, s := range r.engine.Running.Sources() {
			if s.Due == due {
				n = s.Pulls.Room()
			}
		}
		return n
	}
	w.eventually("both durables are open", func() bool { return room(false) > 0 && room(true) > 0 })
	if a, b := room(false), room(true); a != 1024 || b != 1024 {
		t.Errorf("room for %d and %d at rest", a, b)
	}
	for i := range n {
		if _, err := w.js.PublishAsync("orders."+strconv.Itoa(i), nil); err != nil {
			t.Fatal(err)
		}
		if i%1000 == 999 {
			<-w.js.PublishAsyncComplete()
		}
	}
	<-w.js.PublishAsyncComplete()
	w.eventually("all are handled", count(1))
	w.settled("ORDERS", "fails")
	if room(false) != 32*1024 {
		t.Errorf("room for %d after %d messages", room(false), n)
	}
	mu.Lock()
	defer mu.Unlock()
	for seq, k := range attempts {
		if want := 1 + int(1-seq%2); k != want {
			t.Fatalf("message %d had %d attempts, want %d", seq, k, want)
		}
	}
	if err := w.nc.LastError(); err != nil { // of a subscription whose channel was full
		t.Error(err)
	}
}
