package process

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
)

// reaperName is argv[0] of a reaper, which ps shows.
const reaperName = "relay-reaper"

// A reaper is this program once more, whatever it is: relay, or a program that embeds it. The first program that a handler runs
// starts it, and it does nothing else.
func init() {
	if len(os.Args) == 1 && os.Args[0] == reaperName {
		signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP) // it ends with relay, and not before
		reap(os.Stdin)
		os.Exit(0)
	}
}

// reap reads process groups, those that began and, negative, those that ended, until whoever writes them is gone. What is left
// then has no relay any more, and is killed.
func reap(groups io.Reader) {
	left := make(map[int32]struct{})
	for {
		var group int32
		if binary.Read(groups, binary.NativeEndian, &group) != nil {
			break
		}
		if group > 1 {
			left[group] = struct{}{}
		} else {
			delete(left, -group)
		}
	}
	for group := range left {
		_ = syscall.Kill(-int(group), syscall.SIGKILL)
	}
}

// living are the process groups of all programs that run, and the reaper that has been told of them.
var living = groups{running: make(map[int32]struct{})}

type groups struct {
	mu      sync.Mutex
	running map[int32]struct{}
	reaper  *exec.Cmd // nil: none
	tell    *os.File  // its standard input
}

// begins starts a reaper when there is none. It is called before a program begins: the start of a reaper takes longer than that of most programs.
func (g *groups) begins() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reaper == nil {
		g.restart()
	}
}

// began says that a group is there. Between its start and this lie some microseconds in which the reaper does not know it. Without a reaper, as where no process can be made, the group outlives a relay that is killed.
func (g *groups) began(pid int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running[int32(pid)] = struct{}{}
	if g.reaper != nil && g.write(int32(pid)) != nil {
		g.restart()
	}
}

// ended says that a group was killed. It is called before its process is reaped: from then on the id may be anybody's.
func (g *groups) ended(pid int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.running, int32(pid))
	if g.reaper != nil && g.write(-int32(pid)) != nil {
		g.restart()
	}
}

// restart makes a reaper in place of one that died or no longer reads, and tells it of all groups.
func (g *groups) restart() {
	g.stop()
	in, tell, err := os.Pipe()
	if err != nil {
		return
	}
	defer in.Close()
	// /proc/self/exe is this program, also when its file was replaced.
	reaper := &exec.Cmd{Path: "/proc/self/exe", Args: []string{reaperName}, Env: []string{}, Dir: "/", Stdin: in,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true}}
	if reaper.Start() != nil {
		tell.Close()
		return
	}
	g.reaper, g.tell = reaper, tell
	for group := range g.running {
		if g.write(group) != nil {
			g.stop()
			return
		}
	}
}

func (g *groups) stop() {
	if g.reaper == nil {
		return
	}
	_ = g.reaper.Process.Kill() // before its input ends: it must not kill what is told to the next one
	g.tell.Close()
	_ = g.reaper.Wait()
	g.reaper, g.tell = nil, nil
}

// write never waits: a pipe holds 16,384 groups, so that one that is full belongs to a reaper that does not run.
func (g *groups) write(group int32) error {
	raw, err := g.tell.SyscallConn()
	if err != nil {
		return err
	}
	var buf [4]byte
	binary.NativeEndian.PutUint32(buf[:], uint32(group))
	failed := raw.Write(func(fd uintptr) bool {
		for {
			if _, err = syscall.Write(int(fd), buf[:]); !errors.Is(err, syscall.EINTR) {
				return true // also when it would have to wait
			}
		}
	})
	return errors.Join(failed, err)
}
