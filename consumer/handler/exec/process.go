package exec

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/relaymq/relay/consumer/handler/internal/process"
	"github.com/relaymq/relay/consumer/handler/internal/snippet"
)

// pipeWait is how long the pipes get to end after the process died: no time at all, unless a descendant that escaped the
// kill keeps them open. What is in them then is read still: nothing of what the program wrote is lost.
const pipeWait = 100 * time.Millisecond

// result is the end of a process.
type result struct {
	status syscall.WaitStatus
	// interrupted is why SIGTERM was sent; status says nothing then.
	interrupted error
	// err is set when the status is not known.
	err    error
	output *snippet.Ends // for an error
	stdout []byte        // the beginning of it, as a result
}

// What a running waits for, as indices of its polled.
const (
	death  = iota // the end of the program
	ctxEnd        // the end of ctx
	stdin
	stdout
	stderr
	sources
)

// running is a process and its streams. One goroutine does all that is to be done for it. Its thread, which started the program, waits
// in poll(2). A goroutine for each stream would be woken for each program, by way of epoll and of Go's scheduler, and costs more than
// all that is left here.
type running struct {
	process.Child
	polled           [sources]unix.PollFd // with Fd -1 for what has ended
	unwritten        []byte               // of stdin
	outEnds, errEnds snippet.Ends
	outHead          head
	buf              *[32 << 10]byte // nil: nothing was read yet
	dead             bool
	mu               sync.Mutex // guards the Fd of ctxEnd
}

// start runs the program, and keeps the first bytes of its stdout, up to keep. It is called within OnThread, as wait is. An error means
// that nothing ran.
func start(pr *process.Program, env []string, body []byte, keep int) (*running, error) {
	p := &running{unwritten: body, outHead: head{most: keep}}
	for i := range p.polled {
		p.polled[i].Fd = -1
	}
	theirs, err := p.open()
	if err == nil {
		p.write() // what fits into the pipe, which is most often all: the program finds it there
		p.Child, err = pr.Spawn(theirs, env)
		p.polled[death] = unix.PollFd{Fd: int32(p.FD), Events: unix.POLLIN}
	}
	for _, fd := range theirs {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	if err != nil {
		p.closeAll()
		return nil, err
	}
	return p, nil
}

// open opens the standard streams and returns the program's ends.
func (p *running) open() (theirs [3]int, err error) {
	theirs = [3]int{-1, -1, -1}
	for i := range theirs {
		var ends [2]int
		if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
			return theirs, os.NewSyscallError("pipe2", err)
		}
		ours, events := ends[0], int16(unix.POLLIN)
		theirs[i] = ends[1]
		if i == 0 {
			theirs[i], ours, events = ends[0], ends[1], unix.POLLOUT
		}
		p.polled[stdin+i] = unix.PollFd{Fd: int32(ours), Events: events}
		if _, err := unix.FcntlInt(uintptr(ours), unix.F_SETFL, unix.O_NONBLOCK); err != nil {
			return theirs, os.NewSyscallError("fcntl", err)
		}
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	p.polled[ctxEnd] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	return theirs, os.NewSyscallError("eventfd", err)
}

// close ends a source.
func (p *running) close(i int) {
	if fd := p.polled[i].Fd; fd >= 0 {
		_ = unix.Close(int(fd))
		p.polled[i] = unix.PollFd{Fd: -1}
	}
}

func (p *running) closeAll() {
	for i := range p.polled {
		p.close(i)
	}
}

func (p *running) ended(i int) bool { return p.polled[i].Fd < 0 }

// wait returns when the process has ended, or at the latest grace + KillWait + pipeWait after the end of ctx. It is
// called once.
func (p *running) wait(ctx context.Context, grace time.Duration) result {
	defer p.closeAll()
	unwatch := p.watch(ctx)
	for !p.dead && ctx.Err() == nil {
		p.poll(time.Time{})
	}
	unwatch()
	var r result
	// A program that is through has done its work, however late its end is noticed.
	if p.dead = p.dead || p.HasExited(); !p.dead {
		r.interrupted = context.Cause(ctx)
		p.Signal(syscall.SIGTERM)
		p.leave(grace)
	}
	p.End()
	if r.interrupted != nil {
		p.pollFor(process.KillWait, func() bool { return p.dead })
	}
	if p.dead {
		r.status, r.err = p.Await()
	} else { // the kernel cannot end it yet
		child := p.Child
		go func() { _, _ = child.Await() }()
	}
	r.output = p.finish()
	r.stdout = p.outHead.kept
	if p.buf != nil {
		buffers.Put(p.buf)
	}
	return r
}

// leave gives the group the grace. That the program itself is dead does not end it: a shell dies of SIGTERM at once and
// leaves behind the command that it was waiting for, which may be the one that needs the time. When nobody holds stdout
// and stderr any more the group is taken to be gone.
func (p *running) leave(grace time.Duration) {
	p.pollFor(grace, func() bool { return p.dead && p.ended(stdout) && p.ended(stderr) })
}

// watch makes the end of ctx something that poll notices.
func (p *running) watch(ctx context.Context) (unwatch func()) {
	stop := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.ended(ctxEnd) {
			_, _ = unix.Write(int(p.polled[ctxEnd].Fd), []byte{7: 1})
		}
	})
	return func() {
		stop()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.close(ctxEnd)
	}
}

