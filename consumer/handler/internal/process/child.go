package process

import (
	"errors"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Child is a program that was started and not reaped. See the package comment for the thread that started it.
type Child struct {
	pid int
	// FD becomes readable when the program ends. It is -1 where the kernel is older than 5.2, and belongs to whoever started the program.
	FD int
}

// OnThread calls f on a thread that runs nothing else meanwhile, for [Program.Spawn].
func (pr *Program) OnThread(f func()) {
	if pr.user == nil {
		defer pr.lockThread()()
		f()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer pr.lockThread()()
		f()
	}()
	<-done
}

// lockThread keeps the thread to the calling goroutine. With a user that is for good, and the thread ends with its goroutine: the
// rights that it gives up before it starts a program do not come back.
func (pr *Program) lockThread() (unlock func()) {
	runtime.LockOSThread()
	if pr.user != nil {
		return func() {}
	}
	return runtime.UnlockOSThread
}

// Spawn starts the program with these standard streams, and with what is in env beside the fixed environment. It is called within
// [Program.OnThread], which must not end before the program has. An error means that nothing ran.
func (pr *Program) Spawn(streams [3]int, env []string) (Child, error) {
	living.begins()
	c := Child{FD: -1}
	if pr.user != nil {
		for _, fd := range streams {
			// It lets the program open its streams again by name, as a shell does for > /dev/stderr. A user may always use what
			// it was given, so an error says nothing.
			_ = unix.Fchown(fd, int(pr.user.Uid), -1)
		}
		if err := noNewPrivileges(); err != nil { // of this thread, which the process gets from it
			return c, err
		}
	}
	files := [3]uintptr{uintptr(streams[0]), uintptr(streams[1]), uintptr(streams[2])}
	var err error
	if len(pr.limits) == 0 {
		err = c.fork(pr, files[:], env, &syscall.SysProcAttr{})
	} else if err = c.fork(pr, files[:], env, stopped()); err == nil {
		if err = setLimits(c.pid, pr.limits); err != nil {
			c.closeFD()
		}
	}
	if err == nil {
		living.began(c.pid)
	}
	return c, err
}

// fork is os/exec without what it does for each process anew and no program here needs: it looks for variables that are given twice,
// and it finds out when the program has ended in a way of its own. It completes sys.
func (c *Child) fork(pr *Program, files []uintptr, env []string, sys *syscall.SysProcAttr) error {
	sys.Setsid, sys.Pdeathsig, sys.Credential, sys.PidFD = true, syscall.SIGKILL, pr.user, &c.FD
	all := make([]string, 0, len(pr.env)+len(env))
	pid, err := syscall.ForkExec(pr.Path, pr.argv, &syscall.ProcAttr{
		Dir: pr.dir, Env: append(append(all, pr.env...), env...), Files: files, Sys: sys,
	})
	if err != nil {
		return &os.PathError{Op: "fork/exec", Path: pr.Path, Err: err}
	}
	c.pid = pid
	return nil
}

// stopped has a process be traced by this thread, and so stand before its first instruction.
func stopped() *syscall.SysProcAttr { return &syscall.SysProcAttr{Ptrace: true} }

func (c *Child) closeFD() {
	if c.FD >= 0 {
		_ = unix.Close(c.FD)
		c.FD = -1
	}
}

// Pid is the id of the process, and of its group and session.
func (c *Child) Pid() int { return c.pid }

// HasExited asks the kernel, and leaves the process to be reaped.
func (c *Child) HasExited() bool {
	var info unix.Siginfo // stays empty while the process runs
	err := unix.Waitid(unix.P_PID, c.pid, &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
	return err == nil && info.Signo != 0
}

// awaitExit waits for the end, and leaves the process to be reaped.
func (c *Child) awaitExit() {
	for errors.Is(unix.Waitid(unix.P_PID, c.pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
}

// Signal sends a signal to the group of the process.
func (c *Child) Signal(s syscall.Signal) {
	_ = syscall.Kill(-c.pid, s) // an error means that nobody is left
}

// End kills what is left of the group, and is followed by Await.
func (c *Child) End() {
	c.Signal(syscall.SIGKILL)
	living.ended(c.pid)
}

// Await reaps the program, and waits for its end if need be. The id of the process may be anybody's then: no other method may be called.
func (c *Child) Await() (status syscall.WaitStatus, err error) {
	for {
		if _, err = syscall.Wait4(c.pid, &status, 0, nil); !errors.Is(err, syscall.EINTR) {
			return status, os.NewSyscallError("wait4", err)
		}
	}
}
