package process

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a program that runs. A goroutine of its own starts it, waits for it to die, and reaps it when it is told to; all
// signals must be sent before that.
type Process struct {
	// In is for what the program reads, Out and Err have what it writes. They belong to whoever started it.
	In, Out, Err *os.File

	pid     int
	died    chan struct{} // closed when it is a zombie
	release chan struct{} // closed when it may be reaped
	reaped  chan struct{} // closed when status and err are there
	status  syscall.WaitStatus
	err     error
}

// Start runs the program with what is in env beside the fixed environment. An error means that nothing ran.
func (pr *Program) Start(env ...string) (*Process, error) {
	p := &Process{died: make(chan struct{}), release: make(chan struct{}), reaped: make(chan struct{})}
	child, err := p.openPipes()
	if err != nil {
		return nil, err
	}
	if pr.user != nil {
		// It lets the program open its streams again by name, as a shell does for > /dev/stderr. A user may always use what
		// it was given, so an error says nothing.
		for _, f := range child {
			_ = f.Chown(int(pr.user.Uid), -1)
		}
	}
	cmd := pr.cmd(env)
	// Files, not readers and writers: os/exec starts no goroutines of its own and Wait waits for the process alone.
	cmd.Stdin, cmd.Stdout, cmd.Stderr = child[0], child[1], child[2]
	living.begins()
	started := make(chan error)
	go p.run(cmd, pr, started)
	err = <-started
	for _, f := range child {
		f.Close()
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// openPipes opens the three standard streams and returns the program's ends.
func (p *Process) openPipes() (child [3]*os.File, err error) {
	var errs [3]error
	child[0], p.In, errs[0] = os.Pipe()
	p.Out, child[1], errs[1] = os.Pipe()
	p.Err, child[2], errs[2] = os.Pipe()
	if err := errors.Join(errs[:]...); err != nil {
		for _, f := range child { // the Close of a nil file only returns an error
			f.Close()
		}
		p.Close()
		return child, err
	}
	return child, nil
}

// Close closes the three streams, which ends reads and writes that wait.
func (p *Process) Close() { p.In.Close(); p.Out.Close(); p.Err.Close() }

func (p *Process) run(cmd *exec.Cmd, pr *Program, started chan<- error) {
	runtime.LockOSThread() // see the package comment; and a process can be traced from one thread only
	err := error(nil)
	if pr.user != nil {
		err = noNewPrivileges() // of this thread, which the process gets from it; the thread ends with this goroutine
	} else {
		defer runtime.UnlockOSThread()
	}
	if err == nil {
		err = cmd.Start()
	}
	if err == nil && len(pr.limits) > 0 {
		err = setLimits(cmd, pr.limits)
	}
	if err != nil {
		started <- err
		return
	}
	p.pid = cmd.Process.Pid
	living.began(p.pid)
	started <- nil
	for errors.Is(unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
	close(p.died)
	<-p.release
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		p.err = err
	} else {
		p.status, _ = cmd.ProcessState.Sys().(syscall.WaitStatus)
	}
	close(p.reaped)
}

// Pid is the id of the process, and of its group and session.
func (p *Process) Pid() int { return p.pid }

// Died is closed when the program has ended. It is not reaped then, and its group can still be killed.
func (p *Process) Died() <-chan struct{} { return p.died }

// HasExited asks the kernel, and leaves the process to be reaped. It must not be called after Reap.
func (p *Process) HasExited() bool {
	var info unix.Siginfo // stays empty while the process runs
	err := unix.Waitid(unix.P_PID, p.pid, &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
	return err == nil && info.Signo != 0
}

// Signal sends a signal to the group of the process. It must not be called after Reap.
func (p *Process) Signal(s syscall.Signal) {
	_ = syscall.Kill(-p.pid, s) // an error means that nobody is left
}

// Reap kills what is left of the group, and reaps the program. It waits for at most killWait, unless the program died by itself,
// as died says: then its status is worth waiting for. It is called once.
func (p *Process) Reap(died Death) (status syscall.WaitStatus, err error) {
	p.Signal(syscall.SIGKILL)
	living.ended(p.pid)
	close(p.release)
	if died == ByItself {
		<-p.reaped
		return p.status, p.err
	}
	timer := time.NewTimer(KillWait)
	defer timer.Stop()
	select {
	case <-p.reaped:
		return p.status, p.err
	case <-timer.C:
		return 0, nil // the kernel cannot end it yet: its goroutine reaps it whenever it dies
	}
}

// Death is how a process ends.
type Death int

const (
	// Killed processes are not waited for without end.
	Killed Death = iota
	// ByItself is a process that ends without a signal from here.
	ByItself
)

// KillWait is how long a killed process gets to die. Only one that the kernel cannot interrupt (a dead disk or NFS server)
// takes longer.
const KillWait = 150 * time.Millisecond
