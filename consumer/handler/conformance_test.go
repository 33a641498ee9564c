// Package handler_test runs one suite over all handlers that a config can name: what the contract of consumer.Handler asks
// of every one of them.
package handler_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	nethttp "net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler/discard"
	"github.com/relaymq/relay/consumer/handler/exec"
	"github.com/relaymq/relay/consumer/handler/forward"
	"github.com/relaymq/relay/consumer/handler/http"
	"github.com/relaymq/relay/consumer/handler/internal/handlertest"
	"github.com/relaymq/relay/consumer/handler/request"
	"github.com/relaymq/relay/consumer/handler/worker"
	"github.com/relaymq/relay/internal/natstest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("HANDLER_TEST_WORKER"); dir != "" {
		beWorker(dir)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m, natstest.Leaks()...)
}

// returnBound is what the contract gives a handler after the end of ctx, before it is abandoned.
const returnBound = time.Second

const concurrency = 16

// peer is the other end of a handler.
type peer struct {
	handler consumer.Handler
	// received returns the bodies that arrived since it was last called; nil for a handler that sends none.
	received func() [][]byte
	// hanging is a handler whose peer never answers; nil for one that cannot hang. hangs is called when the peer has been
	// reached.
	hanging func(t *testing.T, hangs func()) consumer.Handler
}

var peers = map[string]func(*testing.T) peer{
	"discard": func(*testing.T) peer { return peer{handler: discard.New()} },
	"http":    httpPeer,
	"exec":    execPeer,
	"forward": forwardPeer,
	"worker":  workerPeer,
	"request": requestPeer,
}

func httpPeer(t *testing.T) peer {
	var mu sync.Mutex
	var bodies [][]byte
	start := func(t *testing.T, f nethttp.HandlerFunc) consumer.Handler {
		s := httptest.NewServer(f)
		t.Cleanup(s.Close)
		h, err := http.New(http.Config{URL: s.URL, ForwardHeaders: []string{"X-Test", "X-Odd"}}, concurrency)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Stop(context.Background()) })
		return h
	}
	return peer{
		handler: start(t, func(_ nethttp.ResponseWriter, r *nethttp.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			bodies = append(bodies, body)
		}),
		received: func() [][]byte {
			mu.Lock()
			defer mu.Unlock()
			defer func() { bodies = nil }()
			return bodies
		},
		hanging: func(t *testing.T, hangs func()) consumer.Handler {
			return start(t, func(_ nethttp.ResponseWriter, r *nethttp.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				hangs()
				<-r.Context().Done()
			})
		},
	}
}

