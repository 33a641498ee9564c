package exec

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/consumer/handler/internal/handlertest"
	"github.com/relaymq/relay/consumer/handler/internal/process"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/supervise"
)

// helpers are what the test binary does when a test runs it again as a process of its own.
var helpers = map[string]func(){"parent-dies": parentDies, "no-descriptors": noDescriptors}

func TestMain(m *testing.M) {
	if helper := helpers[os.Getenv("EXEC_TEST_HELPER")]; helper != nil {
		helper()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// slack is what a loaded machine may add to a bound that a test measures.
const slack = 2 * time.Second

// sh makes a handler that runs a script with the shell.
func sh(t *testing.T, script string) *Handler {
	t.Helper()
	return newHandler(t, Config{Command: []string{"/bin/sh", "-c", script}, Dir: t.TempDir()})
}

func newHandler(t *testing.T, cfg Config) *Handler {
	t.Helper()
	h, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func message() *consumer.Msg { return handlertest.Message("orders.eu.created", []byte("body")) }

// fifo is a named pipe in a handler's directory. That a process holds it, and when the last one that did is gone, can be
// waited for without a clock.
type fifo struct{ file *os.File }

func newFIFO(t *testing.T, h *Handler, name string) *fifo {
	t.Helper()
	path := filepath.Join(h.cfg.Dir, name)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &fifo{f}
}

// line waits for a line from a process.
func (f *fifo) line(t *testing.T) string {
	t.Helper()
	var line []byte
	for b := make([]byte, 1); ; {
		_ = f.file.SetReadDeadline(time.Now().Add(10 * time.Second))
		n, err := f.file.Read(b)
		switch {
		case n == 1 && b[0] == '\n':
			return string(line)
		case n == 1:
			line = append(line, b[0])
		case errors.Is(err, io.EOF): // nobody has opened it yet
			runtime.Gosched()
		default:
			t.Errorf("no line: %v", err)
			return ""
		}
	}
}

// closed waits until no process holds the pipe any more.
func (f *fifo) closed(t *testing.T) {
	t.Helper()
	_ = f.file.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.Copy(io.Discard, f.file); err != nil {
		t.Errorf("a process still lives: %v", err)
	}
}

func TestHandle_exitStatuses(t *testing.T) {
	h := sh(t, `echo why >&2; exit "$RELAY_ATTEMPT"`)
	for code := range 256 {
		m := message()
		m.Attempt = code
		err := h.Handle(t.Context(), m)
		var ok bool
		switch code {
		case 0:
			ok = handlertest.Want(t, err, handlertest.Ack)
		case 65:
			ok = handlertest.Want(t, err, handlertest.Dead, "exit status 65", "why")
		case 75:
			ok = handlertest.Want(t, err, supervise.Verdict{Kind: supervise.Snooze, Delay: 30 * time.Second})
		default:
			ok = handlertest.Want(t, err, handlertest.Retry, fmt.Sprintf("/bin/sh: exit status %d: why", code))
		}
		if !ok {
			t.Fatalf("exit status %d", code)
		}
	}
}

func TestHandle_killedBySignal(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGPIPE, syscall.SIGUSR1} {
		err := sh(t, fmt.Sprintf("kill -%d $$", s)).Handle(t.Context(), message())
		handlertest.Want(t, err, handlertest.Retry, fmt.Sprintf("killed by signal %d", s))
	}
}

func TestHandle_bodyAndOutput(t *testing.T) {
	h := sh(t, "cat > got")
	for _, size := range []int{0, 1, 4 << 10, 1 << 20} {
		m := message()
		m.Data = bytes.Repeat([]byte{0, 0xff, '\n', 'x'}, size/4+1)[:size]
		if err := h.Handle(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(h.cfg.Dir, "got"))
		if err != nil || !bytes.Equal(got, m.Data) {
			t.Fatalf("%d bytes: got %d, %v", size, len(got), err)
		}
	}
}

// stdout is the result, from its beginning up to what the route allows, and nothing of it is lost for the error.
func TestHandle_stdoutIsTheResult(t *testing.T) {
	for script, want := range map[string]struct {
		text string
		cut  bool
	}{
		"true": {"", false}, "printf 1234; printf 5678; echo noise >&2": {"12345678", false}, "printf 123456789": {"12345678", true},
		"head -c 1000000 /dev/zero | tr '\\0' x": {"xxxxxxxx", true},
	} {
		m := message()
		r := consumer.RecordReply(m, 8)
		if err := sh(t, script).Handle(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		if got, cut := r.Data(); string(got) != want.text || cut != want.cut {
			t.Errorf("%s: got %q, cut %v", script, got, cut)
		}
	}
	m := message()
	consumer.RecordReply(m, 8)
	handlertest.Want(t, sh(t, "printf 123456789; exit 1").Handle(t.Context(), m), handlertest.Retry, "exit status 1: 123456789")
}

func TestHandle_errorsShowTheEndsOfTheOutput(t *testing.T) {
	for name, tc := range map[string]struct{ script, want string }{
		"stderr first":    {`echo out; echo err >&2; exit 1`, "exit status 1: err"},
		"stdout if alone": {`echo out; exit 1`, "exit status 1: out"},
		"nothing":         {`exit 1`, "exit status 1"},
		"sanitised":       {`printf 'a\033[31mb\000c\377d\r\n' >&2; exit 1`, "exit status 1: a [31mb c\uFFFDd"},
	} {
		t.Run(name, func(t *testing.T) {
			err := sh(t, tc.script).Handle(t.Context(), message())
			if got, want := fmt.Sprint(err), "/bin/sh: "+tc.want; got != want {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
	// Node.js writes the error first, and its stack after it: of a deep one the last KiB only was shown, without "Error: boom".
	t.Run("both ends", func(t *testing.T) {
		err := sh(t, `echo Error: boom >&2; i=0; while [ $i -lt 3000 ]; do echo line $i of a stack >&2; i=$((i+1)); done; exit 1`).Handle(t.Context(), message())
		if text := fmt.Sprint(err); !strings.HasSuffix(text, " line 2999 of a stack") ||
			!strings.HasPrefix(text, "/bin/sh: exit status 1: Error: boom line 0 of a stack") || strings.Count(text, " … ") != 1 || len(text) > retry.MaxErrorLen {
			t.Errorf("%d bytes: %s", len(text), text)
		}
	})
}

func TestHandle_muchOutput(t *testing.T) {
	h := sh(t, `head -c 104857600 /dev/zero; head -c 104857600 /dev/zero >&2; exit 3`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.Retry, "exit status 3")
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<20 {
		t.Errorf("%d bytes were allocated for 200 MiB of output", grown)
	}
}

func TestHandle_stdinUnread(t *testing.T) {
	for name, script := range map[string]string{
		"never reads":     "exit 0",
		"closes at once":  "exec <&-; exit 0",
		"reads one block": "head -c 10 > /dev/null",
	} {
		t.Run(name, func(t *testing.T) {
			m := message()
			m.Data = make([]byte, 1<<20)
			handlertest.Want(t, sh(t, script).Handle(t.Context(), m), handlertest.Ack)
		})
	}
}

func TestHandle_stdinUnreadUntilTheTimeout(t *testing.T) {
	h := sh(t, `exec 9>up; echo up >&9; while :; do sleep 1; done`)
	up := newFIFO(t, h, "up")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { up.line(t); cancel(errors.New("enough")) }()
	m := message()
	m.Data = make([]byte, 1<<20)
	handlertest.Want(t, h.Handle(ctx, m), handlertest.Retry, "stopped: enough")
	up.closed(t)
}

func TestHandle_backgroundProcessIsKilled(t *testing.T) {
	for name, script := range map[string]string{
		"holds everything":        `exec 9>up; sleep 1000 & exit 0`,
		"ignores TERM":            `exec 9>up; (trap '' TERM HUP; while :; do sleep 1; done) & exit 0`,
		"double fork, nohup, &>-": `exec 9>up; (nohup sleep 1000 <&- >&- 2>&- &) ; exit 0`,
	} {
		t.Run(name, func(t *testing.T) {
			h := sh(t, script)
			up := newFIFO(t, h, "up")
			began := time.Now()
			handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.Ack)
			if took := time.Since(began); took > slack {
				t.Errorf("took %v", took)
			}
			up.closed(t)
		})
	}
}

// A daemon in a session of its own is out of reach, but it must not hold the handler up by the pipes it inherited.
func TestHandle_escapedDaemonHoldsThePipes(t *testing.T) {
	h := sh(t, `exec 9>up; setsid sh -c 'echo $$ >&9; while :; do sleep 1; done' & read line < go; exit 7`)
	up := newFIFO(t, h, "up")
	// The program goes on once the daemon runs in its own session.
	gate := filepath.Join(h.cfg.Dir, "go")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	daemon := make(chan int, 1)
	go func() {
		pid, _ := strconv.Atoi(up.line(t))
		if err := os.WriteFile(gate, []byte("\n"), 0); err != nil {
			t.Error(err)
		}
		daemon <- pid
	}()
	began := time.Now()
	m := message()
	m.Data = make([]byte, 1<<20)
	handlertest.Want(t, h.Handle(t.Context(), m), handlertest.Retry, "exit status 7")
	if took := time.Since(began); took > slack {
		t.Errorf("took %v", took)
	}
	pid := <-daemon
	if err := syscall.Kill(-pid, 0); err != nil || pid <= 1 {
		t.Fatalf("daemon %d: %v: the test proves nothing", pid, err)
	}
	_ = syscall.Kill(-pid, syscall.SIGKILL)
	up.closed(t)
}

func TestHandle_timeout(t *testing.T) {
	const grace = 50 * time.Millisecond
	for name, tc := range map[string]struct{ script string }{
		"ignores TERM":                {`trap '' TERM; exec 9>up; echo up >&9; while :; do sleep 1; done`},
		"exits 0 on TERM":             {`trap 'exit 0' TERM; exec 9>up; echo up >&9; while :; do sleep 0.01; done`},
		"exits 65 on TERM":            {`trap 'exit 65' TERM; exec 9>up; echo up >&9; while :; do sleep 0.01; done`},
		"dies of TERM":                {`exec 9>up; sleep 1000 & cat > /dev/null; echo up >&9; wait`},
		"stopped":                     {`exec 9>up; echo up >&9; kill -STOP $$`},
		"a child ignores TERM":        {`exec 9>up; (trap '' TERM; echo up >&9; while :; do sleep 1; done); exit 0`},
		"forks without end":           {`exec 9>up; echo up >&9; while :; do (sleep 1000 & ); sleep 0.01; done`},
		"writes without end":          {`exec 9>up; echo up >&9; while :; do echo x; done`},
		"closed its output, children": {`exec 9>up >&- 2>&-; echo up >&9; (trap '' TERM; while :; do sleep 1; done) & wait`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := sh(t, tc.script)
			h.cfg.Grace = grace
			up := newFIFO(t, h, "up")
			ctx, cancel := context.WithCancelCause(t.Context())
			ended := make(chan time.Time, 1)
			go func() {
				up.line(t)
				ended <- time.Now()
				cancel(fmt.Errorf("%w of the route", context.DeadlineExceeded))
			}()
			err := h.Handle(ctx, message())
			took := time.Since(<-ended)
			handlertest.Want(t, err, handlertest.Retry, "stopped: context deadline exceeded of the route")
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v is not the cause of the context", err)
			}
			if took > grace+process.KillWait+pipeWait+slack {
				t.Errorf("returned %v after the end of ctx", took)
			}
			up.closed(t)
		})
	}
}

// Of a shell that waits for a command, the shell dies of SIGTERM at once; the command is what needs the grace.
func TestHandle_graceIsForTheWholeGroup(t *testing.T) {
	h := sh(t, `exec 9>up; sh -c 'trap "sleep 0.1; echo cleaned > done; exit 0" TERM; echo up >&9; while :; do sleep 0.01; done'; exit 0`)
	up := newFIFO(t, h, "up")
	ctx, cancel := context.WithCancel(t.Context())
	go func() { up.line(t); cancel() }()
	handlertest.Want(t, h.Handle(ctx, message()), handlertest.Retry, "context canceled")
	if _, err := os.Stat(filepath.Join(h.cfg.Dir, "done")); err != nil {
		t.Errorf("the command had no time: %v", err)
	}
}

func TestHandle_ctxEndedBefore(t *testing.T) {
	h := sh(t, "echo ran > ran")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	handlertest.Want(t, h.Handle(ctx, message()), handlertest.NotStarted, "context canceled")
	if _, err := os.Stat(filepath.Join(h.cfg.Dir, "ran")); !os.IsNotExist(err) {
		t.Error("the program ran")
	}
}

// readEnv reads what a script wrote with env -0.
func readEnv(t *testing.T, h *Handler) map[string]string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(h.cfg.Dir, "env"))
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	for entry := range strings.SplitSeq(strings.TrimSuffix(string(raw), "\x00"), "\x00") {
		name, value, _ := strings.Cut(entry, "=")
		env[name] = value
	}
	return env
}

func TestHandle_environment(t *testing.T) {
	for name, value := range map[string]string{
		"PATH": "/usr/bin:/bin", "LANG": "de_DE.UTF-8", "TZ": "Asia/Tokyo", "HOME": "/secret", "RELAY_NATS__PASSWORD": "canary",
		"LD_PRELOAD": "", "BASH_ENV": "/tmp/x", "AWS_SECRET_ACCESS_KEY": "canary",
	} {
		t.Setenv(name, value)
	}
	h := newHandler(t, Config{
		Command: shell("env -0 > env"), Dir: t.TempDir(), Env: map[string]string{"TZ": "UTC", "MINE": "a b\n\"$(id)\""},
	})
	m := message()
	m.Subject = "odd.$(touch X).`touch X`;touch X.'\".\xff\x01"
	m.Header = nats.Header{
		"LD_PRELOAD": {"/tmp/evil.so"}, "PATH": {"/evil"}, "BASH_ENV": {"() { :;}; touch X"}, "Nul": {"a\x00b"}, "Bad": {"\xff"}, "Two": {"1", "2"},
	}
	if err := h.Handle(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	got := readEnv(t, h)
	var headers map[string][]string
	if err := json.Unmarshal([]byte(got["RELAY_HEADERS"]), &headers); err != nil {
		t.Fatalf("%q: %v", got["RELAY_HEADERS"], err)
	}
	delete(got, "RELAY_HEADERS")
	delete(got, "PWD") // the shell's own, as OLDPWD, SHLVL and _ are
	delete(got, "OLDPWD")
	delete(got, "SHLVL")
	delete(got, "_")
	want := map[string]string{
		"PATH": "/usr/bin:/bin", "LANG": "de_DE.UTF-8", "TZ": "UTC", "MINE": "a b\n\"$(id)\"",
		"RELAY_ID": "ORDERS~billing~42~1", "RELAY_ATTEMPT": "3", "RELAY_ROUTE": "billing", "RELAY_SUBJECT": m.Subject,
		"RELAY_STREAM": "ORDERS", "RELAY_CONSUMER": "billing", "RELAY_SEQUENCE": "42",
		"RELAY_TIME": "2026-01-02T03:04:05.000000006Z", "RELAY_DEADLINE": "2026-01-02T03:04:35Z", "RELAY_REPLAY": "1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	wantHeaders := map[string][]string{
		"LD_PRELOAD": {"/tmp/evil.so"}, "PATH": {"/evil"}, "BASH_ENV": {"() { :;}; touch X"}, "Nul": {"a\x00b"}, "Bad": {"\uFFFD"}, "Two": {"1", "2"},
	}
	if diff := cmp.Diff(wantHeaders, headers); diff != "" {
		t.Error(diff)
	}
	if _, err := os.Stat(filepath.Join(h.cfg.Dir, "X")); !os.IsNotExist(err) {
		t.Error("something of the message was run")
	}
}

func TestEncodeHeaders_bounded(t *testing.T) {
	h := nats.Header{"A": {strings.Repeat("<", 10_000)}, "B": {strings.Repeat("x", maxHeaders)}, "C": {"small"}, strings.Repeat("D", maxHeaders): nil}
	text, omitted := encodeHeaders(h, maxHeaders)
	var got map[string][]string
	if err := json.Unmarshal([]byte(text), &got); err != nil || len(text) > maxHeaders {
		t.Fatalf("%d bytes: %v", len(text), err)
	}
	if omitted != 3 || got["C"][0] != "small" { // "<" is escaped to six bytes
		t.Errorf("%d left out of %d, got %.60s", omitted, len(h), text)
	}
	if text, omitted := encodeHeaders(nil, maxHeaders); text != "{}" || omitted != 0 {
		t.Errorf("none: %s, %d", text, omitted)
	}
	m := message()
	m.Header = h
	hd := sh(t, "env -0 > env")
	if err := hd.Handle(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if env := readEnv(t, hd); env["RELAY_HEADERS_OMITTED"] != "3" {
		t.Errorf("RELAY_HEADERS_OMITTED=%q", env["RELAY_HEADERS_OMITTED"])
	}
}

func TestHandle_nulInTheSubject(t *testing.T) {
	h := sh(t, "exit 0")
	m := message()
	m.Subject = "a.\x00.b"
	handlertest.Want(t, h.Handle(t.Context(), m), handlertest.Dead, "NUL", `a.\x00.b`)
}

func TestHandle_argumentsAreAsConfigured(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "args.sh")
	write(t, script, "#!/bin/sh\nprintf '%s\\n' \"$@\" > args\n", 0o755)
	args := []string{"$(touch X)", "`touch X`", "; touch X", "-rf", "--config=/etc/passwd", "*", "{subject}", "a  b"}
	h := newHandler(t, Config{Command: append([]string{script}, args...), Dir: dir})
	if err := h.Handle(t.Context(), message()); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "args"))
	if err != nil || string(got) != strings.Join(args, "\n")+"\n" {
		t.Errorf("%q, %v", got, err)
	}
}

// New used to mark every descriptor above 2 as close-on-exec, those that an embedding program passes on purpose too.
func TestNew_regressionLeavesDescriptorsOfTheProcessAlone(t *testing.T) {
	passedOn, err := syscall.Open(os.DevNull, syscall.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(passedOn)
	ours, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	h := sh(t, `fd=0; while [ $fd -lt 512 ]; do if [ -e /proc/$$/fd/$fd ]; then printf '%s ' $fd; fi; fd=$((fd+1)); done; exit 1`)
	if flags, err := unix.FcntlInt(uintptr(passedOn), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC != 0 {
		t.Errorf("flags %d, %v", flags, err)
	}
	got := fmt.Sprint(h.Handle(t.Context(), message())) + " "
	if !strings.HasPrefix(got, "/bin/sh: exit status 1: 0 1 2 ") || strings.Contains(got, fmt.Sprintf(" %d ", ours.Fd())) {
		t.Errorf("%s, and %d is what Go opened", got, ours.Fd())
	}
}

func TestHandle_ownSession(t *testing.T) {
	h := sh(t, `read -r _ _ _ _ pgrp session rest < /proc/$$/stat; echo "$$ $pgrp $session"; exit 1`)
	err := h.Handle(t.Context(), message())
	ids := strings.Fields(fmt.Sprint(err))
	ids = ids[len(ids)-3:]
	if ids[0] != ids[1] || ids[0] != ids[2] {
		t.Errorf("pid, group and session are %v", ids)
	}
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // past the umask
		t.Fatal(err)
	}
}

func TestNew_commandsThatCannotBeRun(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	write(t, plain, "text", 0o644)
	open := filepath.Join(dir, "open")
	write(t, open, "#!/bin/sh\n", 0o777)
	wide := filepath.Join(dir, "wide")
	if err := os.Mkdir(wide, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(wide, 0o777); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(wide, "program"), "#!/bin/sh\n", 0o755)
	for name, tc := range map[string]struct {
		cfg  Config
		want string
		root bool // only refused for root
	}{
		"not there":          {Config{Command: []string{filepath.Join(dir, "missing")}}, `command: cannot run "` + dir + `/missing": `, false},
		"not in PATH":        {Config{Command: []string{"relay-no-such-program"}}, `command: cannot run "relay-no-such-program": executable file not found in $PATH`, false},
		"a directory":        {Config{Command: []string{dir}}, "command: cannot run ", false},
		"not executable":     {Config{Command: []string{plain}}, `command: cannot run "` + plain + `": permission denied`, false},
		"dir missing":        {Config{Command: []string{"/bin/sh"}, Dir: dir + "/missing"}, "dir: ", false},
		"dir is a file":      {Config{Command: []string{"/bin/sh"}, Dir: plain}, "dir: " + plain + " is not a directory", false},
		"anybody may write":  {Config{Command: []string{open}}, "command: " + open + " may be written by everybody", true},
		"anybody may change": {Config{Command: []string{wide + "/program"}}, "command: " + wide + " may be written by everybody", true},
		"no such user":       {Config{Command: []string{"/bin/sh"}, User: "relay-no-such-user"}, `user: there is no user "relay-no-such-user"`, false},
		"no such group":      {Config{Command: []string{"/bin/sh"}, User: "0:relay-no-such-group"}, `user: there is no group "relay-no-such-group"`, false},
		"a stranger's uid":   {Config{Command: []string{"/bin/sh"}, User: "4000000000"}, `user: the system knows no user with uid 4000000000: write uid:gid`, false},
		"nobody's uid":       {Config{Command: []string{"/bin/sh"}, User: "4294967295:0"}, `user: there is no user "4294967295"`, false},
		"root's processes":   {Config{Command: []string{"/bin/sh"}, Limits: Limits{Processes: 9}}, "limits.processes: has no effect on root: set user", true},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(tc.cfg)
			if tc.root && os.Geteuid() != 0 {
				if err != nil {
					t.Errorf("%v, though relay is not root", err)
				}
				return
			}
			if err == nil || !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

func TestNew_resolvesOnce(t *testing.T) {
	bin := t.TempDir()
	write(t, filepath.Join(bin, "relay-test-program"), "#!/bin/sh\nexit 9\n", 0o755)
	t.Setenv("PATH", bin+":/usr/bin:/bin")
	byName := newHandler(t, Config{Command: []string{"relay-test-program"}})
	t.Chdir(bin)
	byPath := newHandler(t, Config{Command: []string{"./relay-test-program"}, Dir: t.TempDir()})
	t.Chdir("/")
	t.Setenv("PATH", "/usr/bin:/bin")
	for _, h := range []*Handler{byName, byPath} {
		handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.Retry, filepath.Join(bin, "relay-test-program")+": exit status 9")
	}
}

func TestHandle_programGoneOrBroken(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	for name, tc := range map[string]struct {
		change func()
		check  bool
	}{
		"removed":             {func() { os.Remove(program) }, false},
		"not executable":      {func() { os.Chmod(program, 0o644) }, false},
		"interpreter missing": {func() { write(t, program, "#!/no/such/shell\n", 0o755) }, true},
		"not a program":       {func() { write(t, program, "\x00\x01\x02", 0o755) }, true},
		"a directory":         {func() { os.Remove(program); os.Mkdir(program, 0o755) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			os.RemoveAll(program)
			write(t, program, "#!/bin/sh\nexit 0\n", 0o755)
			h := newHandler(t, Config{Command: []string{program}})
			handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.Ack)
			tc.change()
			for range 3 {
				handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.NotStarted, "start "+program)
			}
			h.starts.Succeeded()
			_ = h.starts.Failed(fmt.Errorf("start: %w", syscall.ENOENT), time.Now().Add(-process.Patience)) // as if the first had been that long ago
			handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.FailRoute, "start "+program)
			if err := h.Check(t.Context()); (err == nil) != tc.check {
				t.Errorf("Check: %v", err)
			}
			os.RemoveAll(program)
			write(t, program, "#!/bin/sh\nexit 0\n", 0o755)
			handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.Ack)
			os.Remove(program)
			handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.NotStarted) // it has begun anew
		})
	}
	t.Run("being written", func(t *testing.T) {
		os.RemoveAll(program)
		write(t, program, "#!/bin/sh\nexit 0\n", 0o755)
		h := newHandler(t, Config{Command: []string{program}})
		f, err := os.OpenFile(program, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.NotStarted, "text file busy")
	})
}

