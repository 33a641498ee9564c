// Package process runs programs for the handlers that need one: as whom, within which limits, with what environment, and so
// that they end.
//
// # How they end
//
// Each program leads a session, and so a process group, of its own, which gets the signals. When the program exits by itself, what
// is left of its group is killed too. A descendant that made a session of its own escapes that (only a cgroup would hold it:
// KillMode=control-group under systemd, or the container).
//
// The group is killed between the program's exit and its reaping, while its process id cannot have become anybody else's.
//
// If relay itself is killed the kernel kills the program (PR_SET_PDEATHSIG). The kernel means the death of the thread that
// started it, not of the process, and Go ends threads as it likes (golang/go#27505). So the goroutine that starts a program
// keeps its thread to itself until the program is reaped. That costs nothing: the thread waits for the program anyway. It is
// the program alone that the kernel kills then. What is left of its group is killed by a reaper: one more process, beside relay,
// that reads from a pipe that ends with relay, and then finds the groups in memory that both share.
//
// # As whom, and within which limits
//
// With a user, the process changes to it before the program begins, and neither it nor what it starts can get other rights
// (no_new_privs): sudo and programs with the set-user-id bit do not work there. Limits are set from outside on a process that ptrace(2)
// has stopped before its first instruction, so that the program never runs without them; a program with the set-user-id bit
// gets no other user then. Check tries both, with a process that ends before the program's first instruction.
//
// A relay that is root refuses a program that anybody but root, or the user that the program runs as, could replace: the file
// itself, and every directory and link on the way to it, are looked at. What an interpreter is told to read is not.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
)

// Program is what is the same for all processes of a handler.
type Program struct {
	Path   string // absolute
	argv   []string
	dir    string
	env    []string
	user   *syscall.Credential // nil: relay's own
	limits []rlimit
}

// New finds the program. The error joins all faults of the config, or says why the program cannot be run.
func New(cfg Config) (*Program, error) {
	if err := errors.Join(cfg.Faults()...); err != nil {
		return nil, err
	}
	path, err := exec.LookPath(cfg.Command[0])
	if err != nil {
		return nil, commandError(cfg.Command[0], err)
	}
	// Fixed now: neither a change of relay's directory nor the program's own Dir may make it another program later.
	if path, err = filepath.Abs(path); err != nil {
		return nil, commandError(cfg.Command[0], err)
	}
	pr := &Program{Path: path, argv: cfg.Command, dir: cfg.Dir, limits: cfg.Limits.rlimits()}
	var as *account
	if cfg.User != "" {
		if as, err = parseUser(cfg.User); err != nil {
			return nil, fmt.Errorf("user: %w", err)
		}
		if !as.isSelf() {
			pr.user = as.Credential
		}
	}
	if cfg.Limits.Processes > 0 && pr.uid() == 0 {
		return nil, errors.New("limits.processes: has no effect on root: set user")
	}
	pr.env = fixedEnv(cfg.Env, as)
	if err := pr.Check(context.Background()); err != nil {
		return nil, err
	}
	return pr, nil
}

// uid is whom the program runs as.
func (pr *Program) uid() uint32 {
	if pr.user != nil {
		return pr.user.Uid
	}
	return uint32(os.Geteuid())
}

// Check looks whether the program can still be run. It does not run it. When relay is root, a program that somebody else may
// replace is refused.
func (pr *Program) Check(context.Context) error {
	var errs []error
	if _, err := exec.LookPath(pr.Path); err != nil {
		errs = append(errs, commandError(pr.Path, err))
	} else if os.Geteuid() == 0 {
		errs = append(errs, replaceable(pr.Path, pr.uid()))
	}
	if pr.dir != "" {
		if info, err := os.Stat(pr.dir); err != nil {
			errs = append(errs, fmt.Errorf("dir: %w", err))
		} else if !info.IsDir() {
			errs = append(errs, fmt.Errorf("dir: %s is not a directory", pr.dir))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if pr.user == nil && len(pr.limits) == 0 {
		return nil
	}
	return pr.tryStart()
}

func commandError(name string, err error) error {
	reason := err
	if wrapped := (*exec.Error)(nil); errors.As(err, &wrapped) {
		reason = wrapped.Err // without "exec:" and the name, which is there already
	}
	return fmt.Errorf("command: cannot run %q: %w", name, reason)
}

// tryStart makes a process of the program, and ends it before its first instruction: for what only shows then, the rights
// that user and limits need.
func (pr *Program) tryStart() error {
	tried := make(chan error)
	go func() {
		runtime.LockOSThread() // a process can be traced from one thread only
		defer runtime.UnlockOSThread()
		c := Child{FD: -1}
		if err := c.fork(pr, nil, nil, stopped()); err != nil {
			tried <- pr.startError(err)
			return
		}
		err := limitStopped(c.pid, pr.limits)
		kill(c.pid)
		c.closeFD()
		tried <- err
	}()
	return <-tried
}

func (pr *Program) startError(err error) error {
	switch {
	case errors.Is(err, syscall.EPERM) && pr.user != nil:
		return fmt.Errorf("user: cannot start %s as uid %d, gid %d: %w (only root may run programs as another user)", pr.Path, pr.user.Uid, pr.user.Gid, err)
	case errors.Is(err, syscall.EPERM) && len(pr.limits) > 0:
		return fmt.Errorf("limits: cannot start %s under them: %w (relay sets them by ptrace(2), which this system forbids)", pr.Path, err)
	}
	return commandError(pr.Path, err)
}
