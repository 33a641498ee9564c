package process

import (
	"errors"
	"io/fs"
	"os/exec"
	"strings"

	"github.com/relaymq/relay/consumer/handler"
)

// Lint looks for the program as [New] will. It often runs on another machine, so that its absence is no fault.
func Lint(command []string, dir string, r handler.Report) {
	if len(command) == 0 {
		return
	}
	name := command[0]
	if dir != "" && strings.Contains(name, "/") && !strings.HasPrefix(name, "/") {
		return // relative to a directory that may be elsewhere
	}
	if _, err := exec.LookPath(name); err != nil {
		if e := (*exec.Error)(nil); errors.As(err, &e) {
			err = e.Err // which does not repeat the name
		}
		if e := (*fs.PathError)(nil); errors.As(err, &e) {
			err = e.Err
		}
		r.Warn("command", "the program %q is not on this machine (%v): relay run needs it", name, err)
	}
}