// A shell exits with 127 for a command that one message makes it look for, and with 126 for one that may not be executed. One
// such message stopped its route for good.
func TestHandle_regressionOneMessageStopsTheRoute(t *testing.T) {
	h := newHandler(t, Config{Command: []string{"/bin/sh", "-c", `"$RELAY_SUBJECT"`}})
	m := message()
	for subject, want := range map[string]string{"no-such-command": "exit status 127", "/etc/passwd": "exit status 126"} {
		m.Subject = subject
		// Even when no start has succeeded for long.
		_ = h.starts.Failed(fmt.Errorf("start: %w", syscall.ENOENT), time.Now().Add(-time.Hour))
		handlertest.Want(t, h.Handle(t.Context(), m), handlertest.Retry, want)
	}
}

// Of a program that had exited at the deadline, chance decided whether it was judged by its status or counted as stopped.
func TestWait_regressionExitZeroAtTheDeadline(t *testing.T) {
	h := sh(t, "exit 0")
	for range 20 {
		h.program.OnThread(func() {
			p, err := start(h.program, nil, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for !p.HasExited() {
				time.Sleep(time.Millisecond)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if r := p.wait(ctx, time.Second); r.interrupted != nil || r.err != nil || r.status != 0 {
				t.Fatalf("%+v", r)
			}
		})
	}
}

// Kernels before 5.2 have no descriptor of a process.
func TestWait_withoutDescriptorOfTheProcess(t *testing.T) {
	h := sh(t, `[ "$RELAY_ATTEMPT" = 1 ] && exit 7; exec >&- 2>&-; trap 'sleep 0.1; exit 0' TERM; exec 9>up; echo up >&9; while :; do sleep 0.01; done`)
	up := newFIFO(t, h, "up")
	for attempt := range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		if attempt == 0 {
			go func() { up.line(t); cancel() }()
		}
		var r result
		h.program.OnThread(func() {
			p, err := start(h.program, []string{"RELAY_ATTEMPT=" + strconv.Itoa(attempt)}, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			p.close(death)
			p.FD = -1
			r = p.wait(ctx, 10*time.Second)
		})
		cancel()
		if attempt == 1 && (r.interrupted != nil || r.status.ExitStatus() != 7) || attempt == 0 && r.interrupted == nil || r.err != nil {
			t.Errorf("%d: %+v", attempt, r)
		}
	}
	up.closed(t)
}

// What does not fit into the pipe is written while the program runs, beside what it writes itself.
func TestHandle_bodyBesideOutput(t *testing.T) {
	m := message()
	m.Data = bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	r := consumer.RecordReply(m, len(m.Data))
	if err := sh(t, "cat; head -c 300000 /dev/zero >&2").Handle(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if got, cut := r.Data(); !bytes.Equal(got, m.Data) || cut {
		t.Errorf("%d bytes came back of %d, cut %v", len(got), len(m.Data), cut)
	}
}

// os/exec takes about 100 allocations.
func TestHandle_allocations(t *testing.T) {
	h := newHandler(t, Config{Command: []string{"true"}})
	m := message()
	if got := testing.AllocsPerRun(50, func() { _ = h.Handle(t.Context(), m) }); got > 40 {
		t.Errorf("%.0f allocations for a program", got)
	}
}

// PR_SET_PDEATHSIG follows the thread that started the program. Go ends a thread when a goroutine that is locked to it
// returns, and before the starting goroutine kept its thread such a return killed the program under way.
func TestHandle_threadsThatEnd(t *testing.T) {
	h := sh(t, "exit 0")
	var programs, churn sync.WaitGroup
	done := make(chan struct{})
	for range 4 {
		churn.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
				}()
				<-ended
			}
		})
	}
	for range 8 {
		programs.Go(func() {
			for range 25 {
				handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.Ack)
			}
		})
	}
	programs.Wait()
	close(done)
	churn.Wait()
}

