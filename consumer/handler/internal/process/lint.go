package process

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/relaymq/relay/consumer/handler"
)

// Lint looks for the program as [New] will, and for the rights that its user and its limits need. It often runs on another machine, or
// as another user than relay run, so that nothing it finds is a fault: it says for whom it judged.
func Lint(cfg Config, r handler.Report) {
	if len(cfg.Command) > 0 {
		lintCommand(cfg.Command[0], cfg.Dir, r)
	}
	lintRights(cfg, os.Geteuid(), os.Getegid(), mayLimitOthers, r)
}

// lintRights judges for whom it runs as: mayLimit tells whether this one may limit processes of other users.
func lintRights(cfg Config, uid, gid int, mayLimit func() bool, r handler.Report) {
	if cfg.User == "" {
		if cfg.Limits.Processes > 0 && uid == 0 {
			r.Warn("limits.processes", "has no effect on root, and lint runs as root: relay run as root would refuse to start; set user")
		}
		return
	}
	as, err := parseUser(cfg.User)
	if err != nil {
		r.Warn("user", "%v on this machine: relay run needs it", err)
		return
	}
	limits := cfg.Limits != Limits{}
	switch self := int(as.Uid) == uid && int(as.Gid) == gid; {
	case cfg.Limits.Processes > 0 && as.Uid == 0:
		r.Warn("limits.processes", "has no effect on root, and user is root: relay run would refuse to start; name another user")
	case self:
	case uid != 0 && limits:
		r.Warn("user", "relay run must be root to run programs as %s, and needs the capability CAP_SYS_RESOURCE for limits beside user: lint runs as uid %d, and cannot tell whether relay run has both",
			cfg.User, uid)
	case uid != 0:
		r.Warn("user", "relay run must be root to run programs as %s: lint runs as uid %d, and cannot tell whether relay run is root", cfg.User, uid)
	case limits && !mayLimit():
		r.Warn("limits", "relay run needs the capability CAP_SYS_RESOURCE for limits beside user, and does not start without it: lint runs as root on this machine without that capability; give it to relay, or set limits on the container")
	}
}

// mayLimitOthers tells whether this process may set limits of another user's processes.
func mayLimitOthers() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

func lintCommand(name, dir string, r handler.Report) {
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
