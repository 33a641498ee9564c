package main

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

func ignoreTERM() { signal.Ignore(syscall.SIGTERM) }

// spawnOrphan leaves a child behind that this process does not wait for.
func spawnOrphan() error { return spawn(&syscall.SysProcAttr{}) }

// spawnOrphanInSession is spawnOrphan for a child that leaves the process group.
func spawnOrphanInSession() error { return spawn(&syscall.SysProcAttr{Setsid: true}) }

func spawn(attr *syscall.SysProcAttr) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c := exec.Command(self, append([]string{"exec", "-orphan"}, os.Args[2:]...)...)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	c.SysProcAttr = attr
	return c.Start()
}
