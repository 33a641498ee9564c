package run

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// notifier tells systemd how the service is, when systemd started it (Type=notify). Else it says nothing.
type notifier struct {
	mu       sync.Mutex
	started  bool // READY was said
	reloads  bool
	stops    bool
	status   string // as it was last said
	extended time.Time
}

const (
	notifyEvery = time.Second
	// A start that waits for a server goes on for as long as it says so.
	extendEvery = 10 * time.Second
	extendBy    = 30 * time.Second
)

// begin tells of the service until the function is called that it returns. What ready says is the status.
func (n *notifier) begin(ready func() error) (stop func()) {
	if on, _ := daemon.SdNotify(false, "STATUS=starting"); !on {
		return func() {}
	}
	every := notifyEvery
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err == nil && watchdog > 0 {
		every = min(every, watchdog/3)
	}
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			n.running(ready()) // which takes the locks of all routes: a service that hangs says nothing more
			if watchdog > 0 {
				_, _ = daemon.SdNotify(false, daemon.SdNotifyWatchdog)
			}
			select {
			case <-end:
				return
			case <-tick.C:
			}
		}
	}()
	return func() {
		close(end)
		<-done
	}
}

// running says READY once everything works for the first time, and what the status is whenever it changes.
func (n *notifier) running(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.say(err)
}

func (n *notifier) say(err error) {
	if n.reloads || n.stops {
		return
	}
	status := "all routes work"
	if err != nil {
		first, rest, more := strings.Cut(err.Error(), "\n")
		if status = first; more {
			status += fmt.Sprintf(" (and %d more)", strings.Count(rest, "\n")+1)
		}
	}
	var lines []string
	switch {
	case !n.started && err == nil:
		n.started = true
		lines = append(lines, daemon.SdNotifyReady)
	case !n.started && time.Since(n.extended) >= extendEvery:
		n.extended = time.Now()
		lines = append(lines, fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", extendBy.Microseconds()))
	}
	if status != n.status {
		n.status = status
		lines = append(lines, "STATUS="+status)
	}
	if len(lines) > 0 {
		_, _ = daemon.SdNotify(false, strings.Join(lines, "\n"))
	}
}

// reloading says that the configuration is read again; reloaded ends it.
func (n *notifier) reloading() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.started && !n.stops {
		n.reloads = true
		_, _ = daemon.SdNotify(false, daemon.SdNotifyReloading+"\n"+daemon.SdNotifyMonotonicUsec())
	}
}

// reloaded says that the service goes on, with what it has.
func (n *notifier) reloaded() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.reloads && !n.stops {
		n.reloads = false
		_, _ = daemon.SdNotify(false, daemon.SdNotifyReady)
	}
}

// stopping says that the service drains.
func (n *notifier) stopping() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stops = true
	_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping+"\nSTATUS=draining")
}
