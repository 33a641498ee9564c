package worker

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/relaymq/relay/consumer/handler/internal/process"
	"github.com/relaymq/relay/consumer/handler/internal/snippet"
)

const (
	// maxShown is what an error shows of a line.
	maxShown = 512
	// lastWords is how long a process that has closed its stdout may take to be gone, and how long the end of the stderr of one that
	// is gone is awaited: a descendant that escaped the kill may hold it. What is in the pipe then is read still.
	lastWords = 100 * time.Millisecond
)

var (
	errExited    = errors.New("exited")
	errClosedOut = errors.New("closed its stdout")
)

// past is a deadline that is over.
var past = time.Unix(1, 0)

// child is one process. One goroutine, keep, starts it, notices its death and ends it. What it writes is read by those who wait
// for answers (call.go): one of them reads, and gives the others theirs.
type child struct {
	pool      *pool
	process   *process.Process
	started   time.Time
	begun     chan struct{} // closed when it takes messages, or never will
	quit      chan struct{} // closed when it is to leave
	kill      chan struct{} // closed when it is to be killed
	ended     chan struct{} // closed when it is gone; what follows is set then
	death     error         // how it ended
	read      int64         // how much it has read of what was written to it
	several   bool          // it had read more than one message that it had not answered
	beside    bool          // it was ended for another's time, or was asked to leave
	asked     bool          // it was asked to leave
	stillborn bool          // it has said nothing, and read nothing

	turn    chan struct{} // held by who writes to its stdin; guards line
	line    []byte
	written atomic.Int64 // changed by who holds turn
	turns   atomic.Int64 // how often it got a message while it had none

	out lines // belongs to the reader

	mu         sync.Mutex
	calls      map[string]*call
	reader     *call // nil: nobody reads
	writer     *call // nil: nobody writes
	readUntil  bool  // a read deadline is set
	writeUntil bool  // a write deadline is set
	leaving    bool  // quit is closed
	exited     bool  // the process is dead; what it wrote is still read
	broken     error // why it takes no more messages; kill is closed
	guilty     *call // the message for whose time it was killed; nil otherwise
	alive      bool  // it has said something that it was asked for
}

func newChild(p *pool) *child {
	c := &child{
		pool: p, started: time.Now(), begun: make(chan struct{}), ended: make(chan struct{}), quit: make(chan struct{}), kill: make(chan struct{}),
		turn: make(chan struct{}, 1), calls: make(map[string]*call, p.cfg.InFlight),
	}
	c.out.max = 6*int(p.cfg.MaxResult) + 64<<10 // \u0000 is the longest way to write a byte
	go c.keep()
	return c
}

// usable tells whether messages may be given to it, now or when it has started.
func (c *child) usable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.takes()
}

func (c *child) takes() bool { return c.broken == nil && !c.leaving && !c.exited }

// leave asks it to end when it can. It does not wait.
func (c *child) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.leaving {
		c.leaving = true
		close(c.quit)
	}
}

// breaks ends it at once. It does not wait.
func (c *child) breaks(why error, guilty *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.breakLocked(why, guilty)
}

func (c *child) breakLocked(why error, guilty *call) {
	if c.broken == nil {
		c.broken, c.guilty = why, guilty
		close(c.kill)
	}
}

// keep is the life of the process.
func (c *child) keep() {
	defer c.pool.gone(c)
	defer close(c.ended)
	p, err := c.pool.program.Start()
	if err != nil {
		c.death, c.stillborn = fmt.Errorf("start %s: %w", c.pool.program.Path, err), true
		c.breaks(c.death, nil)
		close(c.begun)
		return
	}
	c.process, c.out.from = p, p.Out
	said := newStderr(c.pool.log.With("pid", p.Pid()), &c.turns)
	go said.copy(p.Err)
	if c.pool.cfg.Ready {
		if err := c.awaitReady(); err != nil {
			c.breaks(err, nil)
		}
	}
	close(c.begun)

	death := process.ByItself
	select {
	case <-p.Died():
		c.drain()
	case <-c.quit:
		death, c.asked = c.stop(), true
	case <-c.kill:
		if c.why() == errClosedOut {
			wait(p.Died(), lastWords)
		}
		if !p.HasExited() {
			death = process.Killed
		}
	}
	status, err := p.Reap(death)
	c.settle()
	wait(said.done, lastWords)
	_ = p.Err.SetReadDeadline(past)
	<-said.done
	said.rest(p.Err)
	p.Close()
	c.death = c.describe(death, status, err, &said.ends)
	if !c.asked {
		c.pool.log.Warn("a worker process ended", "pid", p.Pid(), "error", c.death)
	}
}

