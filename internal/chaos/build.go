package chaos

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Binaries are what a run starts.
type Binaries struct {
	Relay  string
	Chaosd string
}

var built struct {
	once sync.Once
	dir  string
	bin  Binaries
	err  error
}

// binaries builds the programs once for the whole test process, without the race detector: they are what users run.
func binaries(t testing.TB) Binaries {
	t.Helper()
	built.once.Do(func() {
		built.dir, built.err = os.MkdirTemp("", fmt.Sprintf("relay-chaos-%d-bin-", os.Getpid()))
		if built.err != nil {
			return
		}
		built.bin = Binaries{filepath.Join(built.dir, "relay"), filepath.Join(built.dir, "chaosd")}
		for out, pkg := range map[string]string{built.bin.Relay: "./cmd/relay", built.bin.Chaosd: "./internal/chaos/chaosd"} {
			if built.err = build(out, pkg); built.err != nil {
				return
			}
		}
	})
	if built.err != nil {
		t.Fatalf("chaos: %v", built.err)
	}
	return built.bin
}

var weak struct {
	once sync.Once
	file string
	err  error
}

// weakRelay is the program built with the test-only switches: in a full run every build has them.
func weakRelay(t testing.TB) string {
	t.Helper()
	bin := binaries(t)
	if Full {
		return bin.Relay
	}
	weak.once.Do(func() {
		weak.file = filepath.Join(built.dir, "relay-chaos")
		weak.err = build(weak.file, "./cmd/relay", "-tags=chaos")
	})
	if weak.err != nil {
		t.Fatalf("chaos: %v", weak.err)
	}
	return weak.file
}

func build(out, pkg string, flags ...string) error {
	args := append([]string{"build", "-o", out}, buildTags...)
	c := exec.Command("go", append(append(args, flags...), pkg)...)
	c.Dir = filepath.Join("..", "..") // of the package's directory, where tests run
	if text, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", c, err, text)
	}
	return nil
}

// Main is the TestMain of the rows: it removes what an earlier harness left behind, and its own binaries at the end.
func Main(m *testing.M) {
	sweep()
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// sweep removes namespaces, mounts, cgroups and directories of harnesses that are gone. Directories of failed runs stay
// for whoever wants to look, until the next run of their row succeeds or somebody removes them.
func sweep() {
	gone := func(name, prefix string) bool {
		pid, err := strconv.Atoi(strings.SplitN(strings.TrimPrefix(name, prefix), "-", 2)[0])
		return err == nil && syscall.Kill(pid, 0) != nil
	}
	if list, err := os.ReadDir("/run/netns"); err == nil {
		for _, e := range list {
			if strings.HasPrefix(e.Name(), nsPrefix) && gone(e.Name(), nsPrefix) {
				_ = exec.Command("ip", "netns", "del", e.Name()).Run()
			}
		}
	}
	if mounts, err := os.ReadFile("/proc/mounts"); err == nil {
		for line := range strings.Lines(string(mounts)) {
			f := strings.Fields(line)
			if len(f) > 2 && f[0] == mountName && gone(filepath.Base(filepath.Dir(f[1])), "relay-chaos-") {
				_ = syscall.Unmount(f[1], syscall.MNT_DETACH)
			}
		}
	}
	if list, err := filepath.Glob(filepath.Join(memoryCgroup, nsPrefix+"*")); err == nil {
		for _, dir := range list {
			if gone(filepath.Base(dir), nsPrefix) {
				_ = os.Remove(dir)
			}
		}
	}
	if list, err := filepath.Glob(filepath.Join(os.TempDir(), "relay-chaos-*-bin-*")); err == nil {
		for _, dir := range list {
			if gone(filepath.Base(dir), "relay-chaos-") {
				_ = os.RemoveAll(dir)
			}
		}
	}
}