// helper runs the test binary as a process of its own and returns what it printed.
func helper(t *testing.T, name, dir string) (string, error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h := newHandler(t, Config{Command: []string{self}, Dir: dir, Env: map[string]string{"EXEC_TEST_HELPER": name}})
	var r result
	h.program.OnThread(func() {
		p, err := start(h.program, nil, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		r = p.wait(t.Context(), time.Second)
	})
	if r.status.Signaled() {
		return r.output.String(), fmt.Errorf("killed by %v", r.status.Signal())
	}
	return r.output.String(), r.err
}

func parentDies() {
	h, err := New(Config{Command: []string{"/bin/sh", "-c", `exec 9>up; sleep 1000 & cat > /dev/null; echo up >&9; wait`}})
	if err != nil {
		panic(err)
	}
	go func() {
		f, err := os.Open("ready")
		if err != nil {
			panic(err)
		}
		_, _ = io.ReadFull(f, make([]byte, 1))
		for !reaperKnows() { // on a busy machine the program is often faster than the call that started it
			time.Sleep(time.Millisecond)
		}
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}()
	_ = h.Handle(context.Background(), &consumer.Msg{})
}

// reaperKnows tells whether the memory that the reaper of this process reads has a group.
func reaperKnows() bool {
	list, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		panic(err)
	}
	for _, fd := range list {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "/memfd:relay-reaper") {
			groups, err := os.ReadFile(fd)
			if err != nil {
				panic(err)
			}
			return len(bytes.Trim(groups, "\x00")) > 0
		}
	}
	return false
}

