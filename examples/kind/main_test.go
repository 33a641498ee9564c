package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/relaymq/relay/internal/natstest"
)

const beProgram = "BE_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(beProgram) != "" {
		main()
	}
	goleak.VerifyTestMain(m, natstest.Leaks()...)
}

// writer tells of what is written to it.
type writer struct {
	mu  sync.Mutex
	all bytes.Buffer
	has chan struct{} // closed when want was written
}

const want = "order 7: orders.7 coffee\n"

func (w *writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := strings.Contains(w.all.String(), want)
	w.all.Write(p)
	if !before && strings.Contains(w.all.String(), want) {
		close(w.has)
	}
	return len(p), nil
}

func relay(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), self, args...)
	c.Env = append(os.Environ(), beProgram+"=1")
	return c
}

// A kind of one's own is known to lint, schema and explain as the stock ones are, and gets its messages.
func TestKind_ofOnesOwn(t *testing.T) {
	s := natstest.Start(t)
	js := s.JetStream(t)
	if _, err := js.CreateStream(context.Background(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.*"}}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, handler string) string {
		file := filepath.Join(dir, name)
		text := "admin: {listen: off}\nroutes: [{name: orders, subjects: [orders.*], start: all, handler: " + handler + "}]\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	good := write("good.yaml", `{print: {prefix: "order 7: "}}`)
	bad := write("bad.yaml", `{print: {prefx: a}}`)
	if out, err := relay(t, "lint", "-c", bad).CombinedOutput(); err == nil || !strings.Contains(string(out), "bad.yaml:2: routes[0].handler.print.prefx: unknown key (did you mean prefix?)") {
		t.Errorf("lint: %v\n%s", err, out)
	}
	if out, err := relay(t, "lint", "--schema").Output(); err != nil || !strings.Contains(string(out), `"description": "writes every message to standard output"`) || !strings.Contains(string(out), `"default": "\u003e "`) {
		t.Errorf("schema: %v\n%s", err, out)
	}
	if out, err := relay(t, "explain", "-c", good, "orders.7").CombinedOutput(); err != nil || !strings.Contains(string(out), "print, timeout 30s") {
		t.Errorf("explain: %v\n%s", err, out)
	}

	run := relay(t, "run", "-c", good, "--server", s.URL())
	out, logged := &writer{has: make(chan struct{})}, &writer{has: make(chan struct{})}
	run.Stdout, run.Stderr = out, logged
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(context.Background(), "orders.7", []byte("coffee")); err != nil {
		t.Fatal(err)
	}
	select {
	case <-out.has:
	case <-time.After(30 * time.Second):
		t.Error("nothing printed")
	}
	_ = run.Process.Signal(syscall.SIGTERM)
	if err := run.Wait(); err != nil {
		t.Errorf("run: %v\n%s", err, &logged.all)
	}
}
