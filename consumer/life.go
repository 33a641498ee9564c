package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/away"
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

// setup is what is known of a source before it is open.
type setup struct {
	err      error // why it is not
	stream   jetstream.Stream
	want     jetstream.ConsumerConfig
	have     jetstream.Consumer // nil: it is to be made
	waiting  waiting            // then
	again    []Again            // what it brings that was handled before
	made     bool               // by this start
	lookedAt bool               // once: what is said of a stream is said once
}

// differs is why the durable cannot be used as it is, if so.
func (s *source) differs() *DurableDiffers {
	var d *DurableDiffers
	errors.As(s.setup.err, &d)
	return d
}

// lacksStream tells whether its stream does not exist.
func (s *source) lacksStream() bool {
	var m *missingStream
	return errors.As(s.setup.err, &m)
}

// waits tells whether the source may be set up later, while others run.
func (s *source) waits() bool { return away.Is(s.setup.err) || s.differs() != nil || s.lacksStream() }

// missingStream says that there is no stream of that name.
type missingStream struct {
	name string
	err  error
}

func (e *missingStream) Error() string {
	return fmt.Sprintf("stream %s does not exist: add it under streams, or make it with: nats stream add %s", e.name, e.name)
}

func (e *missingStream) Unwrap() error { return e.err }

// look finds out what is to be done to open the source, and whether it can work. It changes nothing.
func (s *source) look(ctx context.Context) error {
	stream, err := s.relay.js.Stream(ctx, s.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if s.due {
			return fmt.Errorf("stream %s: %w", s.stream, away.Made(err)) // relay made it a moment ago
		}
		return &missingStream{s.stream, err}
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", s.stream, err)
	}
	s.setup.stream, s.setup.have, s.setup.want = stream, nil, s.provided().Wanted(stream.CachedInfo().Config.Subjects)
	if !s.setup.lookedAt {
		s.setup.lookedAt = true
		for _, risk := range s.risks(stream.CachedInfo().Config) {
			s.log.Warn("the stream can lose messages that wait: " + risk)
		}
	}
	consumer, err := stream.Consumer(ctx, s.durable)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		if s.setup.waiting, err = s.mayCreate(ctx, stream, s.setup.want); err == nil && s.setup.waiting.chosen > 0 {
			s.setup.again, err = s.again(ctx, stream, s.setup.want, s.setup.waiting)
		}
		return err
	case errors.Is(err, jetstream.ErrNotPullConsumer):
		return &DurableDiffers{s.stream, s.durable, []string{"it is a push consumer"}}
	case err != nil:
		return fmt.Errorf("durable %s on stream %s: %w", s.durable, s.stream, err)
	}
	s.setup.have = consumer
	if err := s.mayUse(stream, consumer); err != nil {
		return err
	}
	if err = s.mayWiden(ctx, stream, consumer.CachedInfo().Config); err == nil {
		var again []Again
		if again, err = s.passedAgain(ctx, stream, consumer.CachedInfo().Config); len(again) > 0 {
			s.setup.again = again
		}
	}
	return err
}

// openLooked makes the durable if it is missing, and begins its session. The stream was there: that a server knows neither it nor the durable passes.
func (r *Relay) openLooked(s *source, ctx context.Context) (err error) {
	defer func() { err = away.Made(err) }()
	consumer := s.setup.have
	if consumer == nil {
		if !s.due {
			for _, a := range s.setup.again {
				s.log.Warn("the durable is made, and delivers messages that were handled before", "again", a.String())
			}
			s.log.Info("making durable", "start", s.routes[0].cfg.Start.String(), "waiting", s.setup.waiting.chosen)
		}
		if consumer, s.setup.made, err = s.makeOrCompare(ctx, s.setup.stream, s.setup.want); err != nil {
			return err
		}
	} else {
		for _, a := range s.setup.again {
			s.log.Warn("the durable has passed messages that a route wants now, and that were handled before: they are handed over", "again", a.String())
		}
		if consumer, err = s.compare(ctx, s.setup.stream, consumer); err != nil {
			return err
		}
	}
	if s.leased() {
		if s.unit == nil || s.unit.tenure.lease.Load() == nil {
			return nil // when this instance has the claim
		}
		if err = s.newerGeneration(ctx); err != nil {
			return err
		}
		if err = s.takeOver(ctx, s.setup.stream); err != nil {
			return err
		}
	}
	if err = s.open(ctx, s.setup.stream, consumer); err != nil {
		s.close()
	}
	return err
}

