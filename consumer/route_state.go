package consumer

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

// The states of a route on an instance. Only in the first do all messages start as they come.
const (
	RouteFlowing      = control.StateFlowing
	RouteStarting     = control.StateStarting     // or waiting for something that is away
	RouteWaiting      = control.StateWaiting      // for its backoff
	RouteProbing      = control.StateProbing      // one message at a time
	RoutePaused       = control.StatePaused       // by an operator
	RouteSuspended    = control.StateSuspended    // nearly all was dead: it asks with a few messages, until one succeeds
	RouteStopped      = control.StateStopped      // something has to be mended
	RouteStalled      = control.StateStalled      // messages wait, and none has started for a while
	RouteDisconnected = control.StateDisconnected // from NATS
	RouteLimited      = control.StateLimited      // messages wait for room in a limit; as many as it allows start
	RouteStandby      = control.StateStandby      // another instance has it
	RouteDraining     = control.StateDraining     // the instance ends
)

// standstill is what keeps a route from starting messages, if anything does.
type standstill struct {
	*route
	troubles  *trouble.List // why its durables are not open
	successor succession
	begun     atomic.Int64 // when a handler was last started, in Unix nanoseconds
	stall     health.Stall
	stop      health.Stop
	paused    operators.Pause
}

// condition is the state of the route, why, and since when if that is known. Of several reasons for nothing to start it is
// the one that lasts longest: a route that is stopped and paused is not mended by resume.
func (st *standstill) condition(g supervise.Status) (state, why string, since time.Time) {
	r := st.relay
	if r.running.IsDraining() {
		return RouteDraining, "this instance is shutting down", time.Time{}
	}
	if since, err := st.stop.Now(); err != nil {
		return RouteStopped, err.Error(), since
	}
	if state, why, since, yes := st.starting(); yes {
		return state, why, since
	}
	if state, why, since, yes := st.standing(); yes && r.nc.IsConnected() {
		return state, why, since
	}
	for _, s := range r.running.Sources() {
		if err := s.Trouble(); err != nil && s.Serves(&st.source) && !s.Due && !s.Health.MerelyEdited() {
			return RouteStopped, fmt.Sprintf("durable %s on %s: %v", s.Name, s.Stream, err), s.Health.LostSince()
		}
		if s.Serves(&st.source) && !s.Due && s.Health.IsEdited() {
			return RouteStopped, "its durable was edited (the trouble of this instance says how)", time.Time{}
		}
	}
	switch paused := st.paused.Order(); {
	case !r.nc.IsConnected():
		return RouteDisconnected, "NATS: " + strings.ToLower(r.nc.Status().String()), time.Time{}
	case paused != nil:
		return RoutePaused, operators.Reason(*paused), paused.At
	}
	for _, s := range r.running.Sources() {
		if s.Serves(&st.source) && !s.Due && !s.Health.PausedUntil().IsZero() {
			return RoutePaused, "its durable is paused on the server (to resume it: nats consumer resume)", time.Time{}
		}
	}
	if since, why := st.stall.Lasting(r.cfg.Stalled, time.Now()); why != "" && g.State == supervise.Flowing {
		return RouteStalled, why, since
	}
	if why, since := st.limitedBy(g); why != "" {
		return RouteLimited, why, since
	}
	return g.State.String(), g.Why, g.Since
}

// starting is the state of a route that is not pulled from yet, why, and since when: it starts while that may pass by itself, and
// is stopped when somebody has to mend it. It is tried again either way.
func (st *standstill) starting() (state, why string, since time.Time, yes bool) {
	list := st.troubles.All()
	if len(list) == 0 {
		if since, yes := st.successor.waits(); yes {
			why := "the route was changed; handlers of its former version end first"
			if n := st.successor.running(); n > 0 {
				why = fmt.Sprintf("the route was changed; handlers of its former version run until %s at most (%d left)", since.Add(st.relay.phases.drainTime()).UTC().Format(time.RFC3339), n)
			}
			return "starting", why, since, true
		}
		list = st.relay.troubles.All()
		if st.relay.phases.serving.Load() {
			return "", "", time.Time{}, false
		}
		if len(list) == 0 {
			return "starting", "", st.relay.phases.since(), true
		}
	}
	state = "starting"
	if t := list[0]; !t.Passes() {
		state = "stopped"
	}
	return state, list[0].Err.Error(), list[0].Since, true
}
