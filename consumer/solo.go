package consumer

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/supervisor"
)

// soloSlice is how long suspects may keep the others waiting at a stretch, the run that is then under way apart. The others
// get as long in turn.
const soloSlice = time.Second

// solo runs the suspects of all guarded routes of the process, one at a time, while nothing else runs in it.
type solo struct {
	groups []*supervisor.Group
	kicked chan struct{}
	// certain: no handler that was given up runs on, so that whatever ends the process is the message that runs.
	certain atomic.Bool
}

func newSolo() *solo { return &solo{kicked: make(chan struct{}, 1)} }

// kick says that a suspect waits, or that nothing runs any more. It does not block.
func (s *solo) kick() {
	select {
	case s.kicked <- struct{}{}:
	default:
	}
}

// run serves until ctx is done.
func (s *solo) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.kicked:
		}
		began := time.Now()
		s.phase(ctx)
		s.rest(ctx, time.Since(began))
	}
}

// phase holds all groups, waits until nothing runs, which the timeouts of the routes bound, and runs suspects for a slice.
func (s *solo) phase(ctx context.Context) {
	for _, g := range s.groups {
		g.Hold()
	}
	defer func() {
		for _, g := range s.groups {
			g.Release()
		}
	}()
	if !s.calm(ctx) {
		return
	}
	for began := time.Now(); time.Since(began) < soloSlice && s.start(); {
		if !s.calm(ctx) {
			return
		}
	}
}

func (s *solo) start() bool {
	for _, g := range s.groups {
		if g.StartAlone() {
			return true
		}
	}
	return false
}

// calm waits until nothing runs. It returns false when ctx was done first.
func (s *solo) calm(ctx context.Context) bool {
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for {
		if running, stuck := s.busy(); running == 0 {
			s.certain.Store(stuck == 0)
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-s.kicked:
		case <-look.C:
		}
	}
}

func (s *solo) busy() (running, stuck int) {
	for _, g := range s.groups {
		r, st := g.Busy()
		running, stuck = running+r, stuck+st
	}
	return running, stuck
}

// rest leaves the process to the others for a while, unless they have nothing to do.
func (s *solo) rest(ctx context.Context, d time.Duration) {
	const step = 10 * time.Millisecond
	for until := time.Now().Add(min(d, soloSlice)); time.Now().Before(until) && ctx.Err() == nil; {
		pause(ctx, step)
		if running, _ := s.busy(); running == 0 {
			return
		}
	}
}
