package chaos

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Proc is a process of the run. It leads its own group and dies with the harness. Its methods are safe for concurrent use.
type Proc struct {
	Name string
	Log  string // file with what it writes to stderr, over restarts
	w    *World
	argv []string
	opts procOptions

	mu       sync.Mutex
	cmd      *exec.Cmd
	done     chan struct{}
	code     int // once done; 128+n for signal n
	restarts int
	keep     bool // start again when it dies, as systemd would
	over     bool
}

type procOptions struct {
	netns  string // name of the network namespace; empty: the harness's own
	cgroup string // directory of a memory cgroup
	env    []string
	first  func(line string) // called with the first line of stdout
	stderr *os.File          // instead of the log, for the first start only
}

// startProc starts a process, which ends with the run at the latest.
func (w *World) startProc(name string, opts procOptions, argv ...string) *Proc {
	w.T.Helper()
	p := &Proc{Name: name, Log: filepath.Join(w.Dir, name+".log"), w: w, argv: argv, opts: opts}
	w.mu.Lock()
	w.procs = append(w.procs, p)
	w.mu.Unlock()
	if err := p.start(); err != nil {
		w.T.Fatalf("chaos: %v", err)
	}
	return p
}

func (p *Proc) start() error {
	argv := p.argv
	if p.opts.netns != "" {
		argv = append([]string{"ip", "netns", "exec", p.opts.netns}, argv...) // which execs: the pid stays
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	log, err := os.OpenFile(p.Log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stderr = log
	if p.opts.stderr != nil {
		cmd.Stderr, p.opts.stderr = p.opts.stderr, nil
	}
	cmd.Env = append(os.Environ(), p.opts.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var stdout io.ReadCloser
	if p.opts.first != nil {
		if stdout, err = cmd.StdoutPipe(); err != nil {
			return err
		}
	} else {
		cmd.Stdout = log
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return errors.New("the run is over")
	}
	if err := launch(cmd); err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	if p.opts.cgroup != "" {
		// A moment late, which the little it has allocated by then does not matter for.
		if err := os.WriteFile(filepath.Join(p.opts.cgroup, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
			_ = cmd.Process.Kill()
			return err
		}
	}
	done := make(chan struct{})
	p.cmd, p.done = cmd, done
	go func() {
		if stdout != nil {
			line, _ := bufio.NewReader(stdout).ReadString('\n')
			p.opts.first(strings.TrimSpace(line))
		}
		_ = cmd.Wait()
		p.mu.Lock()
		st := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if p.code = st.ExitStatus(); st.Signaled() {
			p.code = 128 + int(st.Signal())
		}
		again := p.keep && !p.over
		p.mu.Unlock()
		close(done)
		if again {
			time.Sleep(100 * time.Millisecond) // RestartSec of systemd, which is its default
			p.mu.Lock()
			p.restarts++
			p.mu.Unlock()
			_ = p.start()
		}
	}()
	return nil
}

var launches = sync.OnceValue(func() chan func() {
	c := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range c {
			f()
		}
	}()
	return c
})

// launch starts a process from a thread that lives as long as the harness: a process with Pdeathsig dies with the thread
// that made it, and threads that visit namespaces end.
func launch(cmd *exec.Cmd) error {
	err := make(chan error)
	launches() <- func() { err <- cmd.Start() }
	return <-err
}

// Pid of the process as it runs now.
func (p *Proc) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Pid
}

// Signal goes to the process itself, not to its group.
func (p *Proc) Signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.done:
	default:
		_ = p.cmd.Process.Signal(s)
	}
}

// Wait returns the exit code, or false when the process still runs after d.
func (p *Proc) Wait(d time.Duration) (code int, ended bool) {
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	select {
	case <-done:
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.code, true
	case <-time.After(d):
		return 0, false
	}
}

// Kill is kill -9, and waits for the end.
func (p *Proc) Kill() {
	p.Signal(syscall.SIGKILL)
	if _, ok := p.Wait(10 * time.Second); !ok {
		p.w.T.Errorf("chaos: %s survives SIGKILL", p.Name)
	}
}

// Start begins the process anew after it ended.
func (p *Proc) Start() {
	p.w.T.Helper()
	if err := p.start(); err != nil {
		p.w.T.Fatalf("chaos: start again: %v", err)
	}
}

// Keep starts the process again whenever it ends, until the run does.
func (p *Proc) Keep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keep = true
}

// Restarts is how often Keep had to.
func (p *Proc) Restarts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.restarts
}

// end kills the process and what is left of its group.
func (p *Proc) end() {
	p.mu.Lock()
	p.over = true
	pid, done := 0, p.done
	if p.cmd != nil && p.cmd.Process != nil {
		pid = p.cmd.Process.Pid
	}
	p.mu.Unlock()
	if pid == 0 {
		return
	}
	_ = syscall.Kill(-pid, syscall.SIGKILL) // ESRCH when nobody is left
	if done != nil {
		<-done
	}
}

// LogText is what the process wrote to stderr.
func (p *Proc) LogText() string {
	b, _ := os.ReadFile(p.Log)
	return string(b)
}

// fds counts the open files of the process.
func (p *Proc) fds() int {
	list, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Pid()))
	return len(list)
}

// strays are processes whose command line names the run's directory and that the run did not start itself.
func (w *World) strays() (list []string) {
	known := map[int]bool{os.Getpid(): true}
	w.mu.Lock()
	for _, p := range w.procs {
		known[p.Pid()] = true
	}
	w.mu.Unlock()
	dirs, _ := os.ReadDir("/proc")
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil || known[pid] {
			continue
		}
		line, err := os.ReadFile("/proc/" + d.Name() + "/cmdline")
		text := strings.ReplaceAll(string(line), "\x00", " ")
		if err == nil && strings.Contains(text, w.Dir+"/") {
			list = append(list, fmt.Sprintf("%d %s", pid, text))
		}
	}
	return list
}
