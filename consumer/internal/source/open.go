package source

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/relaymq/relay/internal/transient"
)

// The life of a source: its durable is looked at, made if it is missing, and opened; then it is pulled from, until relay
// drains or the durable is lost, and closed. One that cannot be opened is tried again; one whose durable is lost is taken over
// by another source when the durable is there again (reopen.go).

const (
	// SetupTimeout bounds a step of the start over all routes. Who is not through with it by then is set up later.
	SetupTimeout = 10 * time.Second
	// TryAgain is the longest pause before what is away is tried again.
	TryAgain = 5 * time.Second
	// LookAgain is the longest pause before a fault is looked at again.
	LookAgain = time.Minute
	// LookFor is how long the first looks at a stream and a durable may take that have no leader, and the longest pause between two of them.
	LookFor = 500 * time.Millisecond
)

// RestBefore is the longest pause before the next look.
func RestBefore(look *transient.Spans) time.Duration {
	if look.Early() {
		return LookFor
	}
	return TryAgain
}

// tried tells the unit that the source was opened, or could not be.
func (s *Source) tried() {
	if s.unit != nil {
		s.unit.Tried(s)
	}
}

// OpenLooked makes the durable if it is missing, and begins its session. The stream was there: that a server knows neither it nor the durable passes.
func (s *Source) OpenLooked(ctx context.Context) (err error) {
	defer func() { err = transient.Made(err) }()
	consumer := s.Setup.Have
	if consumer == nil {
		if !s.due {
			for _, a := range s.Setup.Again {
				s.log.Warn("the durable is new and delivers messages that were handled before", "again", a.String())
			}
			s.log.Info("making durable", "start", s.routes[0].Start.Text, "waiting", s.Setup.Waiting.Chosen)
		}
		if consumer, err = s.Setup.Make(ctx); err != nil {
			return err
		}
	} else {
		for _, a := range s.Setup.Again {
			s.log.Warn("the durable has passed messages that a route wants now; they are handed over, although they were handled before", "again", a.String())
		}
		if consumer, err = s.Setup.Use(ctx, consumer); err != nil {
			return err
		}
	}
	if s.leased() {
		if s.unit == nil || !s.unit.Tenure().Began() {
			return nil // when this instance has the claim
		}
		if err = s.newerGeneration(ctx); err != nil {
			return err
		}
		if err = s.unpin(ctx, s.Setup.On); err != nil {
			return err
		}
	}
	if err = s.open(ctx, s.Setup.On, consumer); err != nil {
		s.Close()
	}
	return err
}

// Await opens the source if it is not open yet, for as long as it takes. It returns false when ctx was done first.
func (s *Source) Await(ctx context.Context) bool {
	defer s.tried()
	if slices.Contains(s.in.Open(), s) {
		return true
	}
	what := fmt.Sprintf("durable %s on stream %s", s.durable, s.stream)
	var look transient.Spans
	for p := new(transient.Patience); ; {
		if err := s.Setup.Err; err != nil {
			for _, rt := range s.routes {
				rt.Troubles.Note(what, err, time.Now())
			}
			most := LookAgain
			if transient.Is(err) || s.Setup.LacksStream() {
				most = RestBefore(&look)
			}
			transient.Pause(ctx, p.Next(most))
		}
		select {
		case <-ctx.Done():
			return false
		case s.in.Late <- struct{}{}:
		}
		s.Setup.Err = s.OpenLate(ctx, look.Next(LookFor, SetupTimeout))
		<-s.in.Late
		if s.Setup.Err != nil {
			s.tried()
			continue
		}
		for _, rt := range s.routes {
			rt.Troubles.Mended(what, time.Now())
		}
		if !s.in.Include(s) {
			s.Close()
			return false
		}
		return true
	}
}

// OpenLate is a start of this source. look bounds the look at its stream and durable: once they have answered, they have leaders.
func (s *Source) OpenLate(ctx context.Context, look time.Duration) error {
	looking, cancel := context.WithTimeout(ctx, look)
	defer cancel()
	if err := s.in.Attempt(looking, s.Setup.Look); err != nil {
		return err
	}
	if refused, err := s.in.Prober.Try(ctx, s.Setup.Probes()); err != nil || len(refused) > 0 {
		return errors.Join(append(refused, err)...)
	}
	return s.in.Attempt(ctx, s.OpenLooked)
}
