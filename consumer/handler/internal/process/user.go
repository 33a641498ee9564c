package process

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// account is whom a program runs as.
type account struct {
	*syscall.Credential
	name, home string // empty when the system does not know the user
}

// parseUser reads "name", "name:group", "uid" or "uid:gid". A user whom the system does not know needs both numbers.
func parseUser(s string) (*account, error) {
	who, group, hasGroup := strings.Cut(s, ":")
	known, err := user.Lookup(who)
	uid, notNumber := parseID(who)
	if err != nil && notNumber == nil {
		known, err = user.LookupId(who)
	}
	a := &account{Credential: &syscall.Credential{Uid: uid}}
	switch {
	case err == nil:
		if a.Uid, err = parseID(known.Uid); err != nil {
			return nil, fmt.Errorf("uid of %q: %w", who, err)
		}
		if a.Gid, err = parseID(known.Gid); err != nil {
			return nil, fmt.Errorf("gid of %q: %w", who, err)
		}
		a.name, a.home = known.Username, known.HomeDir
	case notNumber != nil:
		return nil, fmt.Errorf("there is no user %q", who)
	case !hasGroup:
		return nil, fmt.Errorf("the system knows no user with uid %s: write uid:gid", who)
	}
	if hasGroup {
		a.Gid, err = parseGroup(group)
		return a, err
	}
	groups, err := known.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("groups of %q: %w", who, err)
	}
	for _, g := range groups {
		if gid, err := parseID(g); err == nil && gid != a.Gid {
			a.Groups = append(a.Groups, gid)
		}
	}
	return a, nil
}

func parseGroup(s string) (uint32, error) {
	if g, err := user.LookupGroup(s); err == nil {
		s = g.Gid
	}
	gid, err := parseID(s)
	if err != nil {
		return 0, fmt.Errorf("there is no group %q", s)
	}
	return gid, nil
}

// parseID reads a uid or gid. The highest number means "leave it as it is" to the kernel.
func parseID(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err == nil && n == 1<<32-1 {
		err = strconv.ErrRange
	}
	return uint32(n), err
}

// noNewPrivileges keeps what this thread starts from gaining rights that it was not given, as by a program with the set-user-id
// bit (PR_SET_NO_NEW_PRIVS). It cannot be undone.
func noNewPrivileges() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	return nil
}

// isSelf tells whether a is what relay runs as already, so that no right is needed.
func (a *account) isSelf() bool {
	return int(a.Uid) == os.Geteuid() && int(a.Gid) == os.Getegid() && os.Geteuid() != 0
}
