package program

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/relaymq/relay/internal/natstest"
)

// A program of an exec route runs as relay's own user. It could read relay's passwords in /proc/<pid>/environ, and used what
// relay itself had been started with.
func TestRun_programsDoNotSeeRelaysSecrets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `routes:
  - name: billing
    subjects: [orders.>]
    start: all
    retry: {max_attempts: 1}
    handler: {exec: {command: [/bin/sh, -c, "{ grep -c hunter2 /proc/$PPID/environ; env | grep -c hunter2; cat <&5; } 2>&1; exit 1"]}}
`)
	secret := filepath.Join(w.dir, "secret")
	if err := os.WriteFile(secret, []byte("hunter2"), 0o600); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// Everything by descriptors, which need no rights on the directories: 3 is the program, 4 its configuration.
	cmd := exec.Command("/proc/self/fd/3", "run", "-c", "/proc/self/fd/4")
	for _, name := range []string{self, filepath.Join(w.dir, "relay.yaml"), secret} {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	said := &output{}
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", said, said
	cmd.Env = append(clean(os.Environ()), beRelay+"=1", "RELAY_NATS__USER=relay", "RELAY_NATS__PASSWORD=hunter2")
	if os.Geteuid() == 0 { // who may read everything
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54321, Gid: 54321}}
		if err := os.Chmod(filepath.Join(w.dir, "relay.yaml"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(tail(said.String()))
		}
	})
	natstest.Eventually(t, "a stream", func() bool { _, err := w.js.Publish(t.Context(), "orders.1", nil); return err == nil })
	natstest.Eventually(t, "the dead letters' stream", func() bool { _, err := w.js.Stream(t.Context(), "RELAY_DLQ"); return err == nil })
	natstest.Eventually(t, "a dead letter", func() bool { return len(deadLetters(t, w.js)) == 1 })
	got := deadLetters(t, w.js)[0].LastError
	for _, want := range []string{"environ: Permission denied 0 ", "5: Bad file descriptor"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q, want %q in it", got, want)
		}
	}
}
