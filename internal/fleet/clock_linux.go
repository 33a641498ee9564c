package fleet

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// sinceBoot counts while the machine is suspended, too, as no clock of Go does. The kernel is asked once a millisecond at most: leases are looked at before each
// message, and each question is a system call.
func sinceBoot() time.Duration {
	running := time.Since(started)
	if r := lastReading.Load(); r != nil && running >= r.running && running-r.running < time.Millisecond {
		return r.boot + running - r.running
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return running
	}
	r := &reading{running, time.Duration(ts.Nano())}
	lastReading.Store(r)
	return r.boot
}

// reading is what two clocks said at the same time.
type reading struct{ running, boot time.Duration }

var (
	started     = time.Now()
	lastReading atomic.Pointer[reading]
)