// The program is killed by the kernel, and what the program has started by the reaper.
func TestHandle_relayIsKilled(t *testing.T) {
	dir := t.TempDir()
	up := newFIFO(t, &Handler{cfg: Config{Dir: dir}}, "up")
	ready := filepath.Join(dir, "ready")
	if err := syscall.Mkfifo(ready, 0o600); err != nil {
		t.Fatal(err)
	}
	go func() {
		up.line(t)
		if err := os.WriteFile(ready, []byte("x"), 0); err != nil {
			t.Error(err)
		}
	}()
	if out, err := helper(t, "parent-dies", dir); err == nil || err.Error() != "killed by killed" {
		t.Fatalf("%v: %s", err, out)
	}
	up.closed(t)
}

func noDescriptors() {
	h, err := New(Config{Command: []string{"/bin/sh", "-c", "exit 0"}})
	if err != nil {
		panic(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 32, Max: 32}); err != nil {
		panic(err)
	}
	var held []*os.File
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			break
		}
		held = append(held, f)
	}
	// With every number of free descriptors, from none to enough, the handler fails cleanly or works.
	for {
		v := handlertest.Verdict(h.Handle(context.Background(), &consumer.Msg{}))
		fmt.Print(v.Kind, " ", v.NotStarted, " ", v.FailRoute, "\n")
		if v.Kind == supervise.Ack || len(held) == 0 {
			return
		}
		held[0].Close()
		held = held[1:]
	}
}

