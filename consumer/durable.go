package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/subject"
)

// maxAckPending is set on every durable. Delayed NAKs count against it, and it holds no memory by itself.
const maxAckPending = 65_536

// wanted is the configuration of a durable with this mark.
func (s *source) wanted(streamSubjects []string, m mark) jetstream.ConsumerConfig {
	rt := s.routes[0].cfg
	c := jetstream.ConsumerConfig{
		Durable:       s.durable,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       rt.AckWait,
		MaxDeliver:    -1,
		MaxAckPending: maxAckPending,
		MaxWaiting:    maxWaiting,
		DeliverPolicy: jetstream.DeliverAllPolicy,
		Metadata:      m.over(nil),
	}
	patterns := m.patterns()
	// A filter costs nine tenths of the rate on a stream of many subjects, even one that matches everything.
	all := !slices.ContainsFunc(streamSubjects, func(held string) bool {
		return !slices.ContainsFunc(patterns, func(p string) bool { return subject.Covers(p, held) })
	})
	if !all || len(streamSubjects) == 0 || s.due {
		setFilters(&c, patterns)
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

func setFilters(c *jetstream.ConsumerConfig, patterns []string) {
	c.FilterSubject, c.FilterSubjects = "", nil
	if len(patterns) == 1 {
		c.FilterSubject = patterns[0]
	} else {
		c.FilterSubjects = patterns
	}
}

// maxWaiting pulls of all instances may be parked at once; it cannot be changed later, and above it pulls are dropped
// without a word.
const maxWaiting = 512

// mayCreate tells whether the durable can be made. When messages are waiting already, where it starts must have been chosen.
func (s *source) mayCreate(ctx context.Context, stream jetstream.Stream, want jetstream.ConsumerConfig) (waiting, error) {
	if s.due {
		return waiting{}, nil
	}
	w, err := s.waiting(ctx, stream, want)
	if err == nil && w.all > 0 && s.routes[0].cfg.Start.Policy == "" {
		err = fmt.Errorf(
			"start: stream %s already holds %d messages for %s, and durable %s does not exist yet: say where it begins (start: all, new, {since: <time>} or {seq: <n>})",
			s.stream, w.all, strings.Join(s.subjects(), ", "), s.durable)
	}
	return w, err
}

// makeOrCompare makes the durable, unless another instance was faster: then that one's counts.
func (s *source) makeOrCompare(ctx context.Context, stream jetstream.Stream, want jetstream.ConsumerConfig) (_ jetstream.Consumer, made bool, err error) {
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
		c.Durable, c.Metadata, c.MemoryStorage, c.InactiveThreshold = "", nil, true, setupTimeout
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

// comparison is how a durable differs from what it should be.
type comparison struct {
	want              jetstream.ConsumerConfig
	changeable, fixed []string
	// own says that relay made the durable, and that all that differs is which routes it is for: no person has to be asked.
	own bool
}

func (c comparison) differs() []string { return slices.Concat(c.fixed, c.changeable) }

// judge compares a durable with what it should be on a stream of these subjects. One that relay made is for the routes
// that have been configured on it before as well, unless only those of this configuration are to count.
func (s *source) judge(have jetstream.ConsumerConfig, streamSubjects []string, only bool) (c comparison) {
	was, m, has := markOf(have.Metadata), s.mark(), filters(have)
	made := was.service == m.service
	switch {
	case made && only:
		m.adopted = was.adopted
	case made:
		m = was.join(m)
	}
	c.want = s.wanted(streamSubjects, m)
	// A filter that relay gave it when the stream held more stays, and one is given when the stream brings what none of its
	// subjects says, as one with sources does.
	if all := m.patterns(); made && (slices.Equal(has, all) || len(has) == 0 && s.strays.unknown.Load()) {
		setFilters(&c.want, all)
	}
	c.changeable, c.fixed = differences(have, c.want)
	sameFilter := slices.Equal(has, filters(c.want))
	written := len(has) == 0 || slices.Equal(has, was.patterns()) // by relay itself
	others := len(c.changeable) + len(c.fixed)
	if !sameFilter {
		others--
	}
	c.own = made && others == 0 && (sameFilter && !maps.Equal(m.over(have.Metadata), have.Metadata) || !sameFilter && written)
	if s.due && others == 0 && slices.Equal(has, []string{s.relay.retries.OldFilter(s.routes[0].cfg.Name)}) {
		c.own = true // as an earlier version made it
	}
	return c
}

// mayUse returns a *[DurableDiffers] for a durable that is not as wanted and may not be changed to be so.
func (s *source) mayUse(stream jetstream.Stream, consumer jetstream.Consumer) error {
	c := s.judge(consumer.CachedInfo().Config, stream.CachedInfo().Config.Subjects, s.relay.cfg.Adopt)
	if !c.own && (len(c.fixed) > 0 || len(c.changeable) > 0 && !s.relay.cfg.Adopt) {
		return &DurableDiffers{s.stream, s.durable, c.differs()}
	}
	return nil
}

// compare leaves a durable that is as wanted alone, and changes another one only when told to, or when relay made it and
// only its routes are others.
func (s *source) compare(ctx context.Context, stream jetstream.Stream, consumer jetstream.Consumer) (jetstream.Consumer, error) {
	if err := s.mayUse(stream, consumer); err != nil {
		return nil, err
	}
	have := consumer.CachedInfo().Config
	c := s.judge(have, stream.CachedInfo().Config.Subjects, s.relay.cfg.Adopt)
	switch {
	case !c.own && len(c.differs()) == 0:
		return consumer, nil
	case !s.relay.cfg.Adopt:
		s.log.Info("the durable is given the subjects of this configuration", "was", filters(have), "is", filters(c.want))
	default:
		s.log.Warn("changing a durable that exists", "was", joinAnd(c.differs()), "filters", filters(c.want))
		c.want.Metadata[markAdopted] = time.Now().UTC().Format(time.RFC3339Nano)
	}
	return s.change(ctx, stream, have, c.want)
}

// change gives a durable what relay cares about. An update replaces the whole configuration: the rest stays.
func (s *source) change(ctx context.Context, stream jetstream.Stream, have, want jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	have.AckWait, have.MaxDeliver, have.BackOff, have.MaxAckPending = want.AckWait, want.MaxDeliver, nil, want.MaxAckPending
	have.FilterSubject, have.FilterSubjects, have.InactiveThreshold = want.FilterSubject, want.FilterSubjects, 0
	have.HeadersOnly, have.MaxRequestBatch, have.MaxRequestExpires, have.MaxRequestMaxBytes = false, 0, 0, 0
	have.RateLimit, have.Metadata = 0, markOf(want.Metadata).over(have.Metadata)
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
