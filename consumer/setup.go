package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/dlq"
	"github.com/relaymq/relay/internal/permission"
	"github.com/relaymq/relay/internal/subject"
)

// setUp makes, or finds, everything that the routes need, and finds what cannot work. A route whose durable exists with
// other settings is stopped alone; any other fault ends the whole start.
func (r *Relay) setUp(ctx context.Context) error {
	unwatched := ctx
	ctx, stop := permission.Watch(ctx, r.nc)
	defer stop()
	if err := CheckJetStream(ctx, r.js); err != nil {
		return permitted(ctx, err)
	}
	if err := r.ownStreams(ctx); err != nil {
		return permitted(ctx, &SetupError{Err: err})
	}
	sources, faults := r.plan(ctx)
	for _, rt := range r.routes {
		if c, ok := rt.cfg.Handler.(Checker); ok {
			if err := c.Check(ctx); err != nil {
				faults = append(faults, &SetupError{rt.cfg.Name, fmt.Errorf("handler: %w", err)})
			}
		}
	}
	var opened []*source
	for _, s := range sources {
		if s.due && s.routes[0].trouble() != nil {
			continue // its route does not run: leave the due durable to whoever won
		}
		err := r.openSource(ctx, s)
		var differs *DurableDiffers
		switch {
		case errors.As(err, &differs):
			for _, rt := range s.routes {
				rt.fail(differs)
			}
		case err != nil:
			faults = append(faults, &SetupError{s.routes[0].cfg.Name, err})
		default:
			opened = append(opened, s)
		}
	}
	if err := permitted(ctx, nil); err != nil {
		faults = []error{err} // what came after it failed for the same reason
	} else {
		stop() // violations are what it looks for
		faults = append(faults, r.checkPermissions(unwatched, opened)...)
	}
	if len(faults) == 0 && !slices.ContainsFunc(r.routes, func(rt *route) bool { return rt.trouble() == nil }) {
		for _, rt := range r.routes {
			faults = append(faults, &SetupError{rt.cfg.Name, rt.trouble()})
		}
	}
	r.sources.Store(&opened)
	if len(faults) > 0 {
		r.closeSources()
	}
	return errors.Join(faults...)
}

// closeSources ends what setUp opened, when Run cannot go on.
func (r *Relay) closeSources() {
	for _, s := range r.openSources() {
		s.close()
	}
	r.sources.Store(nil)
}

// openSources are those that are running; none before set-up is done.
func (r *Relay) openSources() []*source {
	if list := r.sources.Load(); list != nil {
		return *list
	}
	return nil
}

// CheckJetStream asks whether there is JetStream for this account. The error is a *[SetupError] that says what to do.
func CheckJetStream(ctx context.Context, js jetstream.JetStream) error {
	if _, err := js.AccountInfo(ctx); err != nil {
		return &SetupError{Err: fmt.Errorf("JetStream: %w%s", err, hint(err))}
	}
	return nil
}

// permitted is what ended ctx, if that was a missing permission, and else err.
func permitted(ctx context.Context, err error) error {
	var v *permission.Error
	if errors.As(context.Cause(ctx), &v) {
		return &SetupError{Err: v}
	}
	return err
}

func hint(err error) string {
	switch {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled):
		return " (start nats-server with -js)"
	case errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return " (enable it for this account)"
	case errors.Is(err, context.DeadlineExceeded):
		return " (no answer; is the account permitted to use $JS.API.> and _INBOX.>?)"
	}
	return ""
}

// ownStreams makes the streams and buckets of relay itself.
func (r *Relay) ownStreams(ctx context.Context) (err error) {
	if r.retries, err = ack.OpenRetryStream(ctx, r.js, r.cfg.Service, r.retryStreamName(), r.cfg.Replicas); err != nil {
		return err
	}
	if r.records, err = ack.OpenBucket(ctx, r.js, r.attemptsName(), r.cfg.Replicas); err != nil {
		return err
	}
	if len(r.solo.groups) > 0 {
		if r.lives, err = openLives(ctx, r); err != nil {
			return err
		}
	}
	var prefixes []string
	for _, rt := range r.routes {
		if p := rt.cfg.DeadLetter.Prefix; p != "" && p != r.cfg.Service+".dlq" && !slices.Contains(prefixes, p) {
			prefixes = append(prefixes, p)
		}
	}
	r.dead, err = dlq.Open(ctx, r.js, dlq.Config{
		Service: r.cfg.Service, Replicas: r.cfg.Replicas, Prefixes: prefixes, Instance: r.cfg.Instance, Logger: r.log,
		MaxAge: r.cfg.DLQ.MaxAge, MaxBytes: r.cfg.DLQ.MaxBytes, OnFull: r.cfg.DLQ.OnFull,
	})
	return err
}

