package fleet

import (
	"time"

	"golang.org/x/sys/unix"
)

// sinceBoot goes on while the machine is suspended, which Go's monotonic clock does not: a virtual machine that wakes up must not
// believe in the lease that it had when it fell asleep.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return time.Since(started)
	}
	return time.Duration(ts.Nano())
}

var started = time.Now()
