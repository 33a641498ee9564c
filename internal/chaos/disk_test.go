package chaos

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/chaos/ledger"
)

// Rows of docs/reliability.md: disk, memory, clock.

func TestF42_diskFull(t *testing.T) {
	w := begin(t)
	disk := SmallDisk(w, "disk", 24<<20)
	w.StartNATS(NATSConfig{StoreDir: filepath.Join(disk, "store"), MaxStore: "1GB"})
	w.Connect()
	w.Stream()
	h := w.StartHandler("")
	r1 := w.StartRelay("r1", h, RelayConfig{})
	// Failing ones: their records and dead letters need the disk.
	w.Produce(Load{Count: of(600, 2000), Script: mixed(50, 5)})
	time.Sleep(w.Between(100*ms, 300*ms))
	free := Fill(w, disk)
	w.fault("disk full", time.Now(), w.InFlight())
	time.Sleep(of(1500*ms, 20*time.Second))
	code, ended := r1.Wait(0)
	if ended {
		t.Errorf("relay ended with %d on a full disk", code)
	}
	free()
	// JetStream does not recover by itself after its disk was full: the server has to be started anew.
	n := w.nats.Nodes[0]
	n.Kill()
	n.Start()
	n.Up()
	w.Note("nats-server started anew")
	at := time.Now()
	// What the server could not write it forgets once, at its kill, and then that begins anew.
	r := w.Check(Expect{Within: time.Minute, Unbounded: true, Each: true, ExtraStarts: 3})
	w.Figure("disk full for %v: 0 lost of %d, %d duplicates (no bound); at rest %v after space and a restart",
		of(1500*ms, 20*time.Second), r.Published, r.Duplicates, time.Since(at).Round(ms))
}

// The same with relay's own server: the process must say so.
func TestF42_embeddedDiskFull(t *testing.T) {
	w := begin(t)
	disk := SmallDisk(w, "disk", 24<<20)
	h := w.StartHandler("")
	e := w.Embedded(h, filepath.Join(disk, "store"))
	w.Produce(Load{Count: of(300, 1000), Script: mixed(50, 5)})
	free := Fill(w, disk)
	w.fault("disk full", time.Now(), w.InFlight())
	var why string
	took, ok := w.Within(12*time.Second, func() bool {
		var ready bool
		ready, why = e.Ready()
		return !ready
	})
	if !ok || took > 10*time.Second {
		t.Errorf("F42: ready %v after the disk was full (%v)", took, ok)
	}
	free()
	e.Kill()
	e.Start()
	e.WaitReady(10 * time.Second)
	r := w.Check(Expect{Within: time.Minute, Unbounded: true, Each: true, ExtraStarts: 3}) // as above
	w.Figure("embedded, disk full: unready after %v (%.60s…); after space and a restart 0 lost of %d, %d duplicates (no bound)", took.Round(ms), strings.TrimSpace(why), r.Published, r.Duplicates)
}

// F43: the dead letters are full. No ack without a home.
func TestF43_deadLettersFull(t *testing.T) {
	w := begin(t)
	h := simple(w)
	r1 := w.StartRelay("r1", h, RelayConfig{Top: M{"dlq": M{"max_bytes": "64KiB", "on_full": "block"}}})
	n := of(100, 500)
	pad := strings.Repeat("x", 4000)
	w.Produce(Load{Count: n, Rate: 500, Script: func(i int) ledger.Script {
		if i%2 == 0 {
			return ledger.Script{Do: "dead", Pad: pad}
		}
		return ledger.Script{}
	}})
	said, ok := w.Within(10*time.Second, func() bool { ready, why := r1.Ready(); return !ready && contains(why, "dead") })
	if !ok {
		t.Errorf("I-18: full dead letters do not show in readiness after %v", said)
	}
	w.Eventually(10*time.Second, "the healthy ones are handled", func() bool { return w.Ends() >= n/2 })
	time.Sleep(of(0, 40*time.Second))
	w.must("make room", func(ctx context.Context) error {
		s, err := w.js.Stream(ctx, "RELAY_DLQ")
		if err != nil {
			return err
		}
		c := s.CachedInfo().Config
		c.MaxBytes = -1
		_, err = w.js.UpdateStream(ctx, c)
		return err
	})
	w.Note("room in the dead letters")
	at := time.Now()
	r := w.Check(Expect{Within: 75 * time.Second})
	heal := time.Since(at)
	if heal > 10*time.Second {
		t.Errorf("I-18: it took %v after there was room, want ≤ 10s", heal)
	}
	w.Figure("dead letters full: unready after %v, 0 lost of %d; all %d stored %v after there was room", said.Round(ms), r.Published, r.Dead, heal.Round(ms))
}

