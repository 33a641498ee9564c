package process

import (
	"errors"
	"io/fs"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/relaymq/relay/consumer"
)

// Patience is how long no start may succeed before a program that cannot be started is the route's trouble. A program
// that is being replaced is missing for less.
const Patience = 10 * time.Second

// Starts judges starts that fail.
type Starts struct {
	// broken is since when the program could not be started, in Unix nanoseconds. 0: the last start succeeded.
	broken atomic.Int64
}

// Succeeded notes a start.
func (s *Starts) Succeeded() {
	if s.broken.Load() != 0 {
		s.broken.Store(0)
	}
}

// SucceededAt notes a start that is found only later to have been one. It says nothing of starts that failed after it.
func (s *Starts) SucceededAt(when time.Time) {
	if since := s.broken.Load(); since != 0 && when.UnixNano() >= since {
		s.broken.CompareAndSwap(since, 0)
	}
}

// Failed is the verdict of an attempt whose program could not be started, which is never the message's doing: not started, and
// after [Patience] the route is stopped.
func (s *Starts) Failed(err error, now time.Time) error {
	if !isBroken(err) {
		return consumer.NotStarted(err) // EAGAIN, ENOMEM, EMFILE, ETXTBSY: the machine's state
	}
	if s.broken.CompareAndSwap(0, now.UnixNano()) || now.Sub(time.Unix(0, s.broken.Load())) < Patience {
		return consumer.NotStarted(err)
	}
	return consumer.FailRoute(err)
}

// ErrBroken is for programs that can be started, and do not begin to work.
var ErrBroken = errors.New("the program starts, but does not begin to work")

// isBroken tells whether a start failed because of the program or of what the config says of it.
func isBroken(err error) bool {
	for _, lasting := range []error{
		fs.ErrNotExist, fs.ErrPermission, syscall.ENOTDIR, syscall.EISDIR, syscall.ELOOP, syscall.ENAMETOOLONG, syscall.ENOEXEC,
		syscall.E2BIG, // what comes from a message is bounded far below: the config is too big
		ErrBroken,
	} {
		if errors.Is(err, lasting) {
			return true
		}
	}
	return false
}
