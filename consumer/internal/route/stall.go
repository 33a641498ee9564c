package route

import (
	"time"

	"github.com/relaymq/relay/consumer/internal/health"
	"github.com/relaymq/relay/internal/supervise"
)

// lookForStall has the route looked at.
func (st *Standstill) LookForStall(now time.Time) {
	begun := st.begun.Load()
	g := st.Group.Status()
	saw := health.Starts{
		Begun: begun, Running: g.Running > 0, Paused: g.Paused, Limited: len(g.Limited) > 0, Here: g.Held, Stream: st.pending(now),
		Flows: g.State == supervise.Flowing, State: g.State.String(), Why: g.Why, Since: g.Since, Waiting: g.Window + g.StashMessages + g.Aside,
	}
	st.Stall.Look(now, saw)
}

// pending is how many messages the durable of the route has not delivered, as the watchdog last heard. The server does not
// tell whose they are: while another route of the durable starts some, none count.
func (st *Standstill) pending(now time.Time) (n uint64) {
	for _, s := range st.Home.Open() {
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
