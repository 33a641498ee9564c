package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/plain"
	"github.com/relaymq/relay/internal/provision"
)

const maxAckPending = provision.MaxAckPending

// provided is what this configuration says of the durable.
func (s *setup) provided() provision.Durable {
	d := provision.Durable{
		Name: s.durable, Pinned: s.leased(), AckWait: s.routes[0].cfg.AckWait,
		Mark: provision.Mark{Service: s.relay.cfg.Service, Routes: make(map[string][]string)},
	}
	for _, p := range s.patterns {
		name := p.route.cfg.Name
		if s.due {
			name = p.route.name()
		}
		d.Mark.Routes[name] = append(d.Mark.Routes[name], p.pattern)
	}
	if s.due {
		d.Filtered = true
		return d
	}
	switch start := s.routes[0].cfg.Start; start.Policy {
	case "new":
		d.Start.Policy = jetstream.DeliverNewPolicy
	case "since":
		d.Start = provision.Start{Policy: jetstream.DeliverByStartTimePolicy, Since: &start.Since}
	case "seq":
		d.Start = provision.Start{Policy: jetstream.DeliverByStartSequencePolicy, Seq: start.Seq}
	}
	return d
}

// judge compares a durable with what it should be. One that relay made is for the routes that have been configured on it
// before as well, unless only those of this configuration are to count.
func (s *setup) judge(have jetstream.ConsumerConfig, stream jetstream.Stream, which provision.Routes) provision.Comparison {
	return s.provided().Judge(have, provision.Stream{Subjects: stream.CachedInfo().Config.Subjects, Unknown: s.unknown.Load()}, which)
}

// judgeToUse is judge for a durable that is about to be used: a reload changes the ack wait that a route had here before. At a start
// nobody has said which of two is right, and another instance may use the other one.
func (s *setup) judgeToUse(have jetstream.ConsumerConfig, stream jetstream.Stream) provision.Comparison {
	d := s.provided()
	if d.FormerAckWait = s.routes[0].ackWaitBefore; s.relay.preview != nil {
		d.FormerAckWait = have.AckWait
	}
	return d.Judge(have, provision.Stream{Subjects: stream.CachedInfo().Config.Subjects, Unknown: s.unknown.Load()}, s.relay.whichRoutes())
}

// whichRoutes of a durable count at the start.
func (r *Relay) whichRoutes() provision.Routes {
	if r.cfg.Adopt {
		return provision.Only
	}
	return provision.Ever
}

// mayCreate tells whether the durable can be made. When messages are waiting already, where it starts must have been chosen.
func (s *setup) mayCreate(ctx context.Context, stream jetstream.Stream, want jetstream.ConsumerConfig) (waiting, error) {
	if s.due {
		return waiting{}, nil
	}
	if err := s.mayShareQueue(ctx, stream, want); err != nil {
		return waiting{}, err
	}
	w, err := s.countWaiting(ctx, stream, want)
	if err == nil && w.all > 0 && s.routes[0].cfg.Start.Policy == "" {
		err = fmt.Errorf(
			"start: stream %s already holds %d messages for %s, and durable %s does not exist yet: say where it begins (start: all, new, {since: <time>} or {seq: <n>})",
			s.stream, w.all, strings.Join(s.subjects(), ", "), s.durable)
	}
	return w, err
}

// mayShareQueue tells who has the messages of a work queue already: it lets only one consumer have each subject.
func (s *setup) mayShareQueue(ctx context.Context, stream jetstream.Stream, want jetstream.ConsumerConfig) error {
	if stream.CachedInfo().Config.Retention != jetstream.WorkQueuePolicy {
		return nil
	}
	list, _, err := s.relay.listings.of(ctx, stream)
	if err != nil {
		return err
	}
	filters := func(c jetstream.ConsumerConfig) []string {
		if f := provision.Filters(c); len(f) > 0 {
			return f
		}
		return []string{">"}
	}
	for _, info := range list {
		if both := common(filters(info.Config), filters(want)); info.Name != s.durable && len(both) > 0 {
			return fmt.Errorf("durable %s cannot be made: stream %s is a work queue, where only one consumer may have a subject, and consumer %s has %s: give the route that durable (durable: %s), or other subjects",
				s.durable, s.stream, info.Name, plain.And(both), info.Name)
		}
	}
	return nil
}

// makeOrCompare makes the durable, unless another instance was faster: then that one's counts.
func (s *setup) makeOrCompare(ctx context.Context, stream jetstream.Stream, want jetstream.ConsumerConfig) (_ jetstream.Consumer, made bool, err error) {
	consumer, err := stream.CreateConsumer(ctx, want)
	if errors.Is(err, jetstream.ErrConsumerExists) {
		if consumer, err = stream.Consumer(ctx, s.durable); err == nil {
			consumer, err = s.compare(ctx, stream, consumer)
			return consumer, false, err
		}
	}
	if err != nil {
		return nil, false, fmt.Errorf("making durable %s on stream %s: %w", s.durable, s.stream, err)
	}
	return consumer, true, nil
}

