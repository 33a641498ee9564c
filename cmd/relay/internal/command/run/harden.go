package run

import (
	"math"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// harden keeps what the service knows from the programs that it starts, and from others of the same user. It comes before
// anything secret is read. What the kernel does not know is left out.
func harden() {
	// The kernel then gives /proc/<pid>/environ and the memory to root only, and writes no core dumps.
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	// What Go opens is closed in a program by itself; what relay was started with is not. (Linux 5.11)
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
}

// forgetSettings takes relay's settings out of the environment that libraries see and may pass on.
func forgetSettings() {
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "RELAY_") {
			os.Unsetenv(name)
		}
	}
}
