package consumer

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

// Ready returns nil while everything works, and otherwise what does not: the connection, something of relay's own that is away or was changed from outside,
// a route that has not started, stopped or stalls, a durable that the server says nothing of, dead letters that cannot be
// stored. A relay that drains is not ready.
func (r *Relay) Ready() error {
	var errs []error
	if r.running.IsDraining() {
		errs = append(errs, errors.New("draining"))
	}
	if !r.nc.IsConnected() {
		errs = append(errs, fmt.Errorf("NATS: %s", strings.ToLower(r.nc.Status().String())))
	}
	if err := r.troubles.Err(); err != nil {
		errs = append(errs, err)
	}
	if err := r.upkeep.Err(time.Now()); err != nil {
		errs = append(errs, err)
	}
	sources := r.running.Sources()
	if len(sources) > 0 { // else it is not known yet
		if since, err := r.stores.Records.Trouble(); err != nil {
			errs = append(errs, fmt.Errorf("attempts cannot be recorded since %s: %w", since.UTC().Format(time.RFC3339), err))
		}
	}
	for _, s := range sources {
		if err := s.Trouble(); err != nil {
			errs = append(errs, fmt.Errorf("durable %s on %s: %w", s.Name, s.Stream, err))
		}
	}
	for _, rt := range r.routes.all() {
		err := rt.standstill.trouble()
		if err == nil {
			err = rt.standstill.stall.Err(r.cfg.Stalled, time.Now())
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("route %s: %w", rt.name(), err))
		}
	}
	if !r.phases.serving.Load() && len(errs) == 0 {
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
			for _, rt := range l.all() {
				rt.standstill.lookForStall(now)
			}
		}
	}
}

// lookForStall has the route looked at.
func (st *standstill) lookForStall(now time.Time) {
	begun := st.begun.Load()
	g := st.group.Status()
	saw := health.Starts{
		Begun: begun, Running: g.Running > 0, Paused: g.Paused, Limited: len(g.Limited) > 0, Here: g.Held, Stream: st.pending(now),
		Flows: g.State == supervise.Flowing, State: g.State.String(), Why: g.Why, Since: g.Since, Waiting: g.Window + g.StashMessages + g.Aside,
	}
	st.stall.Look(now, saw)
}

// pending is how many messages the durable of the route has not delivered, as the watchdog last heard. The server does not
// tell whose they are: while another route of the durable starts some, none count.
func (st *standstill) pending(now time.Time) (n uint64) {
	for _, s := range st.relay.running.Sources() {
		if !s.Serves(&st.source) || !s.Health.PausedUntil().IsZero() { // paused on the server: status says so
			continue
		}
		others := false
		for _, o := range s.Routes() {
			others = others || o != &st.source && now.Sub(time.Unix(0, o.Owner.(*route).standstill.begun.Load())) < st.relay.cfg.Stalled
		}
		if !others {
			n += s.Watchdog.Pending()
		}
	}
	return n
}