func TestHandle_noDescriptors(t *testing.T) {
	out, err := helper(t, "no-descriptors", t.TempDir())
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	failed, ok := strings.CutSuffix(out, "ack false false")
	if n := strings.Count(failed, "retry true false "); !ok || n < 6 || failed != strings.Repeat("retry true false ", n) {
		t.Errorf("verdicts: %q", out)
	}
}

func TestConfig_faults(t *testing.T) {
	for want, cfg := range map[string]Config{
		"command: is required":            {},
		"command: is required,":           {Command: []string{""}},
		"command[1]: holds a NUL":         {Command: []string{"x", "\x00"}},
		"dir: holds a NUL":                {Command: []string{"x"}, Dir: "\x00"},
		`env: "A=B" is not a variable`:    {Command: []string{"x"}, Env: map[string]string{"A=B": ""}},
		"env: RELAY_ID: names with":       {Command: []string{"x"}, Env: map[string]string{"RELAY_ID": ""}},
		"env: the value of A holds a NUL": {Command: []string{"x"}, Env: map[string]string{"A": "secret\x00"}},
		"grace: must be above 0":          {Command: []string{"x"}, Grace: -1},
		"grace: must be above 0 and":      {Command: []string{"x"}, Grace: time.Second},
		"limits.memory: must be at least": {Command: []string{"x"}, Limits: Limits{Memory: 1}},
		"limits.cpu: must be above 0":     {Command: []string{"x"}, Limits: Limits{CPU: -1}},
		"limits.processes: must be above": {Command: []string{"x"}, Limits: Limits{Processes: -1}},
		"limits.files: must be at least":  {Command: []string{"x"}, Limits: Limits{Files: 2}},
	} {
		if err := cfg.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	all := Config{Env: map[string]string{"": "", "RELAY_X": ""}, Grace: -1}
	if err := all.Validate(); strings.Count(fmt.Sprint(err), "\n") != 3 {
		t.Errorf("not all faults at once: %v", err)
	}
	if got := (Config{}).WithDefaults().Grace; got != 500*time.Millisecond {
		t.Errorf("grace %v", got)
	}
}
