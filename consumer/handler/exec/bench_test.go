package exec

import (
	"context"
	"os"
	osexec "os/exec"
	"strings"
	"syscall"
	"testing"
)

// The cost of a program is nearly all in the kernel and in the program: CPU is of this process, CPU-program of the programs.

// BenchmarkHandle is this handler, with `true`.
func BenchmarkHandle(b *testing.B) {
	h, err := New(Config{Command: []string{"true"}})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	measured(b, func() error { return h.Handle(ctx, message()) })
}

// BenchmarkOSExec is what a program by hand does.
func BenchmarkOSExec(b *testing.B) {
	measured(b, func() error {
		c := osexec.Command("true")
		c.Stdin = strings.NewReader("body")
		return c.Run()
	})
}

// BenchmarkForkExec is the limit: a program starts and ends, and nothing is written or read.
func BenchmarkForkExec(b *testing.B) {
	path, err := osexec.LookPath("true")
	if err != nil {
		b.Fatal(err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer null.Close()
	fd := null.Fd()
	measured(b, func() error {
		pid, err := syscall.ForkExec(path, []string{path}, &syscall.ProcAttr{Files: []uintptr{fd, fd, fd}})
		for err == nil {
			if _, err = syscall.Wait4(pid, nil, 0, nil); err == nil {
				return nil
			} else if err == syscall.EINTR {
				err = nil
			}
		}
		return err
	})
}

// measured runs f, eight at once for each core.
func measured(b *testing.B, f func() error) {
	b.ReportAllocs()
	b.SetParallelism(8)
	self, children := cpu(b, syscall.RUSAGE_SELF), cpu(b, syscall.RUSAGE_CHILDREN)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := f(); err != nil {
				b.Error(err)
			}
		}
	})
	b.ReportMetric((cpu(b, syscall.RUSAGE_SELF)-self)/float64(b.N), "µs-CPU/op")
	b.ReportMetric((cpu(b, syscall.RUSAGE_CHILDREN)-children)/float64(b.N), "µs-CPU-program/op")
}

// cpu is in microseconds.
func cpu(b *testing.B, who int) float64 {
	var use syscall.Rusage
	if err := syscall.Getrusage(who, &use); err != nil {
		b.Fatal(err)
	}
	return float64(use.Utime.Nano()+use.Stime.Nano()) / 1e3
}
