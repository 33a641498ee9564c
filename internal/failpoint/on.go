//go:build chaos

package failpoint

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

var (
	step, nth = parse(os.Getenv("CHAOS_KILL_AT"))
	count     atomic.Int64
)

func parse(s string) (string, int64) {
	step, n, _ := strings.Cut(s, ":")
	nth, _ := strconv.ParseInt(n, 10, 64)
	return step, nth
}

// At marks a step.
func At(name string) {
	if name != step || count.Add(1) != nth {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // not one step more
}
