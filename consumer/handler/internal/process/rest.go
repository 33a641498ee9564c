package process

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// CopyRest copies what is in a pipe at this moment, and does not wait for more. Of a program that is dead that is all that it wrote
// and nobody has read, whoever else holds the pipe. Nobody else may read it meanwhile.
func CopyRest(w io.Writer, pipe *os.File) {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { CopyRestFD(w, int(fd)) })
}

// CopyRestFD is CopyRest of a descriptor.
func CopyRestFD(w io.Writer, fd int) {
	left, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil || left <= 0 {
		return
	}
	buf := make([]byte, min(left, 64<<10))
	for left > 0 {
		n, err := unix.Read(fd, buf[:min(left, len(buf))])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil || n == 0:
			return
		}
		left -= n
		if _, err := w.Write(buf[:n]); err != nil {
			return
		}
	}
}
