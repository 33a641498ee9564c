package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

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

// maxAckPending is set on every durable. Delayed NAKs count against it, and it holds no memory by itself.
const maxAckPending = 65_536

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

// wanted is the configuration of the durable.
func (s *source) wanted(streamSubjects []string) jetstream.ConsumerConfig {
	rt := s.routes[0].cfg
	c := jetstream.ConsumerConfig{
		Durable:       s.durable,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       rt.AckWait,
		MaxDeliver:    -1,
		MaxAckPending: maxAckPending,
		MaxWaiting:    maxWaiting,
		DeliverPolicy: jetstream.DeliverAllPolicy,
	}
	var patterns []string
	for _, d := range s.patterns {
		covered := slices.ContainsFunc(s.patterns, func(o dispatch) bool {
			return o.pattern != d.pattern && subject.Covers(o.pattern, d.pattern)
		})
		if !covered && !slices.Contains(patterns, d.pattern) {
			patterns = append(patterns, d.pattern)
		}
	}
	slices.Sort(patterns)
	// A filter costs nine tenths of the rate on a stream of many subjects, even one that matches everything.
	all := !slices.ContainsFunc(streamSubjects, func(held string) bool {
		return !slices.ContainsFunc(patterns, func(p string) bool { return subject.Covers(p, held) })
	})
	switch {
	case all && len(streamSubjects) > 0 && !s.due:
	case len(patterns) == 1:
		c.FilterSubject = patterns[0]
	default:
		c.FilterSubjects = patterns
	}
	if !s.due {
		switch rt.Start.Policy {
		case "new":
			c.DeliverPolicy = jetstream.DeliverNewPolicy
		case "since":
			c.DeliverPolicy, c.OptStartTime = jetstream.DeliverByStartTimePolicy, &rt.Start.Since
		case "seq":
			c.DeliverPolicy, c.OptStartSeq = jetstream.DeliverByStartSequencePolicy, rt.Start.Seq
		}
	}
	return c
}

// maxWaiting pulls of all instances may be parked at once; it cannot be changed later, and above it pulls are dropped
// without a word.
const maxWaiting = 512

// create makes the durable. When messages are waiting already, where it starts must have been chosen.
func (s *source) create(ctx context.Context, stream jetstream.Stream, want jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	if s.due {
		return s.makeOrCompare(ctx, stream, want)
	}
	waiting, err := s.waiting(ctx, stream, want)
	if err != nil {
		return nil, err
	}
	if waiting.all > 0 && s.routes[0].cfg.Start.Policy == "" {
		return nil, fmt.Errorf(
			"start: stream %s already holds %d messages for %s, and durable %s does not exist yet: say where it begins (start: all, new, {since: <time>} or {seq: <n>})",
			s.stream, waiting.all, strings.Join(s.subjects(), ", "), s.durable)
	}
	s.log.Info("making durable", "start", s.routes[0].cfg.Start.String(), "waiting", waiting.chosen)
	return s.makeOrCompare(ctx, stream, want)
}

