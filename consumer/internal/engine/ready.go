package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
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
	if err := r.Troubles.Err(); err != nil {
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
		if err := rt.Standstill.Trouble(); err != nil {
			errs = append(errs, fmt.Errorf("route %s: %w", rt.Name(), err))
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
				rt.Standstill.LookForStall(now)
			}
		}
	}
}
