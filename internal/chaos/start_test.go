package chaos

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"
)

// Rows about what relay does when it cannot have what it needs: at its start, and later.

// F09: SIGTERM at any moment of the start.
func TestF09_terminatedWhileStarting(t *testing.T) {
	w := begin(t)
	h := simple(w)
	w.Produce(Load{Count: 20, Script: sleeping(20)})
	worst := time.Duration(0)
	n := of(8, 100)
	for range n {
		r := w.StartRelay("r1", h, RelayConfig{NoWait: true})
		time.Sleep(w.Between(0, 150*ms))
		at := time.Now()
		r.Signal(syscall.SIGTERM)
		code, ended := r.Wait(7 * time.Second)
		worst = max(worst, time.Since(at))
		// Before Go has its handlers in place, the signal ends the process as the kernel does it.
		if !ended || code != 0 && code != 128+15 {
			t.Errorf("I-13: exit %d (ended %v): %s", code, ended, tail(r.LogText(), 5))
		}
		w.Done(r.Proc)
	}
	if worst > 6*time.Second {
		t.Errorf("I-13: %v from SIGTERM to the end, drain is 5s", worst)
	}
	w.StartRelay("r2", h, RelayConfig{})
	zero := 0
	r := w.Check(Expect{Bound: &zero})
	w.Figure("SIGTERM %d times within 150 ms of the start: gone after ≤ %v, 0 lost of %d, %d duplicates", n, worst.Round(ms), r.Published, r.Duplicates)
}

