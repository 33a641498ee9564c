// Package exec is the handler that runs a program for each message.
//
// # What the program gets
//
// Its arguments are the config's, and no shell reads them. The body is on stdin; a program may leave it unread. The
// environment is made from nothing, so that no secret of relay's own gets in:
//
//	PATH, LANG, TZ    as relay has them
//	RELAY_ID          the same for every attempt and replay
//	RELAY_ATTEMPT     1 for the first
//	RELAY_ROUTE, RELAY_SUBJECT, RELAY_STREAM, RELAY_CONSUMER, RELAY_SEQUENCE
//	RELAY_TIME        when the message was published, RFC 3339
//	RELAY_DEADLINE    when this attempt times out, RFC 3339
//	RELAY_REPLAY      how often the message was replayed from the dead letters
//	RELAY_HEADERS     the message headers as a JSON object of lists, {"Name":["value"]}, at most 32 KiB: headers that do
//	                  not fit are left out, in the order of their names, and bytes that are not UTF-8 become U+FFFD
//	RELAY_HEADERS_OMITTED  how many headers were left out; not set when none was
//
// and then the config's env. No variable is named by a message. HOME is not passed on, since what lies there (~/.ssh,
// ~/.config) is relay's and not the program's. The subject is as it was published, whatever bytes that is; quote it. With a
// NUL in it, it cannot be a variable, and the message is dead. Descriptors other than 0, 1 and 2 are closed.
//
// # What its exit says
//
//	0         done
//	65        the message can never be handled: dead letter (EX_DATAERR)
//	75        not now: again after 30 seconds, without spending an attempt (EX_TEMPFAIL)
//	126, 127  by the shells' convention, a command that could not be run: the route stops
//	other     or killed by a signal: a failure
//
// A program that is not there, or not executable, stops the route. When no process could be made for want of processes,
// memory or descriptors, the attempt was not started. An error shows the end of what the program wrote to stderr, or to
// stdout if that is all it wrote. Output is read to its end however long it is, and only its last bytes are kept.
//
// # How it ends
//
// Each program leads a session, and so a process group, of its own. When ctx ends the group gets SIGTERM, and after the
// grace SIGKILL; however the program exits after SIGTERM, it was interrupted, and that is a failure. When the program exits
// by itself, what is left of its group is killed too. A descendant that made a session of its own escapes that (only a
// cgroup would hold it: KillMode=control-group under systemd, or the container), but it cannot hold the handler up: pipes
// that it keeps open are left to it.
//
// The group is killed between the program's exit and its reaping, while its process id cannot have become anybody else's.
//
// If relay itself is killed the kernel kills the program (PR_SET_PDEATHSIG). The kernel means the death of the thread that
// started it, not of the process, and Go ends threads as it likes (golang/go#27505). So the goroutine that starts a program
// keeps its thread to itself until the program is reaped. That costs nothing: the thread waits for the program anyway.
package exec

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler/internal/snippet"
)

// What exit statuses mean; sysexits.h and the shells have them.
const (
	exitDead          = 65
	exitSnooze        = 75
	exitNotExecutable = 126
	exitNotFound      = 127
)

const (
	snooze   = 30 * time.Second
	maxShown = 1 << 10
)

// Handler runs a program for each message. It may be shared by all keys of a route and called from any number of
// goroutines.
type Handler struct {
	cfg  Config
	path string
	env  []string // what is the same for all messages
}

var (
	_ consumer.Handler = (*Handler)(nil)
	_ consumer.Checker = (*Handler)(nil)
	_ consumer.Outside = (*Handler)(nil)
)

// OutOfProcess says that the work is done in a process of its own.
func (*Handler) OutOfProcess() {}

// New finds the program and makes the handler. The error joins all faults of the config, or says why the program cannot
// be run. All descriptors of the process above 2 are marked close-on-exec.
func New(cfg Config) (*Handler, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
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
	// What Go opens is closed in a child by itself; what relay was started with is not. Kernels before 5.11 do not know the
	// call, and programs there inherit what relay inherited.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	h := &Handler{cfg: cfg, path: path, env: fixedEnv(cfg.Env)}
	if err := h.Check(context.Background()); err != nil {
		return nil, err
	}
	return h, nil
}

