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
//	RELAY_FENCE       with instances: one, a number that grows with each instance that gets the route; else not set
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
// When a caller waits for the result, what the program wrote to stdout is the result, once it has exited with 0. The caller gets
// the first bytes of it, as many as the route allows.
//
// # How it ends
//
// When ctx ends the program's group gets SIGTERM, and after the grace SIGKILL; however the program exits after SIGTERM, it was
// interrupted, and that is a failure. One that has exited by then is judged by its exit status. Pipes that an escaped descendant
// keeps open are left to it: it cannot hold the handler up. How processes are held together, and what user and limits do, is in
// the comment of the package process.
package exec

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler/internal/process"
)

// What exit statuses mean; sysexits.h has them.
const (
	exitDead   = 65
	exitSnooze = 75
)

const snooze = 30 * time.Second

// Handler runs a program for each message. It may be shared by all keys of a route and called from any number of
// goroutines.
type Handler struct {
	cfg     Config
	program *process.Program
	starts  process.Starts
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
	program, err := process.New(cfg.process())
	if err != nil {
		return nil, err
	}
	return &Handler{cfg: cfg, program: program}, nil
}

// Check looks whether the program can still be run. It does not run it. When relay is root, a program that somebody else may
// replace is refused.
func (h *Handler) Check(ctx context.Context) error { return h.program.Check(ctx) }

// Handle runs the program for m and returns the verdict of its exit. It returns within the grace and 300ms after the end
// of ctx.
func (h *Handler) Handle(ctx context.Context, m *consumer.Msg) error {
	if strings.ContainsRune(m.Subject, 0) {
		return consumer.Dead(fmt.Errorf("%s: the subject %q holds a NUL byte and cannot be passed on", h.program.Path, m.Subject))
	}
	if ctx.Err() != nil {
		return consumer.NotStarted(fmt.Errorf("%s: %w", h.program.Path, context.Cause(ctx)))
	}
	keep := 0
	if m.WantsReply() {
		keep = m.MaxReply() + 1 // one more tells that it is cut
	}
	var r result
	var err error
	h.program.OnThread(func() {
		var p *running
		if p, err = start(h.program, messageEnv(m), m.Data, keep); err == nil {
			h.starts.Succeeded()
			r = p.wait(ctx, h.cfg.Grace)
		}
	})
	if err != nil {
		return h.starts.Failed(fmt.Errorf("start %s: %w", h.program.Path, err), time.Now())
	}
	m.Reply(r.stdout) // it counts when the verdict is an ack
	return h.verdict(r)
}

func (h *Handler) verdict(r result) error {
	fail := func(format string, args ...any) error {
		text := ""
		if !r.output.Empty() {
			text = ": " + r.output.String()
		}
		return fmt.Errorf("%s: %w%s", h.program.Path, fmt.Errorf(format, args...), text)
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
