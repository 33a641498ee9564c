package chaos

import (
	"fmt"
	"syscall"
)

// killStray ends a process that strays found, which is one of the run's own by its command line.
func killStray(line string) {
	var pid int
	if _, err := fmt.Sscan(line, &pid); err == nil && pid > 1 {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}