// F43b: the limit of the server's store.
func TestF43_storeLimit(t *testing.T) {
	w := begin(t)
	w.StartNATS(NATSConfig{MaxStore: "4MB"})
	w.Connect()
	w.Stream()
	h := w.StartHandler("")
	w.StartRelay("r1", h, RelayConfig{})
	w.Produce(Load{Count: 200, Script: mixed(100, 4)})
	// A stranger's stream takes the rest.
	w.must("another stream", func(ctx context.Context) error {
		_, err := w.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "BALLAST", Subjects: []string{"ballast"}})
		return err
	})
	full := false
	for range 400 {
		ctx, cancel := w.ctx(2 * time.Second)
		_, err := w.js.Publish(ctx, "ballast", make([]byte, 32<<10))
		cancel()
		if err != nil {
			full = true
			w.Note("store full: %v", err)
			break
		}
	}
	if !full {
		t.Fatal("the store takes everything")
	}
	w.fault("store limit", time.Now(), w.InFlight())
	time.Sleep(of(time.Second, 15*time.Second))
	w.must("make room", func(ctx context.Context) error { return w.js.DeleteStream(ctx, "BALLAST") })
	w.Note("room")
	at := time.Now()
	r := w.Check(Expect{Within: time.Minute, Each: true})
	w.Figure("JetStream storage limit: 0 lost of %d, %d duplicates ≤ %s; at rest %v after there was room", r.Published, r.Duplicates, r.Arithmetic, time.Since(at).Round(ms))
}

// F10: relay is killed for want of memory, as the kernel does it. It keeps to its budget, so the memory is taken away.
func TestF10_outOfMemory(t *testing.T) {
	w := begin(t)
	h := simple(w)
	group := MemoryLimit(w, 1<<30)
	limit := func(bytes int64) {
		if err := os.WriteFile(filepath.Join(group, "memory.limit_in_bytes"), []byte(fmt.Sprint(bytes)), 0); err != nil {
			t.Error(err)
		}
	}
	r1 := w.StartRelay("r1", h, RelayConfig{Cgroup: group})
	r1.Keep()
	pad := strings.Repeat("x", 600<<10)
	n := of(1, 5)
	kills, deaths := 0, 0
	for i := range n {
		if i > 0 {
			// A fresh heap: one that has grown takes the messages without more memory.
			r1.Kill()
			w.Eventually(5*time.Second, "started again", func() bool { return r1.Restarts() > kills })
			r1.WaitReady(10 * time.Second)
		}
		kills = r1.Restarts()
		used, err := os.ReadFile(filepath.Join(group, "memory.usage_in_bytes"))
		if err != nil {
			t.Fatal(err)
		}
		var bytes int64
		_, _ = fmt.Sscan(string(used), &bytes)
		limit(bytes + 2<<20)
		wait := background(func() {
			w.Produce(Load{Count: 100, Script: func(int) ledger.Script { return ledger.Script{Sleep: 1000, Pad: pad} }})
		})
		before := 0
		_, ok := w.Within(10*time.Second, func() bool { before = max(before, w.InFlight()); return r1.Restarts() > kills })
		limit(-1)
		if !ok {
			t.Error("F10: the kernel did not kill relay; nothing was tried")
		}
		deaths += r1.Restarts() - kills
		w.fault("out of memory", time.Now(), before).Crash = true
		r1.WaitReady(10 * time.Second)
		wait()
		w.Eventually(20*time.Second, "rest", func() bool { return w.rest().done() })
		kills = r1.Restarts()
	}
	r := w.Check(Expect{Within: time.Minute})
	w.Figure("%d out-of-memory kills: 0 lost of %d, %d duplicates ≤ %s", deaths, r.Published, r.Duplicates, r.Arithmetic)
}