// makeOrCompare makes the durable, unless another instance was faster: then that one's counts.
func (s *source) makeOrCompare(ctx context.Context, stream jetstream.Stream, want jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	consumer, err := stream.CreateConsumer(ctx, want)
	if errors.Is(err, jetstream.ErrConsumerExists) {
		if consumer, err = stream.Consumer(ctx, s.durable); err == nil {
			return s.compare(ctx, stream, consumer, want)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("making durable %s on stream %s: %w", s.durable, s.stream, err)
	}
	return consumer, nil
}

// risks are those of the stream for the route whose messages may wait longest. The retry stream is relay's own.
func (s *source) risks(c jetstream.StreamConfig) []string {
	if s.due {
		return nil
	}
	span := time.Duration(0)
	for _, rt := range s.routes {
		span = max(span, rt.cfg.Retry.MaxAge)
	}
	return risks(c, span)
}

func (s *source) subjects() (list []string) {
	for _, d := range s.patterns {
		list = append(list, d.pattern)
	}
	return list
}

type waiting struct {
	all    uint64 // messages that match in the stream
	chosen uint64 // those from the chosen start on
}

// waiting counts the messages that a durable would get, by making consumers that deliver nothing and go away.
func (s *source) waiting(ctx context.Context, stream jetstream.Stream, want jetstream.ConsumerConfig) (w waiting, err error) {
	if stream.CachedInfo().State.Msgs == 0 {
		return w, nil
	}
	if stream.CachedInfo().Config.Retention == jetstream.WorkQueuePolicy {
		// A work queue refuses a second consumer on the same subjects, and holds only what is waiting.
		n := stream.CachedInfo().State.Msgs
		return waiting{n, n}, nil
	}
	count := func(c jetstream.ConsumerConfig) (uint64, error) {
		c.Durable, c.MemoryStorage, c.InactiveThreshold = "", true, setupTimeout
		consumer, err := stream.CreateConsumer(ctx, c)
		if err != nil {
			return 0, fmt.Errorf("counting the messages of stream %s: %w", s.stream, err)
		}
		info := consumer.CachedInfo()
		return info.NumPending, stream.DeleteConsumer(ctx, info.Name)
	}
	if w.chosen, err = count(want); err != nil {
		return w, err
	}
	all := want
	all.DeliverPolicy, all.OptStartTime, all.OptStartSeq = jetstream.DeliverAllPolicy, nil, 0
	w.all, err = count(all)
	return w, err
}

// compare leaves a durable that is as wanted alone, and changes another one only when told to.
func (s *source) compare(ctx context.Context, stream jetstream.Stream, consumer jetstream.Consumer, want jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	have := consumer.CachedInfo().Config
	changeable, fixed := differences(have, want)
	if len(changeable)+len(fixed) == 0 {
		return consumer, nil
	}
	if !s.relay.cfg.Adopt || len(fixed) > 0 {
		return nil, &DurableDiffers{s.stream, s.durable, append(fixed, changeable...)}
	}
	s.log.Warn("changing a durable that exists", "was", joinAnd(changeable))
	// An update replaces the whole configuration: what relay does not care about stays.
	have.AckWait, have.MaxDeliver, have.BackOff, have.MaxAckPending = want.AckWait, want.MaxDeliver, nil, want.MaxAckPending
	have.FilterSubject, have.FilterSubjects, have.InactiveThreshold = want.FilterSubject, want.FilterSubjects, 0
	have.HeadersOnly, have.MaxRequestBatch, have.MaxRequestExpires, have.MaxRequestMaxBytes = false, 0, 0, 0
	have.RateLimit = 0
	updated, err := stream.UpdateConsumer(ctx, have)
	if err != nil {
		return nil, fmt.Errorf("changing durable %s on stream %s: %w", s.durable, s.stream, err)
	}
	return updated, nil
}

// differences lists the settings under which relay would not work, or that are not what the configuration says; fixed
// ones the server does not change on a durable that exists.
func differences(have, want jetstream.ConsumerConfig) (changeable, fixed []string) {
	note := func(list *[]string, name string, same bool, has, wants any) {
		if !same {
			*list = append(*list, fmt.Sprintf("%s is %v, not %v", name, has, wants))
		}
	}
	note(&fixed, "ack_policy", have.AckPolicy == want.AckPolicy, have.AckPolicy, want.AckPolicy)
	note(&fixed, "replay_policy", have.ReplayPolicy == jetstream.ReplayInstantPolicy, have.ReplayPolicy, jetstream.ReplayInstantPolicy)
	note(&fixed, "mem_storage", !have.MemoryStorage, have.MemoryStorage, false)
	note(&fixed, "priority_policy", have.PriorityPolicy == jetstream.PriorityPolicyNone, have.PriorityPolicy, "none")
	note(&changeable, "ack_wait", have.AckWait == want.AckWait, have.AckWait, want.AckWait)
	note(&changeable, "max_deliver", have.MaxDeliver == want.MaxDeliver, have.MaxDeliver, "unlimited (-1)")
	note(&changeable, "backoff", len(have.BackOff) == 0, have.BackOff, "empty")
	note(&changeable, "max_ack_pending", have.MaxAckPending == want.MaxAckPending, have.MaxAckPending, want.MaxAckPending)
	has, wants := filters(have), filters(want)
	note(&changeable, "filter_subjects", slices.Equal(has, wants), has, wants)
	note(&changeable, "inactive_threshold", have.InactiveThreshold == 0, have.InactiveThreshold, 0)
	note(&changeable, "headers_only", !have.HeadersOnly, have.HeadersOnly, false)
	note(&changeable, "rate_limit_bps", have.RateLimit == 0, have.RateLimit, 0)
	note(&changeable, "max_batch", have.MaxRequestBatch == 0, have.MaxRequestBatch, 0)
	note(&changeable, "max_expires", have.MaxRequestExpires == 0, have.MaxRequestExpires, 0)
	note(&changeable, "max_bytes", have.MaxRequestMaxBytes == 0, have.MaxRequestMaxBytes, 0)
	return changeable, fixed
}

func filters(c jetstream.ConsumerConfig) []string {
	list := slices.Clone(c.FilterSubjects)
	if c.FilterSubject != "" {
		list = append(list, c.FilterSubject)
	}
	slices.Sort(list)
	return list
}
