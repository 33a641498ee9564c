//go:build chaos

package dlq

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/natstest"
)

// The invariants I-02, I-17 and I-19 at their figures. A crash is a connection that goes away in the middle of what it does: that is all
// that a server sees of a kill, and ten thousand of them take seconds.

// life is a connection of its own to the same dead letters.
func life(t *testing.T, s *natstest.Server) (*Store, *nats.Conn) {
	t.Helper()
	nc, err := nats.Connect(s.URL(), nats.NoReconnect())
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	store, err := Attach(t.Context(), js, "")
	if err != nil {
		t.Fatal(err)
	}
	store.timeout = time.Second
	return store, nc
}

// I-02: 10,000 crashes while a dead letter is stored, before its publish, after it and before its confirmation is acted upon. Each
// message is tried again by another life, once at once and once after the dedupe window, which is a tenth of a second here.
func TestChaos_tenThousandCrashesAtPut(t *testing.T) {
	const crashes = 10_000
	server := natstest.Start(t)
	js := server.JetStream(t)
	main, err := Open(t.Context(), js, Config{})
	if err != nil {
		t.Fatal(err)
	}
	cfg := main.stream.CachedInfo().Config
	cfg.Duplicates = 100 * time.Millisecond
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	var mu sync.Mutex
	stored, cut := 0, 0
	for w := range uint64(16) {
		work.Go(func() {
			for i := w; i < crashes; i += 16 {
				e := entry(i + 1)
				s, nc := life(t, server)
				step := rand.IntN(4)
				crash := make(chan struct{})
				go func() {
					defer close(crash)
					if step < 3 {
						time.Sleep(time.Duration(rand.IntN(600)) * time.Microsecond)
						nc.Close()
					}
				}()
				first := s.Put(t.Context(), "", e)
				<-crash
				nc.Close() // before the acknowledgement
				mu.Lock()
				if first == nil {
					stored++
				} else {
					cut++
				}
				mu.Unlock()
				if err := main.Put(t.Context(), "", e); err != nil {
					t.Errorf("put %d after the crash: %v", i+1, err)
				}
			}
		})
	}
	work.Wait()
	time.Sleep(200 * time.Millisecond)
	for i := uint64(0); i < crashes; i += 10 {
		if err := main.Put(t.Context(), "", entry(i+1)); err != nil {
			t.Error(err)
		}
	}
	seen := make(map[uint64]int)
	for e, err := range main.List(t.Context(), Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		seen[e.Sequence]++
	}
	if len(seen) != crashes || messages(t, js, main.Name()) != crashes {
		t.Errorf("I-02: %d entries of %d messages, want %d", messages(t, js, main.Name()), len(seen), crashes)
	}
	t.Logf("I-02: %d crashes at the dead-letter step (%d before the confirmation was seen, %d after), each tried again: %d entries, one for each message", crashes, cut, stored, len(seen))
}

// I-17: 10,000 entries, one in twenty of them an extreme, come back byte for byte, from the stream and from an export.
func TestChaos_tenThousandFaithful(t *testing.T) {
	const n = 10_000
	s, js := setup(t, Config{})
	limit := int(js.Conn().MaxPayload())
	extremes := []func(*Entry){
		func(e *Entry) { e.Header, e.Data = nil, randomBytes(limit) },
		func(e *Entry) { e.Header = manyHeaders(4 << 10); e.Data = randomBytes(limit - 4<<10) },
		func(e *Entry) { e.Header = manyHeaders(64<<10 - 1) },
		func(e *Entry) { e.Header = nats.Header{"K": {strings.Repeat("k", 60_000)}} },
		func(e *Entry) { e.Subject = "orders." + strings.Repeat("x", 4073) },
		func(e *Entry) { e.Subject = "orders.*.>" },
		func(e *Entry) { e.Subject = "orders.\x00\x1b\xff" },
		func(e *Entry) { e.Header, e.Data, e.Stack = nil, nil, nil },
		func(e *Entry) {
			e.Header = nats.Header{"A": {"", " x", "\x00", "\xff", "a\rb"}, "Nats-Rollup": {"all"}, "Status": {"404"}}
		},
		func(e *Entry) { e.Stack, e.LastError = randomBytes(MaxStack), strings.Repeat("e", 4096) },
	}
	make1 := func(i uint64) Entry {
		e := entry(i)
		rnd := rand.New(rand.NewPCG(i, 17))
		e.Data = make([]byte, rnd.IntN(2000))
		for j := range e.Data {
			e.Data[j] = byte(rnd.Uint32())
		}
		e.Subject = fmt.Sprintf("orders.%d.x", rnd.IntN(100))
		e.Attempts, e.Deliveries, e.Replay = rnd.IntN(50), rnd.Uint64N(100), rnd.IntN(3)
		return e
	}
	want := make(map[uint64]Entry, n)
	for i := range uint64(n) {
		e := make1(i + 1)
		if i%20 == 0 {
			extremes[int(i/20)%len(extremes)](&e)
		}
		if len(e.Data) > 100_000 && i%400 != 0 {
			e.Data = e.Data[:100_000] // some at max_payload are enough
		}
		put(t, s, e)
		want[e.Sequence] = e
	}
	count := 0
	for got, err := range s.List(t.Context(), Filter{WithBody: true}) {
		if err != nil {
			t.Fatal(err)
		}
		e := want[got.Sequence]
		delete(want, got.Sequence)
		count++
		if !bytes.Equal(got.Data, e.Data) || got.Subject != e.Subject || !bytes.Equal(got.Stack, e.Stack) || got.Reason != e.Reason ||
			(len(got.Header)+len(e.Header) > 0 && !cmp.Equal(map[string][]string(got.Header), map[string][]string(e.Header))) ||
			!cmp.Equal(got.Origin, e.Origin) {
			t.Fatalf("I-17: entry %d differs:\n%+v\n%+v", got.Sequence, got.Origin, e.Origin)
		}
	}
	if count != n || len(want) != 0 {
		t.Errorf("I-17: %d entries, want %d", count, n)
	}
	t.Logf("I-17: %d of %d entries are what was put, %d extremes among them", count, n, n/20)
}