// clockBuild compiles a program with a time.Now that adds the seconds in a file. The monotonic clock is not touched.
func clockBuild(w *World, out, pkg string) {
	w.T.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		w.T.Fatal(err)
	}
	src := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	text, err := os.ReadFile(src)
	if err != nil {
		Missing(w.T, fmt.Sprintf("the clock overlay needs Go's sources: %v", err))
	}
	patched := strings.Replace(string(text), "\nfunc Now() Time {\n", "\nfunc Now() Time { return chaosShift(chaosNow()) }\n\nfunc chaosNow() Time {\n", 1)
	if patched == string(text) {
		Missing(w.T, "time.Now looks different in this version of Go")
	}
	patched += `
// chaosClock is the file named by CHAOS_CLOCK, 8 bytes of seconds. It is mapped: the runtime calls Now where no system call
// may be made.
var chaosClock []byte

func init() {
	name, ok := syscall.Getenv("CHAOS_CLOCK")
	if !ok {
		return
	}
	fd, err := syscall.Open(name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		panic(err)
	}
	b, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	chaosClock = b
}

func chaosShift(t Time) Time {
	b := chaosClock
	if len(b) < 8 {
		return t
	}
	s := int64(uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24 | uint64(b[4])<<32 | uint64(b[5])<<40 | uint64(b[6])<<48 | uint64(b[7])<<56)
	if s == 0 || t.wall&hasMonotonic == 0 {
		return t
	}
	mono := t.ext
	shifted := t.Add(Duration(s) * Second)
	if shifted.wall&hasMonotonic == 0 {
		return t
	}
	shifted.ext = mono
	return shifted
}
`
	if !strings.Contains(patched, "\t\"syscall\"\n") {
		patched = strings.Replace(patched, "import (\n", "import (\n\t\"syscall\"\n", 1)
	}
	file, overlay := w.path("time.go.txt"), w.path("overlay.json")
	if err := os.WriteFile(file, []byte(patched), 0o600); err != nil {
		w.T.Fatal(err)
	}
	if err := os.WriteFile(overlay, fmt.Appendf(nil, `{"Replace":{%q:%q}}`, src, file), 0o600); err != nil {
		w.T.Fatal(err)
	}
	if err := build(out, pkg, "-overlay="+overlay); err != nil {
		w.T.Fatal(err)
	}
}

// F46 needs the whole program compiled anew, so there is no slice of it but in make chaos.
func TestF46_clockSteps(t *testing.T) {
	if !Full {
		Missing(t, "the slice of the clock row would take a minute to compile; make chaos ROW=F46 runs it")
	}
	programs := begin(t)
	relay, chaosd := programs.path("relay-clock"), programs.path("chaosd-clock")
	clockBuild(programs, relay, "./cmd/relay")
	clockBuild(programs, chaosd, "./internal/chaos/chaosd")
	for _, who := range []string{"relay", "nats", "both"} {
		t.Run(who, func(t *testing.T) {
			w := New(t)
			clock := w.path("clock")
			if err := os.WriteFile(clock, make([]byte, 8), 0o600); err != nil {
				t.Fatal(err)
			}
			step := func(d time.Duration) {
				w.Note("clock %v", d)
				// In place: the file is mapped, and a moment without its bytes would be the end of those that read it.
				f, err := os.OpenFile(clock, os.O_WRONLY, 0)
				if err == nil {
					_, err = f.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(int64(d/time.Second))), 0)
					f.Close()
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			c, rc := NATSConfig{}, RelayConfig{Env: []string{"CHAOS_CLOCK=" + clock}}
			if who != "nats" {
				rc.Binary = relay
			}
			if who != "relay" {
				c.Binary, c.Env = chaosd, []string{"CHAOS_CLOCK=" + clock}
			}
			w.StartNATS(c)
			w.Connect()
			w.Stream()
			h := w.StartHandler("")
			rc.Route = M{"retry": M{"max_attempts": 3, "min": "1s", "max": "1s", "jitter": 0, "max_age": "72h"}} // a step of max_age expires what is known by its record
			w.StartRelay("r1", h, rc)
			stop := make(chan struct{})
			wait := background(func() { w.Produce(Load{Count: 1_000_000, Rate: 200, Script: mixed(100, 10), Stop: stop}) })
			for _, d := range []time.Duration{time.Hour, 0, -time.Hour, 0, 24 * time.Hour, -24 * time.Hour, 0} {
				time.Sleep(w.Between(1500*ms, 2500*ms))
				step(d)
				w.fault(fmt.Sprintf("clock of %s %v", who, d), time.Now(), w.InFlight())
			}
			time.Sleep(2 * time.Second)
			close(stop)
			wait()
			e, waited := Expect{Within: time.Minute, Delay: time.Second, Each: true}, 0
			if who != "relay" {
				// The server compares wall times: a step forward expires what is in flight and what waits. relay still
				// holds back what is not due by its own clock.
				// What was given back with a delay while its clock was ahead comes again when it is there again, for it keeps
				// the time by its wall clock. So it has to go there once more.
				w.Within(10*time.Second, func() bool { return w.InFlight() == 0 })
				waited = w.InFlight()
				step(25 * time.Hour)
				w.fault("clock of "+who+" 25h", time.Now(), waited)
			}
			r := w.Check(e)
			w.Figure("clock of %s ±1h, ±24h while running: 0 lost of %d, %d dead letters early, %d duplicates ≤ %s; %d waited until it was there again",
				who, r.Published, len(r.Wrong[Bystander]), r.Duplicates, r.Arithmetic, waited)
		})
	}
}

func contains(s, part string) bool { return strings.Contains(strings.ToLower(s), part) }
