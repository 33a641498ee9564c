package consumer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/relaymq/relay/internal/transient"
)

// The life of a source: its durable is looked at, made if it is missing, and opened; then it is pulled from, until relay
// drains or the durable is lost, and closed. One that cannot be opened is tried again; one whose durable is lost is taken over
// by another source when the durable is there again (reopen.go).

func sourcesOf(units []*unit) (list []*source) {
	for _, u := range units {
		list = append(append(list, u.main), u.dues...)
	}
	return list
}

// openLooked makes the durable if it is missing, and begins its session. The stream was there: that a server knows neither it nor the durable passes.
func (s *source) openLooked(ctx context.Context) (err error) {
	defer func() { err = transient.Made(err) }()
	consumer := s.setup.Have
	if consumer == nil {
		if !s.due {
			for _, a := range s.setup.Again {
				s.log.Warn("the durable is new and delivers messages that were handled before", "again", a.String())
			}
			s.log.Info("making durable", "start", s.routes[0].cfg.Start.String(), "waiting", s.setup.Waiting.Chosen)
		}
		if consumer, err = s.setup.Make(ctx); err != nil {
			return err
		}
	} else {
		for _, a := range s.setup.Again {
			s.log.Warn("the durable has passed messages that a route wants now; they are handed over, although they were handled before", "again", a.String())
		}
		if consumer, err = s.setup.Use(ctx, consumer); err != nil {
			return err
		}
	}
	if s.leased() {
		if s.unit == nil || !s.unit.tenure.Began() {
			return nil // when this instance has the claim
		}
		if err = s.newerGeneration(ctx); err != nil {
			return err
		}
		if err = s.unpin(ctx, s.setup.On); err != nil {
			return err
		}
	}
	if err = s.open(ctx, s.setup.On, consumer); err != nil {
		s.close()
	}
	return err
}

// live runs the sources of the unit, each when it is open, until its work is done. None is opened after its opening is done.
func (u *unit) live() {
	if !u.main.await(u.opening) {
		return
	}
	u.tally.Begin(u.work)
	var running sync.WaitGroup
	for _, due := range u.dues {
		running.Go(func() {
			if due.await(u.opening) {
				due.keepOpen(u.work)
			}
		})
	}
	u.main.keepOpen(u.work)
	running.Wait()
}

// await opens the source if it is not open yet, for as long as it takes. It returns false when ctx was done first.
func (s *source) await(ctx context.Context) bool {
	r := s.relay
	defer s.unit.wasTried(s)
	if slices.Contains(r.running.Sources(), s) {
		return true
	}
	what := fmt.Sprintf("durable %s on stream %s", s.durable, s.stream)
	var look transient.Spans
	for p := new(transient.Patience); ; {
		if err := s.setup.err; err != nil {
			for _, rt := range s.routes {
				rt.standstill.troubles.Note(what, err, time.Now())
			}
			most := lookAgain
			if transient.Is(err) || s.setup.lacksStream() {
				most = restBefore(&look)
			}
			transient.Pause(ctx, p.Next(most))
		}
		select {
		case <-ctx.Done():
			return false
		case r.running.late <- struct{}{}:
		}
		s.setup.err = s.openLate(ctx, look.Next(lookFor, setupTimeout))
		<-r.running.late
		s.unit.wasTried(s)
		if s.setup.err != nil {
			continue
		}
		for _, rt := range s.routes {
			rt.standstill.troubles.Mended(what, time.Now())
		}
		if !r.running.Include(s) {
			s.close()
			return false
		}
		return true
	}
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

// openLate is a start of this source. look bounds the look at its stream and durable: once they have answered, they have leaders.
func (s *source) openLate(ctx context.Context, look time.Duration) error {
	r := s.relay
	looking, cancel := context.WithTimeout(ctx, look)
	defer cancel()
	if err := r.attempt(looking, s.setup.Look); err != nil {
		return err
	}
	if err := checkPermissions(ctx, r.prober, []*source{s}); err != nil {
		return err
	}
	return r.attempt(ctx, s.openLooked)
}
