package route

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/consumer/internal/health"
	"github.com/relaymq/relay/consumer/internal/operators"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/supervise"
	"github.com/relaymq/relay/internal/trouble"
)

// standstill is what keeps a route from starting messages, if anything does.
type Standstill struct {
	*Route
	Troubles  *trouble.List // why its durables are not open
	Successor succession
	begun     atomic.Int64 // when a handler was last started, in Unix nanoseconds
	Stall     health.Stall
	stop      health.Stop
	paused    operators.Pause
}

// condition is the state of the route, why, and since when if that is known. Of several reasons for nothing to start it is
// the one that lasts longest: a route that is stopped and paused is not mended by resume.
func (st *Standstill) Condition(g supervise.Status) (state, why string, since time.Time) {
	r := st.Home
	if r.Drains() {
		return control.StateDraining, "this instance is shutting down", time.Time{}
	}
	if since, err := st.stop.Now(); err != nil {
		return control.StateStopped, err.Error(), since
	}
	if state, why, since, yes := st.Starting(); yes {
		return state, why, since
	}
	if state, why, since, yes := st.standing(); yes && r.Conn.IsConnected() {
		return state, why, since
	}
	for _, s := range r.Open() {
		if err := s.Trouble(); err != nil && s.Serves(&st.Source) && !s.Due && !s.Health.MerelyEdited() {
			return control.StateStopped, fmt.Sprintf("durable %s on %s: %v", s.Name, s.Stream, err), s.Health.LostSince()
		}
		if s.Serves(&st.Source) && !s.Due && s.Health.IsEdited() {
			return control.StateStopped, "its durable was edited (the trouble of this instance says how)", time.Time{}
		}
	}
	switch paused := st.paused.Order(); {
	case !r.Conn.IsConnected():
		return control.StateDisconnected, "NATS: " + strings.ToLower(r.Conn.Status().String()), time.Time{}
	case paused != nil:
		return control.StatePaused, operators.Reason(*paused), paused.At
	}
	for _, s := range r.Open() {
		if s.Serves(&st.Source) && !s.Due && !s.Health.PausedUntil().IsZero() {
			return control.StatePaused, "its durable is paused on the server (to resume it: nats consumer resume)", time.Time{}
		}
	}
	if since, why := st.Stall.Lasting(r.Config.Stalled, time.Now()); why != "" && g.State == supervise.Flowing {
		return control.StateStalled, why, since
	}
	if why, since := st.limitedBy(g); why != "" {
		return control.StateLimited, why, since
	}
	return g.State.String(), g.Why, g.Since
}

// starting is the state of a route that is not pulled from yet, why, and since when: it starts while that may pass by itself, and
// is stopped when somebody has to mend it. It is tried again either way.
func (st *Standstill) Starting() (state, why string, since time.Time, yes bool) {
	list := st.Troubles.All()
	if len(list) == 0 {
		if since, yes := st.Successor.waits(); yes {
			why := "the route was changed; handlers of its former version end first"
			if n := st.Successor.running(); n > 0 {
				why = fmt.Sprintf("the route was changed; handlers of its former version run until %s at most (%d left)", since.Add(st.Home.Phases.DrainTime()).UTC().Format(time.RFC3339), n)
			}
			return "starting", why, since, true
		}
		list = st.Home.Troubles.All()
		if st.Home.Phases.Serving.Load() {
			return "", "", time.Time{}, false
		}
		if len(list) == 0 {
			return "starting", "", st.Home.Phases.Since(), true
		}
	}
	state = "starting"
	if t := list[0]; !t.Passes() {
		state = "stopped"
	}
	return state, list[0].Err.Error(), list[0].Since, true
}
