package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
)

// A child is this program again, with its part in the environment. It lives as long as its standard input is open; a
// line there asks for its result.

const roleVar = "RELAY_BENCH_ROLE"

// roles are the parts of a child. Each says what the parent waits for on standard output, and returns at the latest when
// its input ends.
var roles = map[string]func(arg string) error{
	"server":     serveNATS,
	"endpoint":   serveEndpoint,
	"service":    serveRequests,
	"tabs":       openTabs,
	"publisher":  publish,
	"contestant": compete,
}

// playRole is called first by main and by the test binary: it does not return in a child.
func playRole() {
	role := os.Getenv(roleVar)
	if role == "" {
		return
	}
	// A Ctrl-C reaches the whole group of processes; who ends when is for the parent to say.
	signal.Ignore(os.Interrupt)
	play := roles[role]
	if play == nil {
		fmt.Fprintf(os.Stderr, "no role %q\n", role)
		os.Exit(2)
	}
	if err := play(os.Getenv(roleVar + "_ARG")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// untilAsked returns when the parent writes a line, or is gone.
func untilAsked() { _, _ = bufio.NewReader(os.Stdin).ReadString('\n') }

// say tells the parent something, on one line.
func say(v any) error { return json.NewEncoder(os.Stdout).Encode(v) }

// contestants that run inside a child, by name. They begin to consume, and return how to end.
var contestants = map[string]func(*turn) (stop func(), err error){
	"plain":           plain,
	"pool":            plainPool,
	"confirmed":       plainConfirmed,
	"nak":             plainNak,
	"watermill-async": func(t *turn) (func(), error) { return watermillRouter(t, true) },
	"watermill":       func(t *turn) (func(), error) { return watermillRouter(t, false) },
	"library":         library,
	"limited":         limited,
	"archived":        archived,
	"narrow":          narrow,
	"limited-20":      limited20,
	"singleton":       singleton,
	"ordered":         ordered,
	"partitioned":     partitioned,
	"sharded":         plainSharded,
	"fetch":           plainFetch,
}

// turn is what a contestant works with.
type turn struct {
	spec
	nc      *nats.Conn
	handled atomic.Int64 // successes, or refusals where nothing else is done
	latency *histogram
	failed  sync.Map // messages that had their failure, by number
	told    sync.Once
}

// compete runs one contestant until the parent asks for its result.
func compete(arg string) error {
	t := &turn{latency: newHistogram()}
	if err := json.Unmarshal([]byte(arg), &t.spec); err != nil {
		return err
	}
	var err error
	// What relay asks of its connection; without it nothing changes for the others while the server is there.
	if t.nc, err = nats.Connect(t.URL, nats.ReconnectBufSize(-1), nats.MaxReconnects(-1)); err != nil {
		return err
	}
	defer t.nc.Close()
	finish, err := beginProfile(t.Profile)
	if err != nil {
		return err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	begin := contestants[t.Contestant]
	if begin == nil {
		return fmt.Errorf("no contestant %q", t.Contestant)
	}
	stop, err := begin(t)
	if err != nil {
		return fmt.Errorf("%s: %w", t.Contestant, err)
	}
	untilAsked()
	runtime.ReadMemStats(&after)
	if err := finish(); err != nil {
		return err
	}
	r := result{Handled: t.handled.Load(), Mallocs: after.Mallocs - before.Mallocs}
	if t.Handler.Kind == "latency" {
		r.Latency = t.latency.quantiles()
	}
	if err := say(r); err != nil {
		return err
	}
	stop()
	return nil
}

// count notes a success, or a refusal, and tells the parent when it was the last refusal it waits for.
func (t *turn) count() {
	if n := t.handled.Add(1); t.Handler.Kind == "refuse" && n >= int64(t.Handler.Until) {
		t.told.Do(func() { _ = say("done") })
	}
}

// beginProfile begins to profile into dir; nothing when that is empty.
func beginProfile(dir string) (finish func() error, err error) {
	if dir == "" {
		return func() error { return nil }, nil
	}
	runtime.SetMutexProfileFraction(10)
	runtime.MemProfileRate = 64 << 10 // finer than by default, and not felt
	f, err := os.Create(filepath.Join(dir, "cpu.pprof"))
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, err
	}
	return func() error {
		pprof.StopCPUProfile()
		if err := f.Close(); err != nil {
			return err
		}
		for _, name := range []string{"allocs", "mutex"} {
			f, err := os.Create(filepath.Join(dir, name+".pprof"))
			if err != nil {
				return err
			}
			if err := pprof.Lookup(name).WriteTo(f, 0); err != nil {
				return err
			}
			if err := f.Close(); err != nil {
				return err
			}
		}
		return nil
	}, nil
}