func execPeer(t *testing.T) peer {
	dir := t.TempDir()
	script := func(t *testing.T, text string) consumer.Handler {
		h, err := exec.New(exec.Config{Command: []string{"/bin/sh", "-c", text}, Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	return peer{
		handler:  script(t, `cat > body.$$`),
		received: func() [][]byte { return bodiesIn(t, dir) },
		hanging: func(t *testing.T, hangs func()) consumer.Handler {
			awaitUp(t, filepath.Join(dir, "up"), hangs)
			return script(t, `trap '' TERM; echo up > up; while :; do sleep 1; done`) // the hardest way to hang
		},
	}
}

func requestPeer(t *testing.T) peer {
	nc := natstest.Start(t).Conn(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	serve := func(t *testing.T, subject string, f func(*nats.Msg)) consumer.Handler {
		sub, err := nc.Subscribe(subject, f)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = sub.Unsubscribe() })
		h, err := request.New(request.Config{Subject: subject, ForwardHeaders: []string{"*"}}, nc, js)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	var mu sync.Mutex
	var bodies [][]byte
	return peer{
		handler: serve(t, "svc.takes", func(m *nats.Msg) {
			mu.Lock()
			defer mu.Unlock()
			bodies = append(bodies, m.Data)
			_ = m.Respond(nil)
		}),
		received: func() [][]byte {
			mu.Lock()
			defer mu.Unlock()
			defer func() { bodies = nil }()
			return bodies
		},
		hanging: func(t *testing.T, hangs func()) consumer.Handler {
			return serve(t, "svc.hangs", func(*nats.Msg) { hangs() })
		},
	}
}

func forwardPeer(t *testing.T) peer {
	nc := natstest.Start(t).Conn(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OUT", Subjects: []string{"out"}})
	if err != nil {
		t.Fatal(err)
	}
	to := func(t *testing.T, subject string) consumer.Handler {
		h, err := forward.New(forward.Config{Subject: subject}, js)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	return peer{
		handler: to(t, "out"),
		received: func() [][]byte {
			info, err := stream.Info(t.Context())
			if err != nil {
				t.Error(err)
				return nil
			}
			var bodies [][]byte
			for seq := info.State.FirstSeq; seq <= info.State.LastSeq; seq++ {
				m, err := stream.GetMsg(t.Context(), seq)
				if err != nil {
					t.Error(err)
					return nil
				}
				bodies = append(bodies, m.Data)
			}
			if err := stream.Purge(t.Context()); err != nil {
				t.Error(err)
			}
			return bodies
		},
		hanging: func(t *testing.T, hangs func()) consumer.Handler {
			sub, err := nc.Subscribe("silent", func(*nats.Msg) { hangs() })
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = sub.Unsubscribe() })
			return to(t, "silent")
		},
	}
}

// hangs says so to a pipe, if there is one.
func hangs(up string) bool {
	f, err := os.OpenFile(up, os.O_WRONLY, 0)
	if err != nil {
		return false
	}
	fmt.Fprintln(f, "up")
	f.Close()
	return true
}

// beWorker keeps the bodies that it gets in files. With a pipe named up it hangs.
func beWorker(dir string) {
	in := json.NewDecoder(os.Stdin)
	for {
		var m struct {
			ID, Data string
			Base64   []byte `json:"data_base64"`
		}
		if err := in.Decode(&m); err != nil {
			return
		}
		if hangs(filepath.Join(dir, "up")) {
			select {}
		}
		body := append(m.Base64, m.Data...)
		if err := os.WriteFile(filepath.Join(dir, "body."+m.ID), body, 0o600); err != nil {
			panic(err)
		}
		fmt.Printf("{\"id\":%q,\"verdict\":\"ack\"}\n", m.ID)
	}
}

func workerPeer(t *testing.T) peer {
	start := func(t *testing.T, dir string) consumer.Handler {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		h, err := worker.New(worker.Config{
			Command: []string{self}, Env: map[string]string{"HANDLER_TEST_WORKER": dir, "GORACE": "atexit_sleep_ms=0"}, Grace: 50 * time.Millisecond,
		}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Stop(context.Background()) })
		return h
	}
	dir := t.TempDir()
	return peer{
		handler:  start(t, dir),
		received: func() [][]byte { return bodiesIn(t, dir) },
		hanging: func(t *testing.T, hangs func()) consumer.Handler {
			dir := t.TempDir()
			awaitUp(t, filepath.Join(dir, "up"), hangs)
			return start(t, dir)
		},
	}
}

// bodiesIn takes the bodies that processes have written.
func bodiesIn(t *testing.T, dir string) (bodies [][]byte) {
	names, err := filepath.Glob(filepath.Join(dir, "body.*"))
	if err != nil {
		t.Error(err)
	}
	for _, name := range names {
		body, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
		}
		bodies = append(bodies, body)
		os.Remove(name)
	}
	return bodies
}

// awaitUp calls hangs when a process has written to a pipe.
func awaitUp(t *testing.T, up string, hangs func()) {
	if err := syscall.Mkfifo(up, 0o600); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := os.ReadFile(up); err != nil { // ends when the process has written and closed it
			t.Error(err)
		}
		hangs()
	})
	t.Cleanup(wg.Wait)
}

func TestHandlers(t *testing.T) {
	for name, start := range peers {
		t.Run(name, func(t *testing.T) {
			p := start(t)
			t.Run("is ready", func(t *testing.T) { isReady(t, p) })
			t.Run("delivers bodies as they are", func(t *testing.T) { delivers(t, p) })
			t.Run("leaves the message alone", func(t *testing.T) { leavesAlone(t, p) })
			t.Run("takes odd messages", func(t *testing.T) { takesOdd(t, p) })
			t.Run("is used concurrently", func(t *testing.T) { isConcurrent(t, p) })
			t.Run("returns at the end of ctx", func(t *testing.T) { returns(t, p) })
			t.Run("works after a Stop", func(t *testing.T) { worksAfterStop(t, p) })
		})
	}
}

// serial makes message ids that no test uses twice: forward deduplicates by them.
var serial struct {
	sync.Mutex
	n int
}

func message(subject string, data []byte) *consumer.Msg {
	serial.Lock()
	defer serial.Unlock()
	serial.n++
	m := handlertest.Message(subject, data)
	m.ID = fmt.Sprintf("ORDERS_billing_%d", serial.n)
	return m
}

