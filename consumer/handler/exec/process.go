package exec

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// killWait is how long a killed process gets to die. Only one that the kernel cannot interrupt (a dead disk or NFS
	// server) takes longer.
	killWait = 150 * time.Millisecond
	// pipeWait is how long the pipes get to run empty after the process died: no time at all, unless a descendant that
	// escaped the kill keeps them open.
	pipeWait = 100 * time.Millisecond
	// keepOutput is what is kept of each stream: what an error shows, and room for its text to be cleaned.
	keepOutput = 2 * maxShown
)

// process is a program that runs. Its goroutine starts it, waits for it to die, and reaps it when it is told to; all
// signals come from wait, before that.
type process struct {
	pid     int
	died    chan struct{} // closed when it is a zombie
	release chan struct{} // closed when it may be reaped
	reaped  chan struct{} // closed when status and err are there
	status  syscall.WaitStatus
	err     error
	pipes   *pipes
}

// result is the end of a process.
type result struct {
	status syscall.WaitStatus
	// interrupted is why SIGTERM was sent; status says nothing then.
	interrupted error
	// err is set when the status is not known.
	err    error
	output []byte
}

// program is what is the same for all processes of a handler.
type program struct {
	path   string
	argv   []string
	dir    string
	user   *syscall.Credential // nil: relay's own
	limits []rlimit
}

// start runs the program. An error means that nothing ran.
func (pr *program) start(env []string, stdin []byte) (*process, error) {
	pipes, err := openPipes()
	if err != nil {
		return nil, err
	}
	if pr.user != nil {
		pipes.giveTo(int(pr.user.Uid))
	}
	cmd := pr.cmd(env)
	// Files, not readers and writers: os/exec starts no goroutines of its own and Wait waits for the process alone.
	cmd.Stdin, cmd.Stdout, cmd.Stderr = pipes.childIn, pipes.childOut, pipes.childErr
	p := &process{
		died: make(chan struct{}), release: make(chan struct{}), reaped: make(chan struct{}),
		pipes: pipes,
	}
	started := make(chan error)
	go p.run(cmd, pr.limits, started)
	err = <-started
	pipes.closeChildEnds()
	if err != nil {
		pipes.close()
		return nil, err
	}
	pipes.copy(stdin)
	return p, nil
}

func (pr *program) cmd(env []string) *exec.Cmd {
	return &exec.Cmd{
		Path: pr.path, Args: pr.argv, Dir: pr.dir, Env: env,
		SysProcAttr: &syscall.SysProcAttr{
			Setsid: true, Pdeathsig: syscall.SIGKILL, Credential: pr.user, Ptrace: len(pr.limits) > 0,
		},
	}
}