// unmake removes a durable that a start made which then failed, unless another instance uses it by now.
func (s *source) unmake(ctx context.Context) error {
	if !s.setup.made {
		return nil
	}
	consumer, err := s.setup.stream.Consumer(ctx, s.durable)
	if err != nil {
		return err
	}
	i := consumer.CachedInfo()
	if !i.Created.Equal(s.identity.ConsumerCreated) || i.NumWaiting > 0 || i.Delivered.Consumer > 0 {
		return nil
	}
	if err = s.setup.stream.DeleteConsumer(ctx, s.durable); err == nil {
		s.log.Info("removed the durable that was made: the start failed")
	}
	return err
}

// live runs the sources of a unit, each when it is open, until ctx is done. None is opened after stop is done.
func (r *Relay) live(ctx, stop context.Context, u *unit) {
	if !r.await(stop, u.main) {
		return
	}
	u.tally.begin(ctx)
	var running sync.WaitGroup
	for _, due := range u.dues {
		running.Go(func() {
			if r.await(stop, due) {
				r.keepOpen(ctx, due)
			}
		})
	}
	r.keepOpen(ctx, u.main)
	running.Wait()
}

// await opens a source that is not open yet, for as long as it takes. It returns false when ctx was done first.
func (r *Relay) await(ctx context.Context, s *source) bool {
	defer s.unit.wasTried(s)
	if slices.Contains(r.openSources(), s) {
		return true
	}
	what := fmt.Sprintf("durable %s on stream %s", s.durable, s.stream)
	for p := new(away.Patience); ; {
		if err := s.setup.err; err != nil {
			for _, rt := range s.routes {
				rt.troubles.note(what, err, time.Now())
			}
			most := lookAgain
			if away.Is(err) || s.lacksStream() {
				most = tryAgain
			}
			pause(ctx, p.Next(most))
		}
		select {
		case <-ctx.Done():
			return false
		case r.opening <- struct{}{}:
		}
		s.setup.err = r.openLate(ctx, s)
		<-r.opening
		s.unit.wasTried(s)
		if s.setup.err != nil {
			continue
		}
		for _, rt := range s.routes {
			rt.troubles.mended(what, time.Now())
		}
		if !r.include(s) {
			s.close()
			return false
		}
		return true
	}
}

// formerlyRunning is how many handlers still run of the route that this one replaces and waits for.
func (rt *route) formerlyRunning() int {
	if before := rt.former.Load(); before != nil {
		return before.group.Status().Running
	}
	return 0
}

// starting is the state of a route that is not pulled from yet, why, and since when: it starts while that may pass by itself, and
// is stopped when somebody has to mend it. It is tried again either way.
func (rt *route) starting() (state, why string, since time.Time, yes bool) {
	list := rt.troubles.all()
	if len(list) == 0 {
		if follows := rt.follows.Load(); follows != 0 {
			since := time.Unix(0, follows)
			why := "it was changed, and handlers of what it was before end first"
			if n := rt.formerlyRunning(); n > 0 {
				why = fmt.Sprintf("it was changed: handlers of before run until %s at most (%d)", since.Add(rt.relay.drainTime()).UTC().Format(time.RFC3339), n)
			}
			return "starting", why, since, true
		}
		list = rt.relay.troubles.all()
		if rt.relay.serving.Load() {
			return "", "", time.Time{}, false
		}
		if len(list) == 0 {
			return "starting", "", rt.relay.since(), true
		}
	}
	state = "starting"
	if t := list[0]; !t.passes() {
		state = "stopped"
	}
	return state, list[0].err.Error(), list[0].since, true
}

// openLate is a start of one source.
func (r *Relay) openLate(ctx context.Context, s *source) error {
	if err := r.attempt(ctx, s.look); err != nil {
		return err
	}
	if err := r.checkPermissions(ctx, []*source{s}, false); err != nil {
		return err
	}
	return r.attempt(ctx, func(ctx context.Context) error { return r.openLooked(s, ctx) })
}

// include adds a source to those that are pulled from. It returns false when relay or the unit drains.
func (r *Relay) include(s *source) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining || s.unit != nil && s.unit.closing {
		return false
	}
	list := append(slices.Clone(r.openSources()), s)
	r.sources.Store(&list)
	if s.unit != nil {
		list := append(slices.Clone(s.unit.open()), s)
		s.unit.running.Store(&list)
	}
	return true
}

// closeSources ends what was opened, when Run cannot go on.
func (r *Relay) closeSources() {
	for _, s := range r.openSources() {
		s.close()
	}
	r.sources.Store(nil)
}

// openSources are those that are running.
func (r *Relay) openSources() []*source {
	if list := r.sources.Load(); list != nil {
		return *list
	}
	return nil
}
