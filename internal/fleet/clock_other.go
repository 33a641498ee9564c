//go:build !linux

package fleet

import "time"

// sinceBoot stands still while the machine is suspended: the guard of a lease does not cover that here.
func sinceBoot() time.Duration { return time.Since(started) }

var started = time.Now()
