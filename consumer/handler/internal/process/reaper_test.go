package process

import (
	"math/bits"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A reaper that was killed itself has a successor, which knows of the programs of before: only those that are still there.
func TestGroups_aReaperThatDiedIsReplaced(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "up")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	up, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	_ = up.SetReadDeadline(time.Now().Add(30 * time.Second))
	pr, err := New(Config{Command: []string{"/bin/sh", "-c", "echo up > up; sleep 1000"}, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	begin := func() *Process {
		p, err := pr.Start()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		if _, err := up.Read(make([]byte, 3)); err != nil {
			t.Fatal(err)
		}
		return p
	}
	first := begin()
	ended := begin()
	if _, err := ended.Reap(Killed); err != nil {
		t.Fatal(err)
	}
	living.mu.Lock()
	before := living.reaper.Process.Pid
	if err := living.reaper.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for c := (Child{pid: before}); !c.HasExited(); {
		time.Sleep(time.Millisecond)
	}
	living.mu.Unlock()

	second := begin()
	living.mu.Lock()
	if living.reaper == nil || living.reaper.Process.Pid == before {
		t.Error("there is no new reaper")
	}
	known := 0
	for _, b := range living.set {
		known += bits.OnesCount8(b)
	}
	if known != 2 {
		t.Errorf("it knows of %d programs, want 2", known)
	}
	living.relay.Close() // as when relay dies
	reaper := living.reaper.Process.Pid
	living.mu.Unlock()
	for _, p := range []*Process{first, second} {
		select {
		case <-p.Died():
		case <-time.After(30 * time.Second):
			t.Errorf("program %d outlives relay", p.Pid())
		}
	}
	for _, p := range []*Process{first, second} {
		if _, err := p.Reap(Killed); err != nil {
			t.Error(err)
		}
	}
	for c := (Child{pid: reaper}); !c.HasExited(); {
		time.Sleep(time.Millisecond)
	}
	living.mu.Lock()
	living.stop() // relay, whose end it was, lives
	living.mu.Unlock()
}
