package supervise

import "time"

// ramp bounds what runs after a route came to flow again: twice as much with each success. What began before that runs beside it.
type ramp struct {
	closed bool // the route does not flow: keys have no turns
	// most is how many of those that began since the route flows may run at once; 0: no bound. It doubles with each success,
	// and at upAt if there is none: those that run may hang.
	most  int
	upAt  time.Time
	epoch int32 // counts how often the route came to flow
	old   int   // of what runs, handlers and factories that began before that
}

// rampEvery is when the ramp goes on without a success.
const rampEvery = time.Second

// reopen begins with so many, beside those that run.
func (s *slots) reopen(most int) {
	s.ramp = ramp{most: most, upAt: s.now.Add(rampEvery), epoch: s.epoch + 1, old: s.busy()}
	s.alarm.arm(s.upAt)
}

// rampUp lets twice as many run at once.
func (s *slots) rampUp() {
	if s.most == 0 {
		return
	}
	if s.most *= 2; s.most >= s.all {
		s.most = 0
		return
	}
	s.upAt = s.now.Add(rampEvery)
	s.alarm.arm(s.upAt)
}

// attendRamp goes on with it when no success came.
func (s *slots) attendRamp() {
	switch {
	case s.most == 0:
	case s.now.Before(s.upAt):
		s.alarm.arm(s.upAt)
	default:
		s.rampUp()
	}
}

// of is how many of all slots may be used now.
func (p *ramp) of(all int) int {
	if p.closed || p.most == 0 {
		return all
	}
	return min(p.most+p.old, all)
}

// ended counts out what began in another epoch.
func (p *ramp) ended(epoch int32) {
	if epoch != p.epoch && p.old > 0 {
		p.old--
	}
}