func (p *process) run(cmd *exec.Cmd, limits []rlimit, started chan<- error) {
	runtime.LockOSThread() // see the package comment; and a process can be traced from one thread only
	defer runtime.UnlockOSThread()
	err := cmd.Start()
	if err == nil && len(limits) > 0 {
		err = setLimits(cmd, limits)
	}
	if err != nil {
		started <- err
		return
	}
	p.pid = cmd.Process.Pid
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

// wait returns when the process has ended, or at the latest grace + killWait + pipeWait after the end of ctx. It is
// called once.
func (p *process) wait(ctx context.Context, grace time.Duration) result {
	var r result
	select {
	case <-p.died:
	case <-ctx.Done():
		// A program that is through has done its work, however late died is closed or select looks at it.
		if !p.hasExited() {
			r.interrupted = context.Cause(ctx)
			p.signalGroup(syscall.SIGTERM)
			p.leave(grace)
		}
	}
	p.signalGroup(syscall.SIGKILL)
	close(p.release)
	timer := time.NewTimer(killWait)
	defer timer.Stop()
	select {
	case <-p.reaped:
		r.status, r.err = p.status, p.err
	case <-timer.C:
		// The kernel cannot end it yet. Its goroutine reaps it whenever it dies. This is only reached after an
		// interruption: a process that died by itself is reaped at once, and its status is worth waiting for.
		if r.interrupted == nil {
			<-p.reaped
			r.status, r.err = p.status, p.err
		}
	}
	r.output = p.pipes.finish()
	return r
}

// hasExited asks the kernel, and leaves the process to be reaped. It must not be called after release.
func (p *process) hasExited() bool {
	var info unix.Siginfo // stays empty while the process runs
	err := unix.Waitid(unix.P_PID, p.pid, &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
	return err == nil && info.Signo != 0
}

// leave gives the group the grace. That the program itself is dead does not end it: a shell dies of SIGTERM at once and
// leaves behind the command that it was waiting for, which may be the one that needs the time. When nobody holds stdout
// and stderr any more the group is taken to be gone.
func (p *process) leave(grace time.Duration) {
	timer := time.NewTimer(grace)
	defer timer.Stop()
	for _, gone := range []<-chan struct{}{p.died, p.pipes.drained} {
		select {
		case <-gone:
		case <-timer.C:
			return
		}
	}
}

// signalGroup must not be called after release.
func (p *process) signalGroup(s syscall.Signal) {
	_ = syscall.Kill(-p.pid, s) // an error means that nobody is left
}

// pipes are the three standard streams of a process.
type pipes struct {
	childIn, childOut, childErr *os.File
	in, out, err                *os.File
	outTail, errTail            tail
	drained                     chan struct{} // closed at the end of both stdout and stderr
	copied                      chan struct{} // closed when stdin is written, or refused, too
}

func openPipes() (*pipes, error) {
	p := &pipes{drained: make(chan struct{}), copied: make(chan struct{})}
	var errs [3]error
	p.childIn, p.in, errs[0] = os.Pipe()
	p.out, p.childOut, errs[1] = os.Pipe()
	p.err, p.childErr, errs[2] = os.Pipe()
	if err := errors.Join(errs[:]...); err != nil {
		p.closeChildEnds()
		p.close()
		return nil, err
	}
	return p, nil
}

// giveTo lets the program open its streams again by name, as a shell does for > /dev/stderr. A user may always use what it
// was given, so an error says nothing.
func (p *pipes) giveTo(uid int) {
	for _, f := range []*os.File{p.childIn, p.childOut, p.childErr} {
		_ = f.Chown(uid, -1)
	}
}

// The Close of a nil or closed file only returns an error.
func (p *pipes) closeChildEnds() { p.childIn.Close(); p.childOut.Close(); p.childErr.Close() }
func (p *pipes) close()          { p.in.Close(); p.out.Close(); p.err.Close() }

// copy starts the copying.
func (p *pipes) copy(stdin []byte) {
	var outputs, all sync.WaitGroup
	all.Go(func() {
		_, _ = p.in.Write(stdin) // EPIPE: the program does not want it
		p.in.Close()
	})
	outputs.Go(func() { _, _ = io.Copy(&p.outTail, p.out) })
	outputs.Go(func() { _, _ = io.Copy(&p.errTail, p.err) })
	all.Go(func() { outputs.Wait(); close(p.drained) })
	go func() { all.Wait(); close(p.copied) }()
}

// finish waits for the copying to end, ends it if that takes long, and returns the end of stderr, or of stdout if there
// was nothing on stderr.
func (p *pipes) finish() []byte {
	timer := time.NewTimer(pipeWait)
	select {
	case <-p.copied:
	case <-timer.C:
	}
	timer.Stop()
	p.close() // ends reads and writes that wait
	<-p.copied
	if len(p.errTail.kept) > 0 {
		return p.errTail.kept
	}
	return p.outTail.kept
}

// tail keeps the last keepOutput bytes written to it.
type tail struct{ kept []byte }

func (t *tail) Write(b []byte) (int, error) {
	n := len(b)
	if n >= keepOutput {
		t.kept, b = t.kept[:0], b[n-keepOutput:]
	} else if over := len(t.kept) + n - keepOutput; over > 0 {
		t.kept = t.kept[:copy(t.kept, t.kept[over:])]
	}
	t.kept = append(t.kept, b...)
	return n, nil
}
