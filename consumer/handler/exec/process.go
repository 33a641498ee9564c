package exec

import (
	"context"
	"io"
	"sync"
	"syscall"
	"time"

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

// running is a process and its streams.
type running struct {
	*process.Process
	outEnds, errEnds snippet.Ends
	outHead          head
	drained          chan struct{} // closed at the end of both stdout and stderr
	copied           chan struct{} // closed when stdin is written, or refused, too
}

// start runs the program, and keeps the first bytes of its stdout, up to keep. An error means that nothing ran.
func start(pr *process.Program, env []string, stdin []byte, keep int) (*running, error) {
	p, err := pr.Start(env...)
	if err != nil {
		return nil, err
	}
	r := &running{
		Process: p, outHead: head{most: keep},
		drained: make(chan struct{}), copied: make(chan struct{}),
	}
	r.copy(stdin)
	return r, nil
}

// wait returns when the process has ended, or at the latest grace + KillWait + pipeWait after the end of ctx. It is
// called once.
func (p *running) wait(ctx context.Context, grace time.Duration) result {
	var r result
	death := process.ByItself
	select {
	case <-p.Died():
	case <-ctx.Done():
		// A program that is through has done its work, however late Died is closed or select looks at it.
		if !p.HasExited() {
			r.interrupted, death = context.Cause(ctx), process.Killed
			p.Signal(syscall.SIGTERM)
			p.leave(grace)
		}
	}
	r.status, r.err = p.Reap(death)
	r.output = p.finish()
	r.stdout = p.outHead.kept
	return r
}

// leave gives the group the grace. That the program itself is dead does not end it: a shell dies of SIGTERM at once and
// leaves behind the command that it was waiting for, which may be the one that needs the time. When nobody holds stdout
// and stderr any more the group is taken to be gone.
func (p *running) leave(grace time.Duration) {
	timer := time.NewTimer(grace)
	defer timer.Stop()
	for _, gone := range []<-chan struct{}{p.Died(), p.drained} {
		select {
		case <-gone:
		case <-timer.C:
			return
		}
	}
}

// copy starts the copying.
func (p *running) copy(stdin []byte) {
	var outputs, all sync.WaitGroup
	all.Go(func() {
		_, _ = p.In.Write(stdin) // EPIPE: the program does not want it
		p.In.Close()
	})
	outputs.Go(func() { _, _ = io.Copy(p.out(), p.Out) })
	outputs.Go(func() { _, _ = io.Copy(&p.errEnds, p.Err) })
	all.Go(func() { outputs.Wait(); close(p.drained) })
	go func() { all.Wait(); close(p.copied) }()
}

// out is where stdout goes.
func (p *running) out() io.Writer {
	if p.outHead.most > 0 {
		return io.MultiWriter(&p.outEnds, &p.outHead)
	}
	return &p.outEnds
}

// past is a deadline that is over.
var past = time.Unix(1, 0)

// finish waits for the copying to end, ends it if that takes long, and returns the ends of stderr, or of stdout if there
// was nothing on stderr.
func (p *running) finish() *snippet.Ends {
	timer := time.NewTimer(pipeWait)
	select {
	case <-p.copied:
	case <-timer.C:
	}
	timer.Stop()
	// Ends reads and writes that wait.
	_, _, _ = p.In.SetWriteDeadline(past), p.Out.SetReadDeadline(past), p.Err.SetReadDeadline(past)
	<-p.copied
	process.CopyRest(p.out(), p.Out)
	process.CopyRest(&p.errEnds, p.Err)
	p.Close()
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
