package chaos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// What the machine gives for faults: network namespaces, small file systems, memory cgroups. All of it needs root; a row
// that cannot have it says so (see [Missing]).

const (
	nsPrefix     = "rchaos-"
	mountName    = "relay-chaos"
	memoryCgroup = "/sys/fs/cgroup/memory"
)

// Missing ends a row that cannot be injected on this machine, with the reason in the words that docs/reliability.md
// lists. Rows that are left out are counted, never silently passed.
func Missing(t testing.TB, why string) {
	t.Helper()
	t.Skipf("NOT INJECTED %s: %s", row(t.Name()), why)
}

// Hosts are two network namespaces joined by a pair of interfaces: one for relay and its handlers, one for NATS.
type Hosts struct {
	w            *World
	Relay, NATS  string // names
	relayIP      string
	NATSIP       string
	relayIf, nIf string
}

var hostsCount atomic.Int32

// NewHosts makes the namespaces.
func NewHosts(w *World) *Hosts {
	w.T.Helper()
	if os.Geteuid() != 0 {
		Missing(w.T, "network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		Missing(w.T, "network namespaces need the program ip (package iproute2)")
	}
	n := hostsCount.Add(1)
	id := fmt.Sprintf("%s%d-%d", nsPrefix, os.Getpid(), n)
	h := &Hosts{
		w: w, Relay: id + "-r", NATS: id + "-n", relayIP: "10.231.0.2", NATSIP: "10.231.0.1",
		relayIf: fmt.Sprintf("rc%d-%dr", os.Getpid()%100000, n), nIf: fmt.Sprintf("rc%d-%dn", os.Getpid()%100000, n),
	}
	w.late(func() {
		for _, ns := range []string{h.Relay, h.NATS} {
			_ = exec.Command("ip", "netns", "del", ns).Run() // takes the interfaces along
		}
	})
	steps := []string{
		"netns add " + h.Relay, "netns add " + h.NATS,
		// Born inside, so that not even their names appear outside.
		fmt.Sprintf("-n %s link add %s type veth peer name %s netns %s", h.NATS, h.nIf, h.relayIf, h.Relay),
		fmt.Sprintf("-n %s addr add %s/24 dev %s", h.NATS, h.NATSIP, h.nIf),
		fmt.Sprintf("-n %s addr add %s/24 dev %s", h.Relay, h.relayIP, h.relayIf),
		fmt.Sprintf("-n %s link set %s up", h.NATS, h.nIf), fmt.Sprintf("-n %s link set %s up", h.Relay, h.relayIf),
		fmt.Sprintf("-n %s link set lo up", h.NATS), fmt.Sprintf("-n %s link set lo up", h.Relay),
	}
	for _, s := range steps {
		if out, err := exec.Command("ip", strings.Fields(s)...).CombinedOutput(); err != nil {
			Missing(w.T, fmt.Sprintf("ip %s: %v: %s", s, err, out))
		}
	}
	return h
}

// nowhere is an Ethernet address that no interface has: frames sent there are lost without a word, which is what a DROP
// rule does, and needs no packet filter.
const nowhere = "02:00:00:00:de:ad"

// Partition loses what relay sends (which goes up), what NATS sends, or both, until Heal. Connections stay open on both sides.
func (h *Hosts) Partition(lost Ways) {
	h.w.T.Helper()
	h.w.Note("partition: from relay %v, from NATS %v", lost.has(Up), lost.has(Down))
	if lost.has(Up) {
		h.ip("-n %s neigh replace %s lladdr %s dev %s nud permanent", h.Relay, h.NATSIP, nowhere, h.relayIf)
	}
	if lost.has(Down) {
		h.ip("-n %s neigh replace %s lladdr %s dev %s nud permanent", h.NATS, h.relayIP, nowhere, h.nIf)
	}
}

// Heal ends the partition.
func (h *Hosts) Heal() {
	h.w.Note("heal")
	for _, s := range [][3]string{{h.Relay, h.NATSIP, h.relayIf}, {h.NATS, h.relayIP, h.nIf}} {
		_ = exec.Command("ip", "-n", s[0], "neigh", "del", s[1], "dev", s[2]).Run()
	}
}

func (h *Hosts) ip(format string, args ...any) {
	h.w.T.Helper()
	if out, err := exec.Command("ip", strings.Fields(fmt.Sprintf(format, args...))...).CombinedOutput(); err != nil {
		h.w.T.Fatalf("ip: %v: %s", err, out)
	}
}

// nsDialer dials from inside a namespace.
type nsDialer struct{ ns string }

func (d nsDialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

// DialContext makes the socket on a thread that is in the namespace. A socket stays where it was made.
func (d nsDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	type result struct {
		c   net.Conn
		err error
	}
	done := make(chan result, 1)
	go func() {
		// Not unlocked: the thread ends with the goroutine and takes its namespace along. Processes must not be started
		// from it, for they would die with it (Pdeathsig).
		runtime.LockOSThread()
		f, err := os.Open(filepath.Join("/run/netns", d.ns))
		if err == nil {
			err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
			f.Close()
		}
		var r result
		if r.err = err; err == nil {
			r.c, r.err = (&net.Dialer{}).DialContext(ctx, network, address)
		}
		done <- r
	}()
	r := <-done
	return r.c, r.err
}

// SmallDisk is a tmpfs of so many bytes in the run's directory.
func SmallDisk(w *World, name string, size int64) string {
	w.T.Helper()
	if os.Geteuid() != 0 {
		Missing(w.T, "a small disk needs root, to mount a tmpfs")
	}
	dir := w.path(name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		w.T.Fatal(err)
	}
	if err := syscall.Mount(mountName, dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		Missing(w.T, fmt.Sprintf("a small disk: mount tmpfs: %v", err))
	}
	w.late(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// Fill takes all the space there is, and returns how to give it back.
func Fill(w *World, dir string) (free func()) {
	w.T.Helper()
	name := filepath.Join(dir, "ballast")
	f, err := os.Create(name)
	if err != nil {
		w.T.Fatal(err)
	}
	defer f.Close()
	// Bounded by the file system, and by count in case it is larger than thought.
	for _, size := range []int{1 << 16, 1 << 12, 1} {
		for range 1 << 14 {
			if _, err = f.Write(make([]byte, size)); err != nil {
				break
			}
		}
		if !errors.Is(err, syscall.ENOSPC) {
			w.T.Fatalf("the disk is not full: %v", err)
		}
	}
	w.Note("disk full")
	return func() {
		w.Note("disk freed")
		_ = os.Remove(name)
	}
}

// MemoryLimit makes a memory cgroup (version 1) for one process.
func MemoryLimit(w *World, bytes int64) (dir string) {
	w.T.Helper()
	if _, err := os.Stat(filepath.Join(memoryCgroup, "cgroup.procs")); err != nil || os.Geteuid() != 0 {
		Missing(w.T, "an out-of-memory kill needs root and a memory cgroup of version 1")
	}
	dir = filepath.Join(memoryCgroup, fmt.Sprintf("%s%d-%d", nsPrefix, os.Getpid(), hostsCount.Add(1)))
	if err := os.Mkdir(dir, 0o755); err != nil {
		Missing(w.T, fmt.Sprintf("memory cgroup: %v", err))
	}
	w.late(func() {
		// Its processes may be a moment from gone.
		w.Within(2e9, func() bool { return os.Remove(dir) == nil })
	})
	if err := os.WriteFile(filepath.Join(dir, "memory.limit_in_bytes"), []byte(fmt.Sprint(bytes)), 0); err != nil {
		Missing(w.T, fmt.Sprintf("memory cgroup: %v", err))
	}
	return dir
}
