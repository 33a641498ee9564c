package run

import (
	"os"
	"runtime"
)

// headroom is how much more garbage may gather before it is collected. With a heap of 10 MiB the collector would run
// several times a second and take a fifth of the CPU time. Memory that is never touched has the collector wait longer
// without being resident; a higher GOGC would multiply a full stash, too.
const headroom = 32 << 20

// keepHeadroom sets it up, unless whoever runs relay has tuned the collector. The returned function ends it.
func keepHeadroom() (release func()) {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return func() {}
	}
	untouched := make([]byte, headroom)
	return func() { runtime.KeepAlive(untouched) }
}
