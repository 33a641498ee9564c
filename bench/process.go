package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// process is a child of the bench.
type process struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	lines  chan []byte // of its output; closed at its end
	stderr tail
	ended  chan struct{}
	err    error // once ended
}

// tail keeps the beginning of what a process complains about.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if room := 4<<10 - t.buf.Len(); room > 0 {
		t.buf.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(t.buf.String())
}

// play starts this program again in a role.
func play(ctx context.Context, role string, arg any) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	encoded, err := json.Marshal(arg)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	if role != "server" { // which has a directory to remove, and is told to end by its owner
		cmd = exec.CommandContext(ctx, self)
	}
	cmd.Env = append(os.Environ(), roleVar+"="+role, roleVar+"_ARG="+string(encoded))
	return start(cmd)
}

func start(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, lines: make(chan []byte, 16), ended: make(chan struct{})}
	var err error
	if p.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = &p.stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		scan := bufio.NewScanner(out)
		scan.Buffer(nil, 1<<20)
		for scan.Scan() {
			p.lines <- bytes.Clone(scan.Bytes())
		}
		_, _ = io.Copy(io.Discard, out)
		p.err = cmd.Wait()
		close(p.ended)
		close(p.lines)
	}()
	return p, nil
}

// hear waits for the next line of the process, and decodes it.
func (p *process) hear(v any, atMost time.Duration) error {
	deadline := time.NewTimer(atMost)
	defer deadline.Stop()
	select {
	case line, ok := <-p.lines:
		if !ok {
			return p.failure()
		}
		return json.Unmarshal(line, v)
	case <-deadline.C:
		return fmt.Errorf("no word from the process for %v: %s", atMost, p.stderr.String())
	}
}

// ask tells the process to end, and waits for what it has to say.
func (p *process) ask(v any) error {
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		return p.failure()
	}
	return p.hear(v, 30*time.Second)
}

func (p *process) failure() error {
	<-p.ended
	if s := p.stderr.String(); s != "" {
		return errors.New(s)
	}
	return fmt.Errorf("ended early: %v", p.err)
}

// stop ends the process: politely, and for sure after a while.
func (p *process) stop(signal os.Signal) {
	_ = p.in.Close()
	if signal != nil {
		_ = p.cmd.Process.Signal(signal)
	}
	patience := time.AfterFunc(20*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer patience.Stop()
	for range p.lines { // unread ones hold it up
	}
	<-p.ended
}

// cpu is what the process has used, of all its threads, by the kernel's own clock of it.
func (p *process) cpu() (time.Duration, error) {
	var ts unix.Timespec
	id := int32(^p.cmd.Process.Pid)<<3 | 2 // CPUCLOCK_SCHED of another process: clock_getcpuclockid(3)
	if err := unix.ClockGettime(id, &ts); err != nil {
		return 0, fmt.Errorf("CPU time of a process: %w", err)
	}
	return time.Duration(ts.Nano()), nil
}

// peakRSS is the most memory that the process ever had resident, in bytes.
func (p *process) peakRSS() int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kib << 10
		}
	}
	return 0
}
