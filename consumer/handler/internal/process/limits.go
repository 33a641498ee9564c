package process

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/relaymq/relay/consumer"
)

// Limits bound what one program may use (setrlimit(2)). Zero is no bound but the one that relay itself runs under. What the
// program starts inherits them, each process with an allowance of its own.
type Limits struct {
	// Memory is the address space of a process (RLIMIT_AS), at least 1MiB: beyond it an allocation fails. Programs that
	// reserve much more than they use, as those in Go, Java and Node.js do, need gigabytes of it.
	Memory consumer.Bytes `koanf:"memory"`
	// CPU is processor time (RLIMIT_CPU), in whole seconds, rounded up: the process gets SIGXCPU, and a second later SIGKILL.
	CPU time.Duration `koanf:"cpu"`
	// Processes counts all processes and threads of the user that the program runs as (RLIMIT_NPROC), relay's own too if
	// it is the same user. It does not bind root.
	Processes int `koanf:"processes"`
	// Files is one more than the highest descriptor that a process may have (RLIMIT_NOFILE), at least 3.
	Files int `koanf:"files"`
}

// faults are what is wrong, each beginning with the config name of its field.
func (l Limits) faults() (errs []error) {
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if l.Memory != 0 && l.Memory < 1<<20 {
		fault("limits.memory: must be at least 1MiB, or 0 for no bound (got %v)", l.Memory)
	}
	if l.CPU < 0 {
		fault("limits.cpu: must be above 0, or 0 for no bound (got %v)", l.CPU)
	}
	if l.Processes < 0 {
		fault("limits.processes: must be above 0, or 0 for no bound (got %d)", l.Processes)
	}
	if l.Files != 0 && l.Files < 3 {
		fault("limits.files: must be at least 3, for the standard streams, or 0 for no bound (got %d)", l.Files)
	}
	return errs
}

// rlimit is one bound of a process.
type rlimit struct {
	name      string // of the config
	resource  int
	soft, max uint64
}

func (l Limits) rlimits() (list []rlimit) {
	add := func(name string, resource int, soft, most uint64) {
		if soft > 0 {
			list = append(list, rlimit{name, resource, soft, most})
		}
	}
	add("memory", unix.RLIMIT_AS, uint64(l.Memory), uint64(l.Memory))
	seconds := uint64((l.CPU + time.Second - 1) / time.Second)
	add("cpu", unix.RLIMIT_CPU, seconds, seconds+1)
	add("processes", unix.RLIMIT_NPROC, uint64(l.Processes), uint64(l.Processes))
	add("files", unix.RLIMIT_NOFILE, uint64(l.Files), uint64(l.Files))
	return list
}

// setLimits bounds a process that was started under ptrace, and lets it run: the kernel stopped it before the first
// instruction of the program. Nothing of the program has run when it returns an error. It is called on the thread that
// started the process.
func setLimits(pid int, limits []rlimit) error {
	err := limitStopped(pid, limits)
	if err == nil {
		err = unix.PtraceDetach(pid)
	}
	if err != nil {
		kill(pid)
	}
	return err
}

func limitStopped(pid int, limits []rlimit) error {
	if err := awaitStop(pid); err != nil {
		return err
	}
	for _, l := range limits {
		if err := l.set(pid); err != nil {
			return err
		}
	}
	return nil
}

func kill(pid int) {
	_ = unix.Kill(pid, unix.SIGKILL)
	c := Child{pid: pid}
	_, _ = c.Await()
}

// awaitStop waits for the stop that follows execve under ptrace.
func awaitStop(pid int) error {
	for {
		var status unix.WaitStatus
		switch _, err := unix.Wait4(pid, &status, unix.WALL, nil); {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for the start: %w", err)
		case status.Stopped():
			return nil
		default:
			return fmt.Errorf("the process ended before its program began (%v)", exitText(status))
		}
	}
}

func exitText(s unix.WaitStatus) string {
	if s.Signaled() {
		return fmt.Sprintf("signal %v", s.Signal())
	}
	return fmt.Sprintf("status %d", s.ExitStatus())
}

// set lowers a limit. One that is lower already stays: nobody may raise it but root, and nobody has asked for that.
func (l rlimit) set(pid int) error {
	var now unix.Rlimit
	err := unix.Prlimit(pid, l.resource, nil, &now)
	if err == nil {
		err = unix.Prlimit(pid, l.resource, &unix.Rlimit{Cur: min(l.soft, now.Cur), Max: min(l.max, now.Max)}, nil)
	}
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("limits.%s: %w (to limit the processes of another user, relay needs the capability CAP_SYS_RESOURCE)", l.name, err)
	case err != nil:
		return fmt.Errorf("limits.%s: %w", l.name, err)
	}
	return nil
}
