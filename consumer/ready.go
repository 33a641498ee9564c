package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/relaymq/relay/supervisor"
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
	r.mu.Lock()
	draining := r.draining
	r.mu.Unlock()
	if draining {
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
	sources := r.openSources()
	if len(sources) > 0 { // else it is not known yet
		if since, err := r.records.Trouble(); err != nil {
			errs = append(errs, fmt.Errorf("attempts cannot be recorded since %s: %w", since.UTC().Format(time.RFC3339), err))
		}
	}
	for _, s := range sources {
		if err := s.trouble(); err != nil {
			errs = append(errs, fmt.Errorf("durable %s on %s: %w", s.durable, s.stream, err))
		}
	}
	for _, rt := range r.all() {
		err := rt.trouble()
		if err == nil {
			err = rt.stalls.err(r.cfg.Stalled, time.Now())
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("route %s: %w", rt.name(), err))
		}
	}
	if !r.serving.Load() && len(errs) == 0 {
		errs = append(errs, errors.New("starting"))
	}
	return errors.Join(errs...)
}

// stalls tells whether a route starts nothing, or only what fails, although messages wait.
type stalls struct {
	begun int64     // of the last start that was seen
	since time.Time // it has started no message, or only what fails, and messages wait
	what  string    // which of the two
	why   string
}

// lockedStalls are those of a route, for whoever asks.
type lockedStalls struct {
	mu sync.Mutex
	stalls
}

// watchStalls looks at the routes until ctx is done.
func (r *Relay) watchStalls(ctx context.Context) {
	tick := time.NewTicker(min(stallEvery, r.cfg.Stalled/4))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			for _, rt := range r.all() {
				rt.lookForStall(now)
			}
		}
	}
}

// lookForStall notes whether nothing was started since the last look, nothing runs, and messages wait that no operator holds
// back. Parked messages wait for a time of their own, as do those that were given back.
func (rt *route) lookForStall(now time.Time) {
	begun := rt.begun.Load()
	g := rt.group.Status()
	held, stream := g.Held, rt.pending(now)
	limited := len(g.Limited) > 0 // status says by what
	rt.stalls.mu.Lock()
	defer rt.stalls.mu.Unlock()
	st := &rt.stalls.stalls
	if wait := g.Window + g.StashMessages + g.Aside; g.State != supervisor.Flowing && !g.Paused && wait > 0 {
		*st = stalls{
			begun: begun, since: g.Since, what: "it has started only messages that fail",
			why: fmt.Sprintf("%d messages wait; the route is %v: %s", wait, g.State, g.Why),
		}
		return
	}
	if began := begun != st.begun; began || g.Running > 0 || g.Paused || limited || held == 0 && stream == 0 {
		*st = stalls{begun: begun}
		return
	}
	if st.since.IsZero() {
		st.since = now
	}
	st.what = "it has started no message"
	st.why = fmt.Sprintf("%d messages wait here and %d in the stream", held, stream)
	if g.Why != "" {
		st.why += fmt.Sprintf("; the route is %v: %s", g.State, g.Why)
	}
}

// pending is how many messages the durable of the route has not delivered, as the watchdog last heard. The server does not
// tell whose they are: while another route of the durable starts some, none count.
func (rt *route) pending(now time.Time) (n uint64) {
	for _, s := range rt.relay.openSources() {
		if !s.serves(rt) || !s.health.PausedUntil().IsZero() { // paused on the server: status says so
			continue
		}
		others := false
		for _, o := range s.routes {
			others = others || o != rt && now.Sub(time.Unix(0, o.begun.Load())) < rt.relay.cfg.Stalled
		}
		if !others {
			n += s.watchdog.pending.Load()
		}
	}
	return n
}

func (l *lockedStalls) err(most time.Duration, now time.Time) error {
	since, why := l.lasting(most, now)
	if why == "" {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Errorf("%s since %s: %s", l.what, since.UTC().Format(time.RFC3339), why)
}

// lasting is since when and why it has lasted for that long; empty when it has not.
func (l *lockedStalls) lasting(most time.Duration, now time.Time) (since time.Time, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since.IsZero() || now.Sub(l.since) < most {
		return time.Time{}, ""
	}
	return l.since, l.why
}