// risks are those of the stream for the route whose messages may wait longest. The retry stream is relay's own.
func (s *setup) risks(c jetstream.StreamConfig) []string {
	if s.due || s.routes[0].cfg.part != nil {
		return nil
	}
	span := time.Duration(0)
	for _, rt := range s.routes {
		span = max(span, rt.now().Retry.MaxAge)
	}
	return provision.Risks(c, span)
}

type waiting struct {
	all    uint64 // messages that match in the stream
	chosen uint64 // those from the chosen start on
}

// countWaiting counts the messages that a durable would get, by making consumers that deliver nothing and go away.
func (s *setup) countWaiting(ctx context.Context, stream jetstream.Stream, want jetstream.ConsumerConfig) (w waiting, err error) {
	if stream.CachedInfo().State.Msgs == 0 {
		return w, nil
	}
	if stream.CachedInfo().Config.Retention == jetstream.WorkQueuePolicy {
		// A work queue refuses a second consumer on the same subjects, and holds only what is waiting.
		n := stream.CachedInfo().State.Msgs
		return waiting{n, n}, nil
	}
	if w.chosen, err = s.countOf(ctx, stream, want); err != nil {
		return w, err
	}
	all := want
	all.DeliverPolicy, all.OptStartTime, all.OptStartSeq = jetstream.DeliverAllPolicy, nil, 0
	w.all, err = s.countOf(ctx, stream, all)
	return w, err
}

// countOf is how many messages a durable would get now, by a consumer that delivers nothing and goes away.
func (s *setup) countOf(ctx context.Context, stream jetstream.Stream, c jetstream.ConsumerConfig) (uint64, error) {
	c.Durable, c.Metadata, c.MemoryStorage, c.InactiveThreshold = "", nil, true, setupTimeout
	consumer, err := stream.CreateConsumer(ctx, c)
	if err != nil {
		return 0, fmt.Errorf("counting the messages of stream %s: %w", s.stream, err)
	}
	info := consumer.CachedInfo()
	return info.NumPending, stream.DeleteConsumer(ctx, info.Name)
}

// mayUse returns a *[DurableDiffers] for a durable that is not as wanted and may not be changed to be so.
func (s *setup) mayUse(stream jetstream.Stream, consumer jetstream.Consumer) error {
	c := s.judgeToUse(consumer.CachedInfo().Config, stream)
	if !c.Own && (len(c.Fixed) > 0 || len(c.Changeable) > 0 && !s.relay.cfg.Adopt) {
		return &DurableDiffers{s.stream, s.durable, c.Differs()}
	}
	return nil
}

// compare leaves a durable that is as wanted alone, and changes another one only when told to, or when relay made it and
// only its routes are others.
func (s *setup) compare(ctx context.Context, stream jetstream.Stream, consumer jetstream.Consumer) (jetstream.Consumer, error) {
	if err := s.mayUse(stream, consumer); err != nil {
		return nil, err
	}
	have := consumer.CachedInfo().Config
	c := s.judgeToUse(have, stream)
	switch {
	case !c.Own && len(c.Differs()) == 0:
		return consumer, nil
	case have.AckWait > c.Want.AckWait && consumer.CachedInfo().NumWaiting > 0:
		// Whoever pulls extends its leases by the longer one. Its messages would be delivered again before that.
		return nil, &DurableDiffers{s.stream, s.durable, []string{fmt.Sprintf(
			"ack_wait is %v, not %v, and another instance pulls with that: it would have what it handles handled twice, so it is changed when no other instance pulls (stop or reload those)", have.AckWait, c.Want.AckWait)}}
	case !s.relay.cfg.Adopt:
		s.log.Info("the durable is changed to what this configuration says", "was", plain.And(c.Differs()), "filters", provision.Filters(c.Want))
	default:
		s.log.Warn("changing a durable that exists", "was", plain.And(c.Differs()), "filters", provision.Filters(c.Want))
		return s.change(ctx, stream, have, c.Adopted(time.Now()))
	}
	return s.change(ctx, stream, have, c.Want)
}

// change gives a durable what relay cares about.
func (s *setup) change(ctx context.Context, stream jetstream.Stream, have, want jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	if s.due {
		return s.update(ctx, stream, have, want)
	}
	return s.changeAlone(ctx, stream, have, want)
}

func (s *setup) update(ctx context.Context, stream jetstream.Stream, have, want jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	if have.PriorityPolicy == jetstream.PriorityPolicyPinned && want.PriorityPolicy == jetstream.PriorityPolicyNone && len(have.PriorityGroups) > 0 {
		// The server goes on with a pin that is set when the policy is none, and serves nobody until its time is over.
		if err := stream.UnpinConsumer(ctx, s.durable, have.PriorityGroups[0]); err != nil {
			return nil, fmt.Errorf("changing durable %s on stream %s: %w", s.durable, s.stream, err)
		}
	}
	updated, err := stream.UpdateConsumer(ctx, provision.Changed(have, want))
	if err != nil {
		return nil, fmt.Errorf("changing durable %s on stream %s: %w", s.durable, s.stream, err)
	}
	return updated, nil
}