func (c *child) why() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.broken
}

// readOut is how long those who wait for answers get to read what a process wrote before it died. Only a descendant that escaped the
// kill can make it as long.
const readOut = time.Second

// drain lets the answers be read that a process has left.
func (c *child) drain() {
	c.process.Signal(syscall.SIGKILL) // whom it has started, and who may hold its stdout
	c.mu.Lock()
	c.exited = true
	if len(c.calls) == 0 {
		c.breakLocked(errExited, nil)
	}
	c.mu.Unlock()
	wait(c.kill, readOut)
	c.breaks(errExited, nil)
}

// settle finds out what the process had read: the rest is in the pipe still. One that was asked to leave had nothing in hand.
func (c *child) settle() {
	if !c.asked {
		_ = c.process.In.SetWriteDeadline(past)
		c.turn <- struct{}{} // never given back
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read = c.written.Load() - unread(c.process.In)
	n := 0
	for _, cl := range c.calls {
		if cl.from < c.read {
			n++
		}
	}
	c.several, c.beside = n > 1, c.asked || c.guilty != nil
	if c.read > 0 {
		c.pool.starts.SucceededAt(c.started)
	}
	c.stillborn = !c.alive && c.read == 0 && !c.asked
}

// reads tells of a child that lives whether it has read anything.
func (c *child) reads() bool {
	select {
	case <-c.begun:
		return c.usable() && c.written.Load() > unread(c.process.In)
	default:
		return false
	}
}

// unread is how many bytes are in a pipe.
func unread(f *os.File) (n int64) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0 // closed: the process was asked to leave
	}
	_ = raw.Control(func(fd uintptr) {
		if got, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil {
			n = int64(got)
		}
	})
	return n
}

// stop lets the process end: at the end of its stdin, or else by SIGTERM, or else by SIGKILL.
func (c *child) stop() process.Death {
	_ = c.process.In.SetWriteDeadline(past) // ends a write that hangs
	c.turn <- struct{}{}                    // never given back
	c.process.In.Close()
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		timer := time.NewTimer(c.pool.cfg.Grace)
		select {
		case <-c.process.Died():
			timer.Stop()
			return process.ByItself
		case <-c.kill:
			timer.Stop()
			return process.Killed
		case <-timer.C:
			c.process.Signal(s)
		}
	}
	return process.Killed
}

// describe says how the process ended.
func (c *child) describe(death process.Death, status syscall.WaitStatus, err error, said *snippet.Ends) error {
	why := c.why()
	switch {
	case death == process.Killed && why != nil: // that it was killed is a consequence
		err = why
	case err != nil:
		err = fmt.Errorf("wait: %w", err)
	case status.Signaled():
		err = fmt.Errorf("killed by signal %d (%v)", int(status.Signal()), status.Signal())
	default:
		err = fmt.Errorf("exit status %d", status.ExitStatus())
	}
	if death == process.ByItself && why != nil && why != errExited && why != errClosedOut {
		err = fmt.Errorf("%w (%w)", why, err)
	}
	text := ""
	if !said.Empty() {
		text = ": " + said.String()
	}
	return fmt.Errorf("%s: %w%s", c.pool.program.Path, err, text)
}

// wait waits for done, for a while.
func wait(done <-chan struct{}, most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// awaitReady reads the first line.
func (c *child) awaitReady() error {
	_ = c.process.Out.SetReadDeadline(time.Now().Add(c.pool.cfg.StartTimeout))
	through, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-through:
			return
		case <-c.quit:
		case <-c.kill:
		}
		_ = c.process.Out.SetReadDeadline(past)
	}()
	line, err := c.out.next()
	close(through)
	<-watched
	var a answer
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("did not say within %v that it is ready", c.pool.cfg.StartTimeout)
	case errors.Is(err, errTooLong):
	case err != nil:
		return errClosedOut
	case a.parse(line) == nil && a.Ready:
		c.said()
		return c.process.Out.SetReadDeadline(time.Time{})
	}
	return fmt.Errorf("did not begin with {\"ready\":true}: %s", shown(line))
}

// said notes that the program works. It is called for each answer.
func (c *child) said() {
	c.pool.starts.Succeeded()
	c.mu.Lock()
	c.alive = true
	c.mu.Unlock()
}

func shown(line []byte) string { return fmt.Sprintf("%q", snippet.Head(line, maxShown)) }
