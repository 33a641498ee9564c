// Package exec is the handler that runs a program for each message.
//
// # What the program gets
//
// Its arguments are the config's, and no shell reads them. The body is on stdin; a program may leave it unread. The
// environment is made from nothing, so that no secret of relay's own gets in:
//
//	PATH, LANG, TZ    as relay has them
//	RELAY_ID          the same for every attempt and replay
//	RELAY_ID_OLD      the form of relay 0.1; it goes with the next version
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
// ~/.config) is relay's and not the program's; with a user of its own, the program gets that user's HOME, LOGNAME and USER. The
// subject is as it was published, whatever bytes that is; quote it. With a NUL in it, it cannot be a variable, and the message
// is dead. What Go opens is closed in the program. What this process inherited itself is not, unless it marked that
// close-on-exec, as `relay run` does.
//
// # What its exit says
//
//	0         done
//	65        the message can never be handled: dead letter (EX_DATAERR)
//	75        not now: again after 30 seconds, without spending an attempt (EX_TEMPFAIL)
//	other     or killed by a signal: a failure. So are 126 and 127, which a shell gives for a command of its own that is
//	          missing: that may be one message's doing
//
// When the program could not be started at all, the attempt was not started and spends nothing. For want of processes,
// memory or descriptors that is the machine's state. When it is because the program is missing or may not be executed, and no
// start has succeeded for 10 seconds, it is the route's ([consumer.FailRoute]). An error shows the end of what the program wrote to stderr, or to
// stdout if that is all it wrote. Output is read to its end however long it is, and only its last bytes are kept.
//
// # How it ends
//
// Each program leads a session, and so a process group, of its own. When ctx ends the group gets SIGTERM, and after the
// grace SIGKILL; however the program exits after SIGTERM, it was interrupted, and that is a failure. One that has exited by
// then is judged by its exit status. When the program exits
// by itself, what is left of its group is killed too. A descendant that made a session of its own escapes that (only a
// cgroup would hold it: KillMode=control-group under systemd, or the container), but it cannot hold the handler up: pipes
// that it keeps open are left to it.
//
// The group is killed between the program's exit and its reaping, while its process id cannot have become anybody else's.
//
// If relay itself is killed the kernel kills the program (PR_SET_PDEATHSIG). The kernel means the death of the thread that
// started it, not of the process, and Go ends threads as it likes (golang/go#27505). So the goroutine that starts a program
// keeps its thread to itself until the program is reaped. That costs nothing: the thread waits for the program anyway. It is
// the program alone that the kernel kills then. What the program has started lives on when relay was killed by SIGKILL, unless
// a cgroup or a container holds it.
//
// # As whom, and within which limits
//
// With a user, the process changes to it before the program begins. Limits are set from outside on a process that ptrace(2)
// has stopped before its first instruction, so that the program never runs without them; a program with the set-user-id bit
// gets no other user then. Check tries both, with a process that ends before the program's first instruction.
//
// A relay that is root refuses a program that anybody but root, or the user that the program runs as, could replace: the file
// itself, and every directory and link on the way to it, are looked at. What an interpreter is told to read is not.
package exec

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler/internal/snippet"
)

// What exit statuses mean; sysexits.h has them.
const (
	exitDead   = 65
	exitSnooze = 75
)

const (
	snooze   = 30 * time.Second
	maxShown = 1 << 10
	// patience is how long no start may succeed before a program that cannot be started is the route's trouble. A program
	// that is being replaced is missing for less.
	patience = 10 * time.Second
)

// Handler runs a program for each message. It may be shared by all keys of a route and called from any number of
// goroutines.
type Handler struct {
	cfg     Config
	program program
	env     []string // what is the same for all messages
	// broken is since when the program could not be started, in Unix nanoseconds. 0: the last start succeeded.
	broken atomic.Int64
}

var (
	_ consumer.Handler = (*Handler)(nil)
	_ consumer.Checker = (*Handler)(nil)
	_ consumer.Outside = (*Handler)(nil)
)

// OutOfProcess says that the work is done in a process of its own.
func (*Handler) OutOfProcess() {}

