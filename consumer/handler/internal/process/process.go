package process

import (
	"errors"
	"os"
	"syscall"
	"time"
)

// Process is a program that runs for long. A goroutine of its own starts it, waits for it to die, and reaps it when it is told to; all
// signals must be sent before that.
type Process struct {
	// In is for what the program reads, Out and Err have what it writes. They belong to whoever started it.
	In, Out, Err *os.File

	child   Child
	died    chan struct{} // closed when it is a zombie
	release chan struct{} // closed when it may be reaped
	reaped  chan struct{} // closed when status and err are there
	status  syscall.WaitStatus
	err     error
}

// Start runs the program with what is in env beside the fixed environment. An error means that nothing ran.
func (pr *Program) Start(env ...string) (*Process, error) {
	p := &Process{died: make(chan struct{}), release: make(chan struct{}), reaped: make(chan struct{})}
	theirs, err := p.openPipes()
	if err != nil {
		return nil, err
	}
	started := make(chan error)
	go p.run(pr, theirs, env, started)
	err = <-started
	for _, f := range theirs {
		f.Close()
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// openPipes opens the three standard streams and returns the program's ends.
func (p *Process) openPipes() (theirs [3]*os.File, err error) {
	var errs [3]error
	theirs[0], p.In, errs[0] = os.Pipe()
	p.Out, theirs[1], errs[1] = os.Pipe()
	p.Err, theirs[2], errs[2] = os.Pipe()
	if err := errors.Join(errs[:]...); err != nil {
		for _, f := range theirs { // the Close of a nil file only returns an error
			f.Close()
		}
		p.Close()
		return theirs, err
	}
	return theirs, nil
}

// Close closes the three streams, which ends reads and writes that wait.
func (p *Process) Close() { p.In.Close(); p.Out.Close(); p.Err.Close() }

func (p *Process) run(pr *Program, theirs [3]*os.File, env []string, started chan<- error) {
	defer pr.lockThread()()
	var err error
	p.child, err = pr.Spawn([3]int{int(theirs[0].Fd()), int(theirs[1].Fd()), int(theirs[2].Fd())}, env) // Fd makes them wait, as programs expect
	if err != nil {
		started <- err
		return
	}
	p.child.closeFD()
	started <- nil
	p.child.awaitExit()
	close(p.died)
	<-p.release
	p.status, p.err = p.child.Await()
	close(p.reaped)
}

// Pid is the id of the process, and of its group and session.
func (p *Process) Pid() int { return p.child.Pid() }

// Died is closed when the program has ended. It is not reaped then, and its group can still be killed.
func (p *Process) Died() <-chan struct{} { return p.died }

// HasExited asks the kernel, and leaves the process to be reaped. It must not be called after Reap.
func (p *Process) HasExited() bool { return p.child.HasExited() }

// Signal sends a signal to the group of the process. It must not be called after Reap.
func (p *Process) Signal(s syscall.Signal) { p.child.Signal(s) }

// Reap kills what is left of the group, and reaps the program. It waits for at most KillWait, unless the program died by itself,
// as died says: then its status is worth waiting for. It is called once.
func (p *Process) Reap(died Death) (status syscall.WaitStatus, err error) {
	p.child.End()
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