// Check looks whether the program can still be run. It does not run it. When relay is root, a program that anybody may
// replace is refused.
func (h *Handler) Check(context.Context) error {
	var errs []error
	if _, err := exec.LookPath(h.path); err != nil {
		errs = append(errs, commandError(h.path, err))
	} else if os.Geteuid() == 0 {
		errs = append(errs, replaceable(h.path))
	}
	if h.cfg.Dir != "" {
		if info, err := os.Stat(h.cfg.Dir); err != nil {
			errs = append(errs, fmt.Errorf("dir: %w", err))
		} else if !info.IsDir() {
			errs = append(errs, fmt.Errorf("dir: %s is not a directory", h.cfg.Dir))
		}
	}
	return errors.Join(errs...)
}

func commandError(name string, err error) error {
	reason := err
	if wrapped := (*exec.Error)(nil); errors.As(err, &wrapped) {
		reason = wrapped.Err // without "exec:" and the name, which is there already
	}
	return fmt.Errorf("command: cannot run %q: %w", name, reason)
}

// replaceable is an error when users other than root may write to the program, or swap it for another.
func replaceable(path string) error {
	const others = 0o002
	if info, err := os.Stat(path); err == nil && info.Mode()&others != 0 {
		return fmt.Errorf("command: %s may be written by everybody: relay does not run it as root", path)
	}
	dir := filepath.Dir(path)
	if info, err := os.Stat(dir); err == nil && info.Mode()&others != 0 && info.Mode()&fs.ModeSticky == 0 {
		return fmt.Errorf("command: %s may be written by everybody: relay does not run programs there as root", dir)
	}
	return nil
}

// Handle runs the program for m and returns the verdict of its exit. It returns within the grace and 300ms after the end
// of ctx.
func (h *Handler) Handle(ctx context.Context, m *consumer.Msg) error {
	if strings.ContainsRune(m.Subject, 0) {
		return consumer.Dead(fmt.Errorf("%s: the subject %q holds a NUL byte and cannot be passed on", h.path, m.Subject))
	}
	if ctx.Err() != nil {
		return consumer.NotStarted(fmt.Errorf("%s: %w", h.path, context.Cause(ctx)))
	}
	p, err := start(h.path, h.cfg.Command, h.cfg.Dir, h.messageEnv(m), m.Data)
	if err != nil {
		return startVerdict(fmt.Errorf("start %s: %w", h.path, err))
	}
	return h.verdict(p.wait(ctx, h.cfg.Grace))
}

// startVerdict sorts the errors of starting a program by whether waiting helps.
func startVerdict(err error) error {
	for _, permanent := range []error{
		fs.ErrNotExist, fs.ErrPermission, syscall.ENOTDIR, syscall.EISDIR, syscall.ELOOP, syscall.ENAMETOOLONG, syscall.ENOEXEC,
		syscall.E2BIG, // what comes from a message is bounded far below: the config is too big
	} {
		if errors.Is(err, permanent) {
			return consumer.FailRoute(err)
		}
	}
	return consumer.NotStarted(err) // EAGAIN, ENOMEM, EMFILE, ETXTBSY: the machine's state, not the message's doing
}

func (h *Handler) verdict(r result) error {
	fail := func(format string, args ...any) error {
		text := ""
		if len(r.output) > 0 {
			text = ": " + snippet.Tail(r.output, maxShown)
		}
		return fmt.Errorf("%s: %w%s", h.path, fmt.Errorf(format, args...), text)
	}
	switch {
	case r.interrupted != nil:
		return fail("stopped: %w", r.interrupted)
	case r.err != nil:
		return fail("wait: %w", r.err)
	case r.status.Signaled():
		return fail("killed by signal %d (%v)", int(r.status.Signal()), r.status.Signal())
	}
	switch code := r.status.ExitStatus(); code {
	case 0:
		return nil
	case exitDead:
		return consumer.Dead(fail("exit status %d", code))
	case exitSnooze:
		return consumer.Snooze(snooze)
	case exitNotExecutable, exitNotFound:
		return consumer.FailRoute(fail("exit status %d: a command could not be run", code))
	default:
		return fail("exit status %d", code)
	}
}