// plan finds the stream of each route, and which routes share a durable.
func (r *Relay) plan(ctx context.Context) (sources []*source, faults []error) {
	for _, rt := range r.routes {
		stream, err := r.streamOf(ctx, rt.cfg)
		if err != nil {
			faults = append(faults, &SetupError{rt.cfg.Name, err})
			continue
		}
		i := slices.IndexFunc(sources, func(s *source) bool {
			return !s.due && s.stream == stream && s.durable == rt.cfg.Durable
		})
		if i < 0 {
			i = len(sources)
			sources = append(sources, newSource(r, stream, rt.cfg.Durable, false))
		}
		for _, s := range sources {
			if s.due || s.stream != stream {
				continue
			}
			faults = append(faults, overlaps(s, rt, s == sources[i])...)
		}
		sources[i].add(rt, rt.cfg.Subjects...)

		due := newSource(r, r.retries.Name(), rt.cfg.Name, true)
		due.add(rt, r.retries.DueSubjects(rt.cfg.Name))
		sources = append(sources, due)
	}
	return sources, faults
}

// overlaps finds subjects of rt that another route of the stream handles too. Routes that share a durable may overlap,
// since the most specific one gets the message, but not be equal.
func overlaps(s *source, rt *route, shared bool) (faults []error) {
	for _, d := range s.patterns {
		for _, p := range rt.cfg.Subjects {
			if shared && subject.Compare(d.pattern, p) != 0 || !subject.Overlaps(d.pattern, p) {
				continue
			}
			faults = append(faults, &SetupError{rt.cfg.Name, fmt.Errorf(
				"subjects: %q overlaps %q of route %s on the same stream: both would handle the same messages; give them the same durable to have the more specific one handle each",
				p, d.pattern, d.route.cfg.Name)})
		}
	}
	return faults
}

// streamOf is the one stream that holds all subjects of the route.
func (r *Relay) streamOf(ctx context.Context, rt Route) (string, error) {
	if rt.Stream != "" {
		return rt.Stream, nil
	}
	found := ""
	for _, subj := range rt.Subjects {
		name, err := r.js.StreamNameBySubject(ctx, subj)
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			return "", fmt.Errorf("no stream holds subject %q: add one under streams, or make it with: nats stream add", subj)
		case err != nil:
			return "", fmt.Errorf("looking for the stream of %q: %w", subj, err)
		case found != "" && found != name:
			return "", fmt.Errorf("subjects are on two streams, %s and %s: make it two routes", found, name)
		}
		found = name
	}
	return found, nil
}

// openSource finds or makes the durable of a source and begins its session.
func (r *Relay) openSource(ctx context.Context, s *source) error {
	stream, err := r.js.Stream(ctx, s.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("stream %s does not exist: add it under streams, or make it with: nats stream add %s", s.stream, s.stream)
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", s.stream, err)
	}
	for _, risk := range s.risks(stream.CachedInfo().Config) {
		s.log.Warn("the stream can lose messages that wait: " + risk)
	}
	want := s.wanted(stream.CachedInfo().Config.Subjects)
	consumer, err := stream.Consumer(ctx, s.durable)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		consumer, err = s.create(ctx, stream, want)
	case errors.Is(err, jetstream.ErrNotPullConsumer):
		return &DurableDiffers{s.stream, s.durable, []string{"it is a push consumer"}}
	case err == nil:
		consumer, err = s.compare(ctx, stream, consumer, want)
	}
	if err != nil {
		return err
	}
	return s.open(ctx, consumer, stream.CachedInfo().Created)
}
