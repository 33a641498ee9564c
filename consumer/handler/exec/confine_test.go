package exec

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/relaymq/relay/consumer/handler/internal/handlertest"
)

// asRoot runs what only root can try; where the tests do not run as root, the same config must be refused.
func asRoot(t *testing.T, cfg Config, try func(*Handler)) {
	t.Helper()
	h, err := New(cfg)
	if os.Geteuid() != 0 {
		if err == nil || !strings.HasPrefix(err.Error(), "user: cannot start ") {
			t.Errorf("not root, and %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	try(h)
}

func shell(script string) []string { return []string{"/bin/sh", "-c", script} }

func TestHandle_user(t *testing.T) {
	const who = `id -u; id -g; id -G; echo "$HOME $USER $LOGNAME" > /dev/stderr; exit 1`
	for user, want := range map[string]string{
		"nobody":     "65534 %s %s /nonexistent nobody nobody",
		"65534":      "65534 %s %s /nonexistent nobody nobody",
		"nobody:7":   "65534 7 7 /nonexistent nobody nobody",
		"54321:1234": "54321 1234 1234",
	} {
		// Both streams into one, to see them together, and opened by name as scripts do.
		asRoot(t, Config{Command: shell("{ " + who + "; } 2>&1"), User: user}, func(h *Handler) {
			want := want
			if strings.Contains(want, "%s") {
				gid := nobodysGroup(t)
				want = fmt.Sprintf(want, gid, gid)
			}
			handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.Retry, "/bin/sh: exit status 1: "+want)
		})
	}
}

// Who was made nobody must not become root by a program with the set-user-id bit; and threads that started one such program start
// no others.
func TestHandle_userGainsNoRights(t *testing.T) {
	const rights = "grep NoNewPrivs /proc/self/status; exit 1"
	asRoot(t, Config{Command: shell(rights), User: "54321:54321"}, func(h *Handler) {
		handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.Retry, "NoNewPrivs: 1")
		others := newHandler(t, Config{Command: shell(rights)})
		for range 20 {
			handlertest.Want(t, others.Handle(t.Context(), message()), handlertest.Retry, "NoNewPrivs: 0")
		}
		program, err := exec.LookPath("id")
		if err != nil {
			t.Fatal(err)
		}
		id, err := os.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		bait := filepath.Join(dir, "id")
		if err := os.WriteFile(bait, id, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{dir, filepath.Dir(dir)} {
			if err := os.Chmod(path, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(bait, 0o755|os.ModeSetuid); err != nil {
			t.Fatal(err)
		}
		h, err = New(Config{Command: shell(bait + " -u; exit 1"), User: "54321:54321"})
		if err != nil {
			t.Fatal(err)
		}
		handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.Retry, "exit status 1: 54321")
	})
}

func TestHandle_limits(t *testing.T) {
	for name, tc := range map[string]struct {
		limits Limits
		script string
		text   string
	}{
		"are set before the program begins": {
			Limits{Memory: 64 << 20, CPU: 1500 * time.Millisecond, Files: 32},
			`ulimit -v; ulimit -t; ulimit -n; exit 1`, "exit status 1: 65536 2 32",
		},
		"processor time": {Limits{CPU: time.Second}, `while :; do :; done`, "killed by signal 24"},
		"files":          {Limits{Files: 4}, `exec 3</dev/null; exec 4</dev/null; echo no >&2; exit 3`, "exit status"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHandler(t, Config{Command: shell(tc.script), Limits: tc.limits})
			err := h.Handle(t.Context(), message())
			if handlertest.Want(t, err, handlertest.Retry, tc.text) && strings.Contains(err.Error(), "exit status 3") {
				t.Errorf("not bounded: %v", err)
			}
		})
	}
	t.Run("are not relay's own", func(t *testing.T) {
		var before, after unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Fatal(err)
		}
		h := newHandler(t, Config{Command: shell("exit 0"), Limits: Limits{Files: 16}})
		for range 20 {
			handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.Ack)
		}
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &after); err != nil || before != after {
			t.Errorf("%v became %v, %v", before, after, err)
		}
	})
}

func TestHandle_userAndLimits(t *testing.T) {
	cfg := Config{Command: shell("ulimit -n; id -u; (sleep 0 & sleep 0 & sleep 0 & wait); exit 1"), User: "54321:54321", Limits: Limits{Files: 20, Processes: 1}}
	if os.Geteuid() == 0 && !mayLimitOthers(t) {
		if _, err := New(cfg); err == nil || !strings.HasSuffix(err.Error(), "limits.processes: operation not permitted (to limit the processes of another user, relay needs the capability CAP_SYS_RESOURCE)") {
			t.Errorf("%v", err)
		}
		return
	}
	asRoot(t, cfg, func(h *Handler) {
		handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.Retry, "exit status", "fork")
	})
}

func nobodysGroup(t *testing.T) string {
	t.Helper()
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	return nobody.Gid
}

func mayLimitOthers(t *testing.T) bool {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
	return data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// Check must not let the program do anything.
func TestCheck_theProgramDoesNotRun(t *testing.T) {
	dir := t.TempDir()
	h := newHandler(t, Config{Command: shell("echo ran > ran"), Dir: dir, Limits: Limits{Files: 16}})
	for range 10 {
		if err := h.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "ran")); !os.IsNotExist(err) {
		t.Errorf("the program ran: %v", err)
	}
	handlertest.Want(t, h.Handle(t.Context(), message()), handlertest.Ack)
	if _, err := os.Stat(filepath.Join(dir, "ran")); err != nil {
		t.Errorf("the program did not run: %v", err)
	}
}