func isReady(t *testing.T, p peer) {
	if c, ok := p.handler.(consumer.Checker); ok {
		if err := c.Check(t.Context()); err != nil {
			t.Error(err)
		}
	} else if p.received != nil {
		t.Error("has a peer and no Check")
	}
}

func wantBodies(t *testing.T, p peer, want ...[]byte) {
	t.Helper()
	if p.received == nil {
		return
	}
	got := p.received()
	slices.SortFunc(got, bytes.Compare)
	slices.SortFunc(want, bytes.Compare)
	if !slices.EqualFunc(got, want, bytes.Equal) {
		t.Errorf("%d bodies arrived, want %d, or others did", len(got), len(want))
	}
}

func delivers(t *testing.T, p peer) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for _, body := range [][]byte{nil, {}, {0}, []byte("\r\n\r\n"), all, []byte(`{"a":"\u0000"}`), bytes.Repeat(all, 3<<10), make([]byte, 900<<10)} {
		if err := p.handler.Handle(t.Context(), message("a.b", body)); err != nil {
			t.Fatal(err)
		}
		wantBodies(t, p, body)
	}
}

func leavesAlone(t *testing.T, p peer) {
	m := message("a.b", []byte("body"))
	m.Header = nats.Header{"X-Test": {"1", "2"}, "x-odd": {"\xff"}, "Nats-Msg-Id": {"theirs"}, "Relay-Hops": {"2"}, "Content-Type": {"text/plain"}}
	before := *m
	before.Data, before.Header = bytes.Clone(m.Data), nats.Header{}
	for name, values := range m.Header {
		before.Header[name] = slices.Clone(values)
	}
	if err := p.handler.Handle(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(before, *m) {
		t.Errorf("%+v became %+v", before, *m)
	}
	wantBodies(t, p, []byte("body"))
	// What the handler was given is not its own to read once it has returned.
	for i := range m.Data {
		m.Data[i] = 'x'
	}
	for name := range m.Header {
		m.Header[name][0] = "changed"
	}
}

func takesOdd(t *testing.T, p peer) {
	for _, subject := range []string{
		"a", "a.*.>", "..", "$(id)", "'\";`", "\x01\x1b[31m", "\xff\xfe", "\u2028\u202e", "🙂.é", "<script>", "%00%", strings.Repeat("x.", 2000) + "x",
	} {
		for _, h := range []nats.Header{nil, {"X-Test": {"a\x00b"}}, {"X-Odd": {"é\xff"}, "x-odd": {""}}, {"X-Test": {strings.Repeat("v", 60_000)}}, {"X-Test": nil}} {
			m := message(subject, []byte("odd"))
			m.Header = h
			if err := p.handler.Handle(t.Context(), m); err != nil {
				t.Errorf("%.40q %.40v: %v", subject, h, err)
			}
		}
	}
	if p.received != nil {
		for _, body := range p.received() {
			if string(body) != "odd" {
				t.Errorf("%q arrived", body)
			}
		}
	}
}

func isConcurrent(t *testing.T, p peer) {
	var wg sync.WaitGroup
	var want [][]byte
	for i := range concurrency * 4 {
		body := fmt.Appendf(nil, "message %d", i)
		want = append(want, body)
		wg.Go(func() {
			if err := p.handler.Handle(t.Context(), message("a.b", body)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	wantBodies(t, p, want...)
}

func returns(t *testing.T, p peer) {
	over := errors.New("over")
	if p.hanging != nil {
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan time.Time, 1)
		var once sync.Once
		h := p.hanging(t, func() { once.Do(func() { ended <- time.Now(); cancel(over) }) })
		err := h.Handle(ctx, message("a.b", make([]byte, 512<<10)))
		if took := time.Since(<-ended); took > returnBound {
			t.Errorf("returned %v after the end of ctx", took)
		}
		if v := handlertest.Verdict(err); v.Kind != handlertest.Retry.Kind {
			t.Errorf("%v of %v", v.Kind, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	err := p.handler.Handle(ctx, message("a.b", nil))
	if took := time.Since(began); took > returnBound {
		t.Errorf("returned after %v though ctx had ended", took)
	}
	if p.received != nil && handlertest.Verdict(err).Kind != handlertest.Retry.Kind {
		t.Errorf("with an ended ctx: %v", err)
	}
	if p.received != nil {
		p.received()
	}
}

func worksAfterStop(t *testing.T, p peer) {
	if s, ok := p.handler.(consumer.Stopper); ok {
		if err := s.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := p.handler.Handle(t.Context(), message("a.b", []byte("again"))); err != nil {
		t.Error(err)
	}
	wantBodies(t, p, []byte("again"))
}