// I-19: 1,000 crashes in the middle of a replay. What is left is resumed by another life each time; nothing is lost, nothing is handed
// over twice, and the order of each key stays.
func TestChaos_thousandCrashesAtReplay(t *testing.T) {
	const n, crashes = 20_000, 1000
	server := natstest.Start(t)
	js := server.JetStream(t)
	main, err := Open(t.Context(), js, Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "RELAY_RETRY", Subjects: []string{"relay.park.>", "relay.due.>"}, Retention: jetstream.WorkQueuePolicy, AllowMsgSchedules: true,
		Duplicates: 10 * time.Minute,
	}); err != nil {
		t.Fatal(err)
	}
	takes(t, js, "billing")
	jobs := openJobs(t, js)
	next := make(chan uint64)
	var work sync.WaitGroup
	for range 16 {
		work.Go(func() {
			for i := range next {
				e := entry(i)
				e.Subject = fmt.Sprintf("orders.%d", i%100)
				if err := main.Put(t.Context(), "", e); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range uint64(n) {
		next <- i + 1
	}
	close(next)
	work.Wait()
	plan, err := main.Plan(t.Context(), Choice{})
	if err != nil {
		t.Fatal(err)
	}
	first := plan.items
	done, crashed := 0, 0
	for done < n {
		// A slice of what there is for each life, so that planning does not take all of the time.
		s, nc := life(t, server)
		part := &Plan{items: first, Total: len(first)}
		part.items = part.items[:min(len(part.items), 200)]
		part.Total = len(part.items)
		job := Job{ID: NewJobID(time.Now()) + fmt.Sprint(crashed), State: JobRunning, Total: part.Total}
		own, err := AttachJobs(t.Context(), s.js, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := own.Create(t.Context(), &job); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() { over <- (&Run{Store: s, Jobs: own, Job: &job, Plan: part, Runner: "me"}).Do(ctx) }()
		if crashed < crashes {
			time.Sleep(time.Duration(rand.IntN(8000)) * time.Microsecond)
			nc.Close()
			cancel() // without a connection it can only end
			crashed++
		}
		if err := <-over; err != nil && !errors.Is(err, context.Canceled) && crashed < crashes {
			t.Logf("life %d: %v", crashed, err)
		}
		cancel()
		nc.Close()
		// What is gone is done. A gap behind the first one left is for a later life.
		for len(first) > 0 {
			_, err := main.get(t.Context(), first[0].number)
			if !errors.Is(err, ErrNotFound) {
				break
			}
			first = first[1:]
			done++
		}
	}
	if got := messages(t, js, main.Name()); got != 0 {
		t.Errorf("I-19: %d dead letters are left", got)
	}
	r := serve(t, js, jobs)
	r.once(n)
	last := make(map[string]uint64)
	for _, o := range r.handled() {
		if o.Sequence < last[o.Subject] {
			t.Fatalf("I-19: %s: %d after %d", o.Subject, o.Sequence, last[o.Subject])
		}
		last[o.Subject] = o.Sequence
	}
	t.Logf("I-19: %d dead letters, %d crashes in the middle of their replay: each handed over once, in the order of its key", n, crashed)
}
