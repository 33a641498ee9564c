package chaos

import (
	"context"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/chaos/ledger"
	"github.com/relaymq/relay/internal/freeport"
)

var seedFlag = flag.Uint64("chaos.seed", 0, "seed of the faults; 0 takes one from the clock")

// World is one run: its processes, its seed, and what was done to it.
type World struct {
	T    testing.TB
	Seed uint64
	Rand *rand.Rand
	Dir  string
	Bin  Binaries
	env  []string // of every relay

	began  time.Time
	stream string
	// divided: the route has partitions, so that its durables are in streams of relay's own.
	divided bool
	ids     atomic.Uint64

	lastInFlight atomic.Int64 // see InFlight

	mu      sync.Mutex
	log     []string
	procs   []*Proc
	pubs    []*Pub
	unsure  []*Pub
	faults  []*Fault
	thaws   []thaw
	ledgers *ledger.Reader
	nats    *NATS
	// nkeyFile is the key of the embedded server, when the servers of the run are that one.
	nkeyFile string
	nc       *nats.Conn
	js       jetstream.JetStream
	after    []func() // see late
	witness  *witness // nil without a relay
}

// New begins a run, which ends with the test. A failed run leaves its directory and prints its log.
func New(t testing.TB) *World {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) % 1_000_000_007
	}
	h := fnv.New64()
	h.Write([]byte(t.Name()))
	w := &World{T: t, Seed: seed, Rand: rand.New(rand.NewPCG(seed, h.Sum64())), began: time.Now(), ledgers: ledger.NewReader()}
	// Not t.TempDir: it is long, and gone when one wants to look at it.
	dir, err := os.MkdirTemp("", fmt.Sprintf("relay-chaos-%d-", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	w.Dir = dir
	w.Bin = binaries(t)
	t.Cleanup(w.end)
	w.Note("seed %d", seed)
	return w
}

func (w *World) end() {
	w.witness.end()
	if w.nc != nil {
		w.nc.Close()
	}
	w.mu.Lock()
	procs := w.procs
	w.mu.Unlock()
	for i := len(procs) - 1; i >= 0; i-- {
		procs[i].end()
	}
	for i := len(w.after) - 1; i >= 0; i-- {
		w.after[i]()
	}
	if !w.T.Failed() {
		_ = os.RemoveAll(w.Dir)
		return
	}
	w.T.Logf("repeat with: make chaos SEED=%d ROW=%s\nlogs are kept in %s\nwhat was done:\n  %s",
		w.Seed, row(w.T.Name()), w.Dir, strings.Join(w.Log(), "\n  "))
}

// Done ends a process that the row is done with, if it has not ended yet, and forgets it.
func (w *World) Done(procs ...*Proc) {
	for _, p := range procs {
		p.end()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.procs = slices.DeleteFunc(w.procs, func(p *Proc) bool { return slices.Contains(procs, p) })
}

// late registers what is to be undone once all processes are gone.
func (w *World) late(f func()) { w.after = append(w.after, f) }

// row is the name of the matrix row in a test's name.
func row(test string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(test, "Test"), "_")
	return name
}

// Note adds a line to the log of what was done.
func (w *World) Note(format string, args ...any) {
	line := fmt.Sprintf("%8.3fs  %s", time.Since(w.began).Seconds(), fmt.Sprintf(format, args...))
	w.mu.Lock()
	w.log = append(w.log, line)
	w.mu.Unlock()
}

// Log is what was done so far.
func (w *World) Log() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.log...)
}

// Figure reports what was measured; docs/reliability.md has its figures from these lines.
func (w *World) Figure(format string, args ...any) {
	if w.T.Failed() {
		format = "RED, what follows is not true: " + format
	}
	w.T.Logf("FIGURE %s seed=%d: %s", row(w.T.Name()), w.Seed, fmt.Sprintf(format, args...))
}

// Between is a random duration.
func (w *World) Between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(w.Rand.Int64N(int64(hi-lo)+1))
}

// Eventually waits until f is true, and fails the test after d.
func (w *World) Eventually(d time.Duration, what string, f func() bool) time.Duration {
	w.T.Helper()
	took, ok := w.Within(d, f)
	if !ok {
		w.T.Fatalf("not within %v: %s", d, what)
	}
	return took
}

// Within waits until f is true, for d at most.
func (w *World) Within(d time.Duration, f func() bool) (time.Duration, bool) {
	began := time.Now()
	for {
		if f() {
			return time.Since(began), true
		}
		if time.Since(began) > d {
			return time.Since(began), false
		}
		time.Sleep(20 * time.Millisecond) // it is another process: there is nothing to wait on
	}
}

// Connect gives the harness its own connection, past every proxy.
func (w *World) Connect(opts ...nats.Option) {
	w.T.Helper()
	w.nc, w.js = w.dial(opts...)
}

func (w *World) dial(opts ...nats.Option) (*nats.Conn, jetstream.JetStream) {
	w.T.Helper()
	opts = append([]nats.Option{
		nats.MaxReconnects(-1), nats.ReconnectWait(50 * time.Millisecond), nats.ReconnectJitter(20*time.Millisecond, 0),
		nats.RetryOnFailedConnect(true), nats.PingInterval(2 * time.Second), nats.ReconnectBufSize(-1), nats.Name("harness"),
		nats.IgnoreAuthErrorAbort(), nats.Timeout(time.Second),
	}, opts...)
	if d := w.nats.dialer(); d != nil {
		opts = append(opts, nats.SetCustomDialer(d))
	}
	if w.nkeyFile != "" {
		key, err := nats.NkeyOptionFromSeed(w.nkeyFile)
		if err != nil {
			w.T.Fatalf("chaos: the key of the embedded server: %v", err)
		}
		opts = append(opts, key)
	}
	nc, err := nats.Connect(w.nats.URL(), opts...)
	if err != nil {
		w.T.Fatalf("chaos: connect: %v", err)
	}
	w.T.Cleanup(nc.Close)
	w.Eventually(20*time.Second, "the harness connects", nc.IsConnected)
	js, err := jetstream.New(nc)
	if err != nil {
		w.T.Fatal(err)
	}
	return nc, js
}

// ctx bounds one call of the harness.
func (w *World) ctx(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(w.T.Context(), d)
}

// must retries a call: right after a start or an election the server may not answer yet, and on a busy machine a server of a cluster comes late.
func (w *World) must(what string, f func(ctx context.Context) error) {
	w.T.Helper()
	var err error
	if _, ok := w.Within(45*time.Second, func() bool {
		ctx, cancel := w.ctx(3 * time.Second)
		defer cancel()
		err = f(ctx)
		return err == nil
	}); !ok {
		w.T.Fatalf("chaos: %s: %v", what, err)
	}
}

// Stream makes the source stream, all of t.>.
func (w *World) Stream(change ...func(*jetstream.StreamConfig)) {
	w.T.Helper()
	c := jetstream.StreamConfig{Name: "T", Subjects: []string{"t.>"}, Replicas: w.nats.replicas(), Storage: jetstream.FileStorage}
	for _, f := range change {
		f(&c)
	}
	w.stream = c.Name
	w.must("make the stream", func(ctx context.Context) error {
		_, err := w.js.CreateOrUpdateStream(ctx, c)
		return err
	})
}

// path of a file of the run.
func (w *World) path(name string) string { return filepath.Join(w.Dir, name) }

// freePort is free for a moment: the kernel hands out others first.
func freePort(t testing.TB) int {
	t.Helper()
	port, err := freeport.Get()
	if err != nil {
		t.Fatal(err)
	}
	return port
}
