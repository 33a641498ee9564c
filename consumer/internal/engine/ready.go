package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/relaymq/relay/consumer/internal/health"
	"github.com/relaymq/relay/internal/supervise"
)

// Readiness says whether messages that wait would be handled, and if not, why and since when.

const (
	// stallEvery is how often routes are looked at, at most.
	stallEvery = 5 * time.Second
)

// Ready returns nil while everything works, and otherwise what does not.
func (r *Engine) Ready() error {
	var errs []error
	if r.Running.IsDraining() {
		errs = append(errs, errors.New("draining"))
	}
	if !r.Conn.IsConnected() {
		errs = append(errs, fmt.Errorf("NATS: %s", strings.ToLower(r.Conn.Status().String())))
	}
	if err := r.troubles.Err(); err != nil {
		errs = append(errs, err)
	}
	if err := r.Upkeep.Err(time.Now()); err != nil {
		errs = append(errs, err)
	}
	sources := r.Running.Sources()
	if len(sources) > 0 { // else it is not known yet
		if since, err := r.Stores.Records.Trouble(); err != nil {
			errs = append(errs, fmt.Errorf("attempts cannot be recorded since %s: %w", since.UTC().Format(time.RFC3339), err))
		}
	}
	for _, s := range sources {
		if err := s.Trouble(); err != nil {
			errs = append(errs, fmt.Errorf("durable %s on %s: %w", s.Name, s.Stream, err))
		}
	}
	for _, rt := range r.Routes.All() {
		err := rt.Standstill.trouble()
		if err == nil {
			err = rt.Standstill.stall.Err(r.Config.Stalled, time.Now())
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("route %s: %w", rt.name(), err))
		}
	}
	if !r.Phases.Serving.Load() && len(errs) == 0 {
		errs = append(errs, errors.New("starting"))
	}
	return errors.Join(errs...)
}

// watchStalls looks at the routes until ctx is done.
func (l *routeList) watchStalls(ctx context.Context, stalled time.Duration) {
	tick := time.NewTicker(min(stallEvery, stalled/4))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			for _, rt := range l.All() {
				rt.Standstill.lookForStall(now)
			}
		}
	}
}

// lookForStall has the route looked at.
func (st *standstill) lookForStall(now time.Time) {
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
func (st *standstill) pending(now time.Time) (n uint64) {
	for _, s := range st.Engine.Running.Sources() {
		if !s.Serves(&st.Source) || !s.Health.PausedUntil().IsZero() { // paused on the server: status says so
			continue
		}
		others := false
		for _, o := range s.Routes() {
			others = others || o != &st.Source && now.Sub(time.Unix(0, o.Owner.(*Route).Standstill.begun.Load())) < st.Engine.Config.Stalled
		}
		if !others {
			n += s.Watchdog.Pending()
		}
	}
	return n
}
