package route

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/relaymq/relay/consumer/internal/health"
	"github.com/relaymq/relay/consumer/internal/operators"
	"github.com/relaymq/relay/consumer/internal/tenure"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/orders"
	"github.com/relaymq/relay/internal/supervise"
	"github.com/relaymq/relay/internal/trouble"
)

// Standstill is what keeps a route from starting messages, if anything does.
type Standstill struct {
	*Route
	Troubles  *trouble.List // why its durables are not open
	Successor succession
	begun     atomic.Int64 // when a handler was last started, in Unix nanoseconds
	stall     health.Stall
	stop      health.Stop
	paused    operators.Pause
}

// Condition is the state of the route, why, and since when if that is known. Of several reasons for nothing to start it is
// the one that lasts longest: a route that is stopped and paused is not mended by resume.
func (st *Standstill) Condition(g supervise.Status) (state, why string, since time.Time) {
	r := st.Home
	if r.IsDraining() {
		return control.StateDraining, "this instance is shutting down", time.Time{}
	}
	if since, err := st.stop.Now(); err != nil {
		return control.StateStopped, err.Error(), since
	}
	if state, why, since, yes := st.starting(); yes {
		return state, why, since
	}
	if state, why, since, yes := st.standing(); yes && r.Conn.IsConnected() {
		return state, why, since
	}
	for _, s := range r.OpenSources() {
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
	for _, s := range r.OpenSources() {
		if s.Serves(&st.Source) && !s.Due && !s.Health.PausedUntil().IsZero() {
			return control.StatePaused, "its durable is paused on the server (to resume it: nats consumer resume)", time.Time{}
		}
	}
	if since, why := st.stall.Lasting(r.Config.Stalled, time.Now()); why != "" && g.State == supervise.Flowing {
		return control.StateStalled, why, since
	}
	if why, since := st.limitedBy(g); why != "" {
		return control.StateLimited, why, since
	}
	return g.State.String(), g.Why, g.Since
}

// starting is the state of a route that is not pulled from yet, why, and since when: it starts while that may pass by itself, and
// is stopped when somebody has to mend it. It is tried again either way.
func (st *Standstill) starting() (state, why string, since time.Time, yes bool) {
	list := st.Troubles.All()
	if len(list) == 0 {
		if since, yes := st.Successor.waits(); yes {
			why := "the route was changed; handlers of its former version end first"
			if n := st.Successor.running(); n > 0 {
				why = fmt.Sprintf("the route was changed; handlers of its former version run until %s at most (%d left)", since.Add(st.Home.Phases.DrainTime()).UTC().Format(time.RFC3339), n)
			}
			return control.StateStarting, why, since, true
		}
		list = st.Home.Troubles.All()
		if st.Home.Phases.Serving.Load() {
			return "", "", time.Time{}, false
		}
		if len(list) == 0 {
			return control.StateStarting, "", st.Home.Phases.Since(), true
		}
	}
	state = control.StateStarting
	if t := list[0]; !t.Passes() {
		state = control.StateStopped
	}
	return state, list[0].Err.Error(), list[0].Since, true
}

// Obey follows an order of an operator.
func (st *Standstill) Obey(order orders.Order) { st.paused.Obey(order, st.Group, st.Log) }

// LookForStall has the route looked at.
func (st *Standstill) LookForStall(now time.Time) {
	begun := st.begun.Load()
	g := st.Group.Status()
	saw := health.Starts{
		Begun: begun, Running: g.Running > 0, Paused: g.Paused, Limited: len(g.Limited) > 0, Here: g.Held, Stream: st.pending(now),
		Flows: g.State == supervise.Flowing, State: g.State.String(), Why: g.Why, Since: g.Since, Waiting: g.Window + g.StashMessages + g.Aside,
	}
	st.stall.Look(now, saw)
}

// pending is how many messages the durable of the route has not delivered, as the watchdog last heard. The server does not
// tell whose they are: while another route of the durable starts some, none count.
func (st *Standstill) pending(now time.Time) (n uint64) {
	for _, s := range st.Home.OpenSources() {
		if !s.Serves(&st.Source) || !s.Health.PausedUntil().IsZero() { // paused on the server: status says so
			continue
		}
		others := false
		for _, o := range s.Routes() {
			others = others || o != &st.Source && now.Sub(time.Unix(0, o.Owner.(*Route).Standstill.begun.Load())) < st.Home.Config.Stalled
		}
		if !others {
			n += s.Watchdog.Pending()
		}
	}
	return n
}

// standing says that nothing starts here because another instance has the route, or because nobody can.
func (st *Standstill) standing() (state, why string, since time.Time, yes bool) {
	if p := st.Place.Load(); p != nil && st.Spec.Leased() {
		return p.Tenure.Standing()
	}
	return "", "", time.Time{}, false
}

// fail notes why the route is stopped; nil says that it is not any more.
func (st *Standstill) fail(err error) {
	switch st.stop.Note(err, time.Now()) {
	case health.Over:
		st.Log.Info("the route is no longer stopped")
	case health.Began:
		st.Log.Error("route stopped; its messages wait, and the route retries by itself", "error", err)
		st.Home.Reports.Stopped(st.Name(), err)
	case health.OtherReason:
		st.Log.Error("route is still stopped, for another reason", "error", err)
	}
}

// Trouble is why the route does not work, if so.
func (st *Standstill) Trouble() error {
	if err := st.Troubles.Err(); err != nil {
		return err
	}
	if st.Spec.Leased() {
		if since, err := tenure.Trouble(st.Home.Fleet); err != nil {
			return fmt.Errorf("stopped since %s: %w", since.UTC().Format(time.RFC3339), err)
		}
	}
	if _, err := st.stop.Now(); err != nil {
		return fmt.Errorf("stopped: %w", err)
	}
	if err := st.Path.Trouble(time.Now()); err != nil {
		return fmt.Errorf("cannot store dead letters: %w", err)
	}
	return st.stall.Err(st.Home.Config.Stalled, time.Now())
}