// F14 and a part of F27: what relay cannot start without. It ends soon, with one line that names the cause.
func TestF14_cannotStart(t *testing.T) {
	w := begin(t)
	h := simple(w)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	plain := w.startProc("plain", procOptions{}, w.Bin.Chaosd, "nats", "-a", "127.0.0.1", "-p", fmt.Sprint(freePort(t)))
	notADirectory := w.path("file")
	if err := os.WriteFile(notADirectory, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	worst := time.Duration(0)
	cases := []struct {
		name string
		c    RelayConfig
		says string
	}{
		{"the admin port is taken", RelayConfig{Top: M{"admin": M{"listen": taken.Addr().String()}}}, "the port is taken"},
		{"the port of the embedded server is taken", RelayConfig{Top: M{"nats": M{"embedded": M{"listen": taken.Addr().String(), "store_dir": w.path("own")}}, "streams": streamT}}, taken.Addr().String()},
		{"the store is a file", RelayConfig{Top: M{"nats": M{"embedded": M{"listen": freeAddr(t), "store_dir": filepath.Join(notADirectory, "store")}}, "streams": streamT}}, notADirectory},
		{"a server without JetStream", RelayConfig{URL: "nats://127.0.0.1:" + plain.argv[len(plain.argv)-1]}, "jetstream"},
	}
	for i, c := range cases {
		c.c.NoWait = true
		at := time.Now()
		r := w.StartRelay(fmt.Sprintf("r%d", i), h, c.c)
		code, ended := r.Wait(10 * time.Second)
		took := time.Since(at)
		text := tail(r.LogText(), 3)
		worst = max(worst, took)
		switch {
		case !ended:
			t.Errorf("F14: %s: still runs after 10s: %s", c.name, text)
		case code == 0 || !contains(text, c.says):
			t.Errorf("F14: %s: exit %d without %q: %s", c.name, code, c.says, text)
		}
		w.Note("%s: exit %d after %v: %s", c.name, code, took.Round(ms), text)
		w.Done(r.Proc)
	}
	w.Figure("%d reasons not to start: non-zero exit and the cause named after ≤ %v", len(cases), worst.Round(ms))
}

var streamT = []M{{"name": "T", "subjects": []string{"t.>"}}}

func freeAddr(t testing.TB) string { return fmt.Sprintf("127.0.0.1:%d", freePort(t)) }

// F29: the user is taken away and comes back. Two refusals in a row must not end the connection for good.
func TestF29_userRemoved(t *testing.T) {
	w := begin(t)
	const auth = "authorization {\n users: [\n {user: harness, password: h}\n {user: relay, password: r}\n ]\n}\n"
	w.StartNATS(NATSConfig{Extra: auth})
	w.nats.user = "harness:h@"
	w.Connect()
	w.Stream()
	h := w.StartHandler("")
	r1 := w.StartRelay("r1", h, RelayConfig{Top: M{"nats": M{"url": w.nats.Nodes[0].url(), "user": "relay", "password": "r"}}})
	node := w.nats.Nodes[0]
	stop := make(chan struct{})
	wait := background(func() { w.Produce(Load{Count: 1_000_000, Rate: 200, Script: mixed(10, 20), Stop: stop}) })
	var unready, back time.Duration
	removals := of(1, 5)
	for range removals {
		time.Sleep(w.Between(300*ms, 500*ms))
		before := w.InFlight()
		node.Reload(func(conf string) string { return strings.Replace(conf, "user: relay", "user: other", 1) })
		w.fault("user removed", time.Now(), max(before, w.InFlight()))
		took, ok := w.Within(10*time.Second, func() bool { ready, _ := r1.Ready(); return !ready })
		if !ok {
			t.Error("F29: ready without a user")
		}
		unready = max(unready, took)
		time.Sleep(of(3*time.Second, 20*time.Second)) // several refusals
		if code, ended := r1.Wait(0); ended {
			t.Fatalf("F29: relay ended with %d: %s", code, tail(r1.LogText(), 5))
		}
		node.Reload(func(conf string) string { return strings.Replace(conf, "user: other", "user: relay", 1) })
		at := time.Now()
		w.Eventually(20*time.Second, "a handler starts once the user is back", func() bool { return !w.FirstStart(at).IsZero() })
		back = max(back, w.FirstStart(at).Sub(at))
	}
	close(stop)
	wait()
	// What was fetched when the user was removed may start, and fail, more than a second later.
	r := w.Check(Expect{ExtraStarts: removals})
	if back > 10*time.Second {
		t.Errorf("F29: handling began %v after the user was back, want ≤ 10s", back)
	}
	w.Figure("user removed and given back: unready after ≤ %v, handling ≤ %v after it was back, 0 lost of %d, %d duplicates ≤ %s", unready.Round(ms), back.Round(ms), r.Published, r.Duplicates, r.Arithmetic)
}

// F30: the server ends the connection with an error that nats.go takes for final.
func TestF30_connectionClosedForGood(t *testing.T) {
	w := begin(t)
	h := simple(w)
	p := NewProxy(t, w.nats.Addr())
	r1 := w.StartRelay("r1", h, RelayConfig{URL: p.URL()})
	r1.Keep() // as systemd would: an exit is an answer too
	stop := make(chan struct{})
	wait := background(func() { w.Produce(Load{Count: 1_000_000, Rate: 200, Script: sleeping(10), Stop: stop}) })
	var back time.Duration
	kinds := []string{"PUB " + strings.Repeat("x", 5000) + " 0\r\n\r\n", "NONSENSE\r\n"}
	n := of(2, 20)
	for i := range n {
		time.Sleep(w.Between(300*ms, 500*ms))
		f := w.Cut("an over-long or unknown control line in the name of relay")
		p.Inject(kinds[i%len(kinds)])
		f.InFlight = max(f.InFlight, w.InFlight()) // what was delivered in between
		at := time.Now()
		w.Eventually(10*time.Second, "a handler starts on a new connection", func() bool { return !w.FirstStart(at.Add(100 * ms)).IsZero() })
		back = max(back, w.FirstStart(at.Add(100*ms)).Sub(at))
	}
	close(stop)
	wait()
	r := w.Check(Expect{})
	if back > 5*time.Second {
		t.Errorf("F30: a new connection after %v, want ≤ 5s", back)
	}
	w.Figure("%d connections ended by an error of the server: handling again ≤ %v after, %d exits, 0 lost of %d, %d duplicates ≤ %s", n, back.Round(ms), r1.Restarts(), r.Published, r.Duplicates, r.Arithmetic)
}

// F41: one endpoint is cut off; the other route must not notice.
func TestF41_endpointAway(t *testing.T) {
	w := begin(t)
	h := simple(w)
	p := NewProxy(t, h.addr)
	away := "http://" + strings.TrimPrefix(p.URL(), "nats://") + "/h/r1"
	other := M{"start": "all", "stream": "T", "timeout": "1s", "ack_wait": "2s", "concurrency": 32}
	route := func(name, subject, url string) M {
		r := M{"name": name, "subjects": []string{subject}, "durable": "work", "handler": M{"http": M{"url": url}}, "retry": M{"max_attempts": 20, "min": "200ms", "max": "1s"}}
		for k, v := range other {
			r[k] = v
		}
		return r
	}
	r1 := w.StartRelay("r1", h, RelayConfig{Routes: []M{route("healthy", "t.ok.>", h.URL("r1")), route("away", "t.away.>", away)}})
	n := of(600, 10_000)
	rate := of(300, 500)
	pace := func() float64 {
		before, ended := w.Starts(), w.Ends()
		w.Produce(Load{Count: n, Rate: rate, Subject: func(i int) string { return fmt.Sprintf("t.ok.%d", i%50) }, Script: sleeping(5)})
		w.Eventually(time.Minute, "the healthy route is done", func() bool { return w.Ends()-ended >= n })
		var first, last time.Time // by the handlers: the harness has pauses of its own
		for _, run := range w.ledgers.Runs[before:] {
			if first.IsZero() || run.Start.Before(first) {
				first = run.Start
			}
			if run.End.After(last) {
				last = run.End
			}
		}
		return float64(n) / last.Sub(first).Seconds()
	}
	base := pace()
	p.Stall(Up | Down)
	w.Note("the endpoint is away")
	w.Produce(Load{Count: 200, Subject: func(i int) string { return fmt.Sprintf("t.away.%d", i%20) }})
	time.Sleep(500 * ms)
	beside := pace()
	p.Cut()
	p.Resume()
	w.Cut("the endpoint is back")
	r := w.Check(Expect{Within: 90 * time.Second})
	if least := of(0.8, 0.95); beside < least*base { // a slice is two seconds long, beside other rows
		t.Errorf("I-08: %.0f/s beside a dead endpoint, %.0f/s without: %.2f, want ≥ %.2f", beside, base, beside/base, least)
	}
	if r.Dead > 0 {
		t.Errorf("%d dead letters", r.Dead)
	}
	_ = r1
	w.Figure("an endpoint away with 200 messages for it: the other route at %.0f/s of %.0f/s (%.2f), 0 lost of %d, %d dead letters", beside, base, beside/base, r.Published, r.Dead)
}

// F45: the store of the embedded server cannot be written any more, or is not the one it was.
func TestF45_storeReadOnly(t *testing.T) {
	w := begin(t)
	disk := SmallDisk(w, "disk", 64<<20)
	h := w.StartHandler("")
	e := w.Embedded(h, filepath.Join(disk, "store"))
	w.Produce(Load{Count: of(200, 1000), Script: mixed(20, 5)})
	remount := func(flags uintptr) {
		if err := syscall.Mount(mountName, disk, "tmpfs", syscall.MS_REMOUNT|flags, ""); err != nil {
			Missing(t, fmt.Sprintf("remount: %v", err))
		}
	}
	e.Kill()
	w.fault("kill -9, then the store is read-only", time.Now(), 0).Acks = true
	remount(syscall.MS_RDONLY)
	e.Start()
	code, ended := e.Wait(10 * time.Second)
	if !ended || code == 0 {
		t.Errorf("F45: relay over a read-only store: exit %d, ended %v: %s", code, ended, tail(e.LogText(), 5))
	}
	said := tail(e.LogText(), 1)
	remount(0)
	e.Start()
	e.WaitReady(10 * time.Second)
	r := w.Check(Expect{Within: time.Minute, Unbounded: true, Each: true})
	w.Figure("embedded, store read-only at the start: exit %d (%.80s…); 0 lost of %d once it can be written", code, said, r.Published)
}

// F50: nobody reads what relay logs.
func TestF50_logBlocked(t *testing.T) {
	w := begin(t)
	h := simple(w)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	r1 := w.StartRelay("r1", h, RelayConfig{Top: M{"log": M{"level": "debug", "format": "json"}}, NoWait: true})
	r1.Kill()
	r1.opts.stderr = write
	r1.Start()
	write.Close()
	r1.WaitReady(10 * time.Second)
	size, _ := unix.FcntlInt(read.Fd(), unix.F_GETPIPE_SZ, 0)
	n := of(3000, 50_000)
	at := time.Now()
	w.Produce(Load{Count: n, Script: mixed(0, 20)})
	r := w.Check(Expect{Within: time.Minute, Delay: 200 * ms})
	took := time.Since(at)
	r1.Signal(syscall.SIGTERM)
	code, ended := r1.Wait(8 * time.Second)
	if !ended || code != 0 {
		t.Errorf("F50: exit %d (ended %v) with a log that blocks", code, ended)
	}
	w.Figure("stderr is a full pipe of %d bytes: %d messages handled or dead-lettered in %v, attempts exact, exit %d", size, r.Published, took.Round(ms), code)
}

// F24: the stream is changed while messages wait.
func TestF24_streamUpdated(t *testing.T) {
	w := begin(t)
	h := simple(w)
	w.StartRelay("r1", h, RelayConfig{Route: M{"retry": M{"max_attempts": 5, "min": "500ms", "max": "500ms", "jitter": 0}}})
	stop := make(chan struct{})
	wait := background(func() { w.Produce(Load{Count: 1_000_000, Rate: 300, Script: mixed(10, 4), Stop: stop}) })
	n := of(4, 60)
	for i := range n {
		time.Sleep(w.Between(200*ms, 500*ms))
		w.must("update the stream", func(ctx context.Context) error {
			s, err := w.js.Stream(ctx, "T")
			if err != nil {
				return err
			}
			c := s.CachedInfo().Config
			c.Subjects = [][]string{{"t.>"}, {"t.>", "more.>"}}[i%2]
			c.MaxMsgs = []int64{-1, 1_000_000}[i/2%2]
			c.Description = fmt.Sprint(i)
			_, err = w.js.UpdateStream(ctx, c)
			return err
		})
		w.Note("stream updated")
	}
	close(stop)
	wait()
	r := w.Check(Expect{Within: time.Minute, MaxAttempts: 5, Delay: 500 * ms})
	w.Figure("R1, stream updated %d times while messages wait: 0 lost of %d, %d dead letters, %d duplicates", n, r.Published, r.Dead, r.Duplicates)
}

// F27: JetStream cannot take any more durables. (What it says at the start is in F14.)
func TestF27_limitReached(t *testing.T) {
	w := begin(t)
	h := simple(w)
	w.must("a full stream", func(ctx context.Context) error {
		s, err := w.js.Stream(ctx, "T")
		if err != nil {
			return err
		}
		c := s.CachedInfo().Config
		c.MaxConsumers = 1
		_ = w.js.DeleteStream(ctx, "T")
		if s, err = w.js.CreateStream(ctx, c); err != nil {
			return err
		}
		_, err = s.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: "taken", AckPolicy: jetstream.AckExplicitPolicy})
		return err
	})
	at := time.Now()
	r := w.StartRelay("r1", h, RelayConfig{NoWait: true})
	code, ended := r.Wait(10 * time.Second)
	took := time.Since(at)
	if !ended || code == 0 || !contains(r.LogText(), "consumer") {
		t.Errorf("I-29: exit %d (ended %v) after %v: %s", code, ended, took, tail(r.LogText(), 3))
	}
	w.Figure("the stream takes no more durables: exit %d after %v: %.100s", code, took.Round(ms), tail(r.LogText(), 1))
}
