// Package hangup catches SIGHUP from the moment it is initialized, which is before package main and most others are: it imports nothing
// that takes time. For `relay run` the signal means a reload, and by default it ends a process, also one that has not come to
// reading its arguments yet. A manager that sends it right after the start would so end the service.
package hangup

import (
	"os"
	"os/signal"
	"syscall"
)

// C has the SIGHUP that came and was not taken yet: one, however many came.
var C = make(chan os.Signal, 1)

var ignored = signal.Ignored(syscall.SIGHUP) // as by nohup

func init() {
	if !ignored {
		Catch()
	}
}

// Catch has SIGHUP come to C, also where whoever started the process had it ignored.
func Catch() { signal.Notify(C, syscall.SIGHUP) }

// Stop ends that.
func Stop() { signal.Stop(C) }

// Release is for what is no service: SIGHUP does again what it does to any process, and one that came already does so now.
func Release() {
	Stop()
	select {
	case <-C:
		_ = syscall.Kill(os.Getpid(), syscall.SIGHUP)
		select {} // until it arrives
	default:
	}
}