// New finds the program and makes the handler. The error joins all faults of the config, or says why the program cannot
// be run.
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
	h := &Handler{cfg: cfg, program: program{path: path, argv: cfg.Command, dir: cfg.Dir, limits: cfg.Limits.rlimits()}}
	var as *account
	if cfg.User != "" {
		if as, err = parseUser(cfg.User); err != nil {
			return nil, fmt.Errorf("user: %w", err)
		}
		if !as.isSelf() {
			h.program.user = as.Credential
		}
	}
	if cfg.Limits.Processes > 0 && h.uid() == 0 {
		return nil, errors.New("limits.processes: does not bind root: set user")
	}
	h.env = fixedEnv(cfg.Env, as)
	if err := h.Check(context.Background()); err != nil {
		return nil, err
	}
	return h, nil
}

// uid is whom the program runs as.
func (h *Handler) uid() uint32 {
	if h.program.user != nil {
		return h.program.user.Uid
	}
	return uint32(os.Geteuid())
}

// Check looks whether the program can still be run. It does not run it. When relay is root, a program that somebody else may
// replace is refused.
func (h *Handler) Check(context.Context) error {
	var errs []error
	if _, err := exec.LookPath(h.program.path); err != nil {
		errs = append(errs, commandError(h.program.path, err))
	} else if os.Geteuid() == 0 {
		errs = append(errs, replaceable(h.program.path, h.uid()))
	}
	if h.cfg.Dir != "" {
		if info, err := os.Stat(h.cfg.Dir); err != nil {
			errs = append(errs, fmt.Errorf("dir: %w", err))
		} else if !info.IsDir() {
			errs = append(errs, fmt.Errorf("dir: %s is not a directory", h.cfg.Dir))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if h.program.user == nil && len(h.program.limits) == 0 {
		return nil
	}
	return h.program.tryStart()
}

func commandError(name string, err error) error {
	reason := err
	if wrapped := (*exec.Error)(nil); errors.As(err, &wrapped) {
		reason = wrapped.Err // without "exec:" and the name, which is there already
	}
	return fmt.Errorf("command: cannot run %q: %w", name, reason)
}

// Handle runs the program for m and returns the verdict of its exit. It returns within the grace and 300ms after the end
// of ctx.
func (h *Handler) Handle(ctx context.Context, m *consumer.Msg) error {
	if strings.ContainsRune(m.Subject, 0) {
		return consumer.Dead(fmt.Errorf("%s: the subject %q holds a NUL byte and cannot be passed on", h.program.path, m.Subject))
	}
	if ctx.Err() != nil {
		return consumer.NotStarted(fmt.Errorf("%s: %w", h.program.path, context.Cause(ctx)))
	}
	p, err := h.program.start(h.messageEnv(m), m.Data)
	if err != nil {
		return h.notStarted(fmt.Errorf("start %s: %w", h.program.path, err), time.Now())
	}
	if h.broken.Load() != 0 {
		h.broken.Store(0)
	}
	return h.verdict(p.wait(ctx, h.cfg.Grace))
}

// notStarted is the verdict of an attempt whose program could not be started. It is never the message's doing.
func (h *Handler) notStarted(err error, now time.Time) error {
	if !isBroken(err) {
		return consumer.NotStarted(err) // EAGAIN, ENOMEM, EMFILE, ETXTBSY: the machine's state
	}
	if h.broken.CompareAndSwap(0, now.UnixNano()) {
		return consumer.NotStarted(err)
	}
	if now.Sub(time.Unix(0, h.broken.Load())) < patience {
		return consumer.NotStarted(err)
	}
	return consumer.FailRoute(err)
}

// isBroken tells whether a start failed because of the program or of what the config says of it.
func isBroken(err error) bool {
	for _, lasting := range []error{
		fs.ErrNotExist, fs.ErrPermission, syscall.ENOTDIR, syscall.EISDIR, syscall.ELOOP, syscall.ENAMETOOLONG, syscall.ENOEXEC,
		syscall.E2BIG, // what comes from a message is bounded far below: the config is too big
	} {
		if errors.Is(err, lasting) {
			return true
		}
	}
	return false
}

func (h *Handler) verdict(r result) error {
	fail := func(format string, args ...any) error {
		text := ""
		if len(r.output) > 0 {
			text = ": " + snippet.Tail(r.output, maxShown)
		}
		return fmt.Errorf("%s: %w%s", h.program.path, fmt.Errorf(format, args...), text)
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
	default:
		return fail("exit status %d", code)
	}
}
