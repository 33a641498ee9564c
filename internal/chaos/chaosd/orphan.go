package main

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

func ignoreTERM() { signal.Ignore(syscall.SIGTERM) }

// spawnOrphan leaves a child behind that this process does not wait for.
func spawnOrphan(session bool) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c := exec.Command(self, append([]string{"exec", "-orphan"}, os.Args[2:]...)...)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: session}
	return c.Start()
}
