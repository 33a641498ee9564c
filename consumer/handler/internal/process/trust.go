package process

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// replaceable is an error when somebody who is neither root nor the user that the program runs as could put another program
// in its place: by writing to it, or by swapping it or any directory or symbolic link on the way to it.
func replaceable(path string, runsAs uint32) error {
	way, err := wayTo(path)
	if err != nil {
		return fmt.Errorf("command: %w", err)
	}
	for _, step := range way {
		info, err := os.Lstat(step)
		if err != nil {
			return fmt.Errorf("command: %w", err)
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			continue
		}
		var who string
		mode := info.Mode()
		// In a directory with the sticky bit, as /tmp, only its owner and an entry's own owner can replace the entry; both
		// are looked at. The mode of a symbolic link means nothing.
		writable := mode&fs.ModeSymlink == 0 && (!mode.IsDir() || mode&fs.ModeSticky == 0)
		switch {
		case stat.Uid != 0 && stat.Uid != runsAs:
			who = fmt.Sprintf("belongs to uid %d", stat.Uid)
		case writable && mode&0o002 != 0:
			who = "may be written by everybody"
		case writable && mode&0o020 != 0 && stat.Gid != 0:
			who = fmt.Sprintf("may be written by the group with gid %d", stat.Gid)
		default:
			continue
		}
		whose := "root"
		if runsAs != 0 {
			whose = fmt.Sprintf("root or uid %d", runsAs)
		}
		return fmt.Errorf("command: %s %s, so that others could replace %s: as root, relay runs only programs that nobody but %s can change", step, who, path, whose)
	}
	return nil
}

// wayTo lists the file at an absolute path, and every directory and symbolic link that is passed on the way to it.
func wayTo(path string) ([]string, error) {
	const maxLinks = 40 // as the kernel
	way, at, links := []string{"/"}, "/", 0
	todo := strings.Split(path, "/")
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
			continue
		}
		next := filepath.Join(at, name)
		way = append(way, next)
		info, err := os.Lstat(next)
		switch {
		case err != nil:
			return nil, err
		case info.Mode()&fs.ModeSymlink == 0:
			at = next
			continue
		}
		if links++; links > maxLinks {
			return nil, &os.PathError{Op: "resolve", Path: path, Err: syscall.ELOOP}
		}
		target, err := os.Readlink(next)
		if err != nil {
			return nil, err
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	return way, nil
}
