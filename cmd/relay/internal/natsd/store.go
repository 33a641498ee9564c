package natsd

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// lockName is the file whose flock says who uses the store. It holds the process id of the last one.
const lockName = "relay.lock"

var (
	// ErrInUse is that another process has the store.
	ErrInUse = errors.New("the store is in use")
	// ErrGone is that the store was deleted, or replaced, while the server ran.
	ErrGone = errors.New("the store is gone")
)

// store is a directory that is ours as long as its lock file is open.
type store struct {
	dir  string // absolute, no symbolic links
	lock *os.File
	js   fs.FileInfo // the directory of JetStream as it was at the start
}

// openStore makes the directory if need be, checks whose it is, and locks it.
func openStore(dir string) (*store, error) {
	if dir == "" {
		return nil, errors.New("must name a directory")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if dir, err = ownDir(dir); err != nil {
		return nil, err
	}
	// The mode of a new directory is what the umask left of it, that of an old one whatever somebody gave it.
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, err
	}
	s := &store{dir: dir}
	if s.lock, err = lock(dir); err != nil {
		return nil, err
	}
	return s, nil
}

// ownDir refuses what somebody else could have put in the way. A symbolic link is followed when it is ours or root's:
// systemd makes /var/lib/relay one under DynamicUser.
func ownDir(dir string) (string, error) {
	fi, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	me := os.Geteuid()
	if owner := uid(fi); fi.Mode()&fs.ModeSymlink != 0 && owner != me && owner != 0 {
		return "", fmt.Errorf("%s is a symbolic link of user %d, relay runs as user %d", dir, owner, me)
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return "", err
	}
	if fi, err = os.Lstat(dir); err != nil {
		return "", err
	}
	if owner := uid(fi); owner != me {
		return "", fmt.Errorf("%s belongs to user %d, relay runs as user %d: name a directory below it, or change its owner", dir, owner, me)
	}
	return dir, nil
}

func uid(fi fs.FileInfo) int { return int(fi.Sys().(*syscall.Stat_t).Uid) }

func lock(dir string) (*os.File, error) {
	name := filepath.Join(dir, lockName)
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: flock: %w", name, err)
		}
		who, _ := io.ReadAll(io.LimitReader(f, 20))
		return nil, fmt.Errorf("%s: %w by process %s: stop that process, or name another directory", dir, ErrInUse, strings.TrimSpace(string(who)))
	}
	// Only now: whoever holds the lock must stay readable to those who do not.
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// close lets go of the lock. The file stays: to remove it would let two processes lock two files of one name.
func (s *store) close() { s.lock.Close() }

// remember keeps which directory JetStream started on, for present.
func (s *store) remember() (err error) {
	s.js, err = os.Lstat(jetstreamDir(s.dir))
	return err
}

// present is nil while the lock file and JetStream's directory are the ones this process started with. JetStream does
// not notice when they are deleted: it writes on to files that have no name.
func (s *store) present() error {
	mine, err := s.lock.Stat()
	if err != nil {
		return err
	}
	for name, was := range map[string]fs.FileInfo{filepath.Join(s.dir, lockName): mine, jetstreamDir(s.dir): s.js} {
		switch is, err := os.Lstat(name); {
		case err != nil:
			return fmt.Errorf("%w: %w", ErrGone, err)
		case !os.SameFile(is, was):
			return fmt.Errorf("%w: %s was replaced", ErrGone, name)
		}
	}
	return nil
}

// space is for an error about the disk, so that it names the disk.
func (s *store) space() string {
	var st syscall.Statfs_t
	if err := syscall.Statfs(s.dir, &st); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d bytes free on the disk of %s", st.Bavail*uint64(st.Bsize), s.dir)
}