// pollFor polls until enough says so, for a while.
func (p *running) pollFor(most time.Duration, enough func() bool) {
	for until := time.Now().Add(most); !enough() && time.Now().Before(until); {
		p.poll(until)
	}
}

// nap is how long a poll lasts where the end of a program cannot be polled for.
const nap = 5 * time.Millisecond

// poll waits for something to happen, until then at most if that is a time, and does what is to be done.
func (p *running) poll(until time.Time) {
	blind := p.FD < 0 && !p.dead
	if blind {
		if soon := time.Now().Add(nap); until.IsZero() || soon.Before(until) {
			until = soon
		}
	}
	var timeout *unix.Timespec
	if !until.IsZero() {
		ts := unix.NsecToTimespec(int64(max(0, time.Until(until))))
		timeout = &ts
	}
	if _, err := unix.Ppoll(p.polled[:], timeout, nil); err != nil {
		return // EINTR
	}
	switch {
	case blind:
		p.dead = p.HasExited()
	case p.polled[death].Revents != 0:
		p.dead = true
		p.close(death)
	}
	if p.polled[stdin].Revents != 0 {
		p.write()
	}
	for _, i := range [...]int{stdout, stderr} {
		if p.polled[i].Revents != 0 {
			p.read(i)
		}
	}
}

// write writes what the pipe takes of stdin, and closes it after the last byte.
func (p *running) write() {
	for len(p.unwritten) > 0 {
		n, err := unix.Write(int(p.polled[stdin].Fd), p.unwritten)
		if errors.Is(err, unix.EAGAIN) {
			return
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			break // EPIPE: the program does not want it
		}
		p.unwritten = p.unwritten[max(n, 0):]
	}
	p.close(stdin)
}

// buffers are what output is read into.
var buffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// read reads once.
func (p *running) read(i int) {
	if p.polled[i].Revents&unix.POLLIN == 0 { // the end
		p.close(i)
		return
	}
	if p.buf == nil {
		p.buf, _ = buffers.Get().(*[32 << 10]byte)
	}
	n, err := unix.Read(int(p.polled[i].Fd), p.buf[:])
	switch {
	case n > 0:
		_, _ = p.to(i).Write(p.buf[:n])
	case !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN):
		p.close(i)
	}
}

// to is where an output goes.
func (p *running) to(i int) io.Writer {
	switch {
	case i == stderr:
		return &p.errEnds
	case p.outHead.most > 0:
		return io.MultiWriter(&p.outEnds, &p.outHead)
	}
	return &p.outEnds
}

// finish waits for the streams to end, ends them if that takes long, and returns the ends of stderr, or of stdout if there
// was nothing on stderr.
func (p *running) finish() *snippet.Ends {
	p.pollFor(pipeWait, func() bool { return p.ended(stdin) && p.ended(stdout) && p.ended(stderr) })
	for _, i := range [...]int{stdout, stderr} {
		if !p.ended(i) {
			process.CopyRestFD(p.to(i), int(p.polled[i].Fd))
		}
	}
	if !p.errEnds.Empty() {
		return &p.errEnds
	}
	return &p.outEnds
}

// head is the first bytes written to it.
type head struct {
	kept []byte
	most int
}

func (h *head) Write(b []byte) (int, error) {
	h.kept = append(h.kept, b[:min(len(b), h.most-len(h.kept))]...)
	return len(b), nil
}
