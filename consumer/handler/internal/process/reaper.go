package process

import (
	"errors"
	"io"
	"math/bits"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// reaperName is argv[0] of a reaper, which ps shows.
const reaperName = "relay-reaper"

// A reaper is this program once more, whatever it is: relay, or a program that embeds it. The first program that a handler runs
// starts it, and it does nothing else.
func init() {
	if len(os.Args) == 1 && os.Args[0] == reaperName {
		signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP) // it ends with relay, and not before
		reap(os.Stdin, os.NewFile(3, "groups"))
		os.Exit(0)
	}
}

// reap waits for the end of its input, which relay holds and never writes to. What is in groups then has no relay any more, and is
// killed.
func reap(relay io.Reader, groups io.ReaderAt) {
	_, _ = io.Copy(io.Discard, relay)
	left, _ := io.ReadAll(io.NewSectionReader(groups, 0, maxPID/8))
	for i, set := range left {
		for ; set != 0; set &= set - 1 {
			if group := 8*i + bits.TrailingZeros8(set); group > 1 {
				_ = syscall.Kill(-group, syscall.SIGKILL)
			}
		}
	}
}

// living are the process groups of all programs that run, and the reaper that knows of them.
var living groups

// maxPID is above all process ids (PID_MAX_LIMIT in the kernel).
const maxPID = 1 << 22

// groups is a set of process groups that a reaper can read: one bit for each process id, in memory that both share. To tell a reaper
// of a program takes no system call and wakes nobody. Of the memory, only pages that were written to exist.
type groups struct {
	mu     sync.Mutex
	shared *os.File  // nil: none
	set    []byte    // shared, mapped; nil: none
	reaper *exec.Cmd // nil: none
	relay  *os.File  // its standard input, which ends with relay
}

// begins starts a reaper when there is none that lives. It is called before a program begins: the start of a reaper takes longer than
// that of most programs. Without a reaper, as where no process can be made, a group outlives a relay that is killed.
func (g *groups) begins() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reaper != nil {
		reads := []unix.PollFd{{Fd: int32(g.relay.Fd())}}
		if n, err := unix.Poll(reads, 0); n <= 0 || err != nil {
			return // somebody holds the other end
		}
		g.stop()
	}
	g.start()
}

// began says that a group is there. Between its start and this lie some microseconds, or milliseconds on a busy machine, in which the reaper does not know
// it: of a relay that is killed then, the kernel kills the program, and what that has started already lives on.
func (g *groups) began(pid int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.set != nil {
		g.set[pid/8] |= 1 << (pid % 8)
	}
}

// ended says that a group was killed. It is called before its process is reaped: from then on the id may be anybody's.
func (g *groups) ended(pid int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.set != nil {
		g.set[pid/8] &^= 1 << (pid % 8)
	}
}

// share makes the memory.
func (g *groups) share() error {
	if g.set != nil {
		return nil
	}
	fd, err := unix.MemfdCreate(reaperName, unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL) // which vm.memfd_noexec may ask for
	if errors.Is(err, unix.EINVAL) {                                               // before Linux 6.3
		fd, err = unix.MemfdCreate(reaperName, unix.MFD_CLOEXEC)
	}
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), reaperName)
	if err = f.Truncate(maxPID / 8); err == nil {
		g.set, err = unix.Mmap(fd, 0, maxPID/8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		f.Close()
		return err
	}
	g.shared = f
	return nil
}

// start makes a reaper.
func (g *groups) start() {
	if g.share() != nil {
		return
	}
	in, relay, err := os.Pipe()
	if err != nil {
		return
	}
	defer in.Close()
	// /proc/self/exe is this program, also when its file was replaced.
	reaper := &exec.Cmd{Path: "/proc/self/exe", Args: []string{reaperName}, Env: []string{}, Dir: "/", Stdin: in, ExtraFiles: []*os.File{g.shared},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true}}
	if reaper.Start() != nil {
		relay.Close()
		return
	}
	g.reaper, g.relay = reaper, relay
}

// stop forgets a reaper that is dead.
func (g *groups) stop() {
	g.relay.Close()
	_ = g.reaper.Wait()
	g.reaper, g.relay = nil, nil
}
