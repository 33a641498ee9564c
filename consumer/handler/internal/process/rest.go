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
	_ = raw.Control(func(fd uintptr) {
		left, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		buf := make([]byte, min(left, 64<<10))
		for err == nil && left > 0 {
			var n int
			n, err = unix.Read(int(fd), buf[:min(left, len(buf))])
			switch {
			case errors.Is(err, unix.EINTR):
				err = nil
			case err != nil || n == 0:
				return
			default:
				left -= n
				_, err = w.Write(buf[:n])
			}
		}
	})
}
