package orphans

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/provision"
	"github.com/relaymq/relay/internal/retry"
	"github.com/relaymq/relay/internal/subject"
)

// Move gives what waits for a route that is not there to another one: what is parked or due in the retry stream, dead letters, and what
// its durable has not handled. A route that was renamed has all three.
type Move struct {
	Service  string // empty: relay
	From, To string
	// OfService is the service whose route From is, when it was the service that was renamed. Empty: the same service.
	OfService string
	// Stream is that of the messages. Empty: all streams.
	Stream string
	// Prefix is that of the dead letters of To. Empty: the usual one.
	Prefix string
	// Moved, if not nil, is told of each message.
	Moved func()
}

// Moved is how much was moved, by its kind.
type Moved struct {
	Retries int `json:"retries"`
	Dead    int `json:"dead_letters"`
	Durable int `json:"durable"`
	// Away and Here are how many messages left a route and came to one, by "<stream>/<route>": only those that no ledger counts.
	Away map[string]int `json:"-"`
	Here map[string]int `json:"-"`
}

// Sum of all.
func (n Moved) Sum() int { return n.Retries + n.Dead + n.Durable }

func (m Move) of() string { return cmp.Or(m.OfService, m.Service) }

// Do moves what is among these, which [Search.All] found. The route To must have been started once for what waits of a stream. Each message is
// stored for it, confirmed, before the old one is removed: nothing is lost when this is interrupted, and another call goes on. It waits for
// the server; of a durable with messages in flight until they come again, ack_wait and longer.
func (m Move) Do(ctx context.Context, js jetstream.JetStream, found []Orphan) (n Moved, err error) {
	m.Service = cmp.Or(m.Service, "relay")
	n.Away, n.Here = map[string]int{}, map[string]int{}
	for _, o := range found {
		if o.Kind == Durable && o.Messages+uint64(o.Outstanding) == 0 {
			continue // whoever removes it needs more rights
		}
		if o.Route != m.From || o.Service != m.OfService || m.Stream != "" && o.Stream != m.Stream && o.Kind != Dead {
			continue
		}
		if m.toItself() && o.Kind != Durable {
			continue // each message is where it is to go: stored once more and then removed as the old one, it would be gone
		}
		switch o.Kind {
		case Retries:
			err = m.retries(ctx, js, o.Stream, &n)
		case Dead:
			err = m.dead(ctx, js, &n)
		case Durable:
			err = m.durable(ctx, js, o.Stream, o.Durable, &n)
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// toItself tells whether a route gets what a durable has that it used before: all else is its own already.
func (m Move) toItself() bool { return m.From == m.To && m.of() == m.Service }

func (m Move) told() {
	if m.Moved != nil {
		m.Moved()
	}
}

// into is the retry stream from which the route gets it.
func (m Move) into(ctx context.Context, js jetstream.JetStream, stream string) (*retry.Stream, error) {
	retries, err := retry.AttachStream(ctx, js, m.Service, retry.StreamName(m.Service))
	if err != nil {
		return nil, err
	}
	if _, err := js.Consumer(ctx, retries.Name(), retry.DueDurable(m.To, stream)); err != nil {
		return nil, fmt.Errorf("route %s gets nothing of stream %s: start relay with that route first (%w)", m.To, stream, err)
	}
	return retries, nil
}

func (m Move) retries(ctx context.Context, js jetstream.JetStream, stream string, n *Moved) error {
	into, err := m.into(ctx, js, stream)
	if err != nil {
		return err
	}
	from, err := retry.AttachStream(ctx, js, m.of(), retry.StreamName(m.of()))
	if err != nil {
		return err
	}
	if consumed(ctx, js, from.Name(), m.From, stream) {
		return fmt.Errorf("an instance of relay runs route %s on stream %s: stop it first", m.From, stream)
	}
	_, err = from.Move(ctx, retry.Move{From: m.From, Stream: stream, To: func(retry.Origin) string { return m.To }, Into: into, Moved: func(p retry.Parked) {
		n.Retries++
		n.Here[stream+"/"+m.To]++
		if m.OfService == "" && !p.Handed() {
			n.Away[stream+"/"+m.From]++
		}
		m.told()
	}})
	return err
}

func (m Move) dead(ctx context.Context, js jetstream.JetStream, n *Moved) error {
	into, err := dlq.Attach(ctx, js, m.Service)
	if err != nil {
		return err
	}
	from, err := dlq.Attach(ctx, js, m.of())
	if err != nil {
		return err
	}
	for e, err := range from.List(ctx, dlq.Filter{Route: m.From, WithBody: true}) {
		var unreadable *dlq.EntryError
		if errors.As(err, &unreadable) {
			continue // it stays; relay dlq ls shows it
		}
		if err != nil {
			return err
		}
		if m.Stream != "" && e.Stream != m.Stream {
			continue
		}
		was := e.StoredSequence
		e.Route = m.To
		if err := into.Put(ctx, m.Prefix, e); err != nil {
			return fmt.Errorf("dead letter %d: %w", was, err)
		}
		if err := from.Discard(ctx, was); err != nil && !errors.Is(err, dlq.ErrNotFound) {
			return fmt.Errorf("removing dead letter %d, which is moved: %w", was, err)
		}
		n.Dead++
		m.told()
	}
	return nil
}

const (
	movePage = 100
	moveWait = time.Second
)

// durable hands over what a durable has not handled, and removes it. What the durable of the route delivers, too, is not handed over.
func (m Move) durable(ctx context.Context, js jetstream.JetStream, stream, name string, n *Moved) error {
	into, err := m.into(ctx, js, stream)
	if err != nil {
		return err
	}
	st, err := js.Stream(ctx, stream)
	if err != nil {
		return err
	}
	old, err := st.Consumer(ctx, name)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if old.CachedInfo().NumWaiting > 0 {
		return fmt.Errorf("an instance of relay, or somebody else, pulls from durable %s of stream %s: stop it first", name, stream)
	}
	if c := old.CachedInfo().Config; c.PriorityPolicy != jetstream.PriorityPolicyNone { // of instances: one
		c.PriorityPolicy, c.PriorityGroups, c.PinnedTTL = jetstream.PriorityPolicyNone, nil, 0
		if old, err = st.UpdateConsumer(ctx, c); err != nil {
			return fmt.Errorf("durable %s: %w", name, err)
		}
	}
	delivers, err := deliveredBy(ctx, st, m.Service, m.To, name)
	if err != nil {
		return err
	}
	var records *retry.Records
	if attempts, err := js.KeyValue(ctx, retry.BucketName(m.of())); err == nil {
		bucket, err := retry.OpenBucket(ctx, js, attempts.Bucket(), 0)
		if err != nil {
			return err
		}
		records = bucket.Records(stream, name, old.CachedInfo().Created)
	}
	for {
		info, err := old.Info(ctx)
		if err != nil {
			return err
		}
		if info.NumPending == 0 && info.NumAckPending == 0 {
			return st.DeleteConsumer(ctx, name)
		}
		page, err := old.Fetch(movePage, jetstream.FetchMaxWait(moveWait))
		if err != nil {
			return err
		}
		for msg := range page.Messages() {
			if err := m.hand(ctx, into, records, name, msg, delivers, n); err != nil {
				return err
			}
		}
		if err := page.Error(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("durable %s of stream %s: %w (relay must be allowed to publish to $JS.API.CONSUMER.MSG.NEXT.%[2]s.%[1]s and $JS.ACK.%[2]s.%[1]s.>)", name, stream, err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// hand stores a message of a durable for the route unless that has it anyway, and settles it.
func (m Move) hand(ctx context.Context, into *retry.Stream, records *retry.Records, durable string, msg jetstream.Msg, delivers func(string, *jetstream.MsgMetadata) bool, n *Moved) error {
	meta, err := msg.Metadata()
	if err != nil {
		return err
	}
	ours, counted := delivers(msg.Subject(), meta), true
	if !ours {
		o := retry.Origin{Route: m.To, Stream: meta.Stream, Consumer: durable, Sequence: meta.Sequence.Stream, Time: meta.Timestamp, Subject: msg.Subject()}
		due := time.Now()
		if records != nil && meta.NumDelivered > 1 {
			rec, err := records.Get(ctx, o.Sequence, meta.NumDelivered)
			if err != nil {
				return err
			}
			o.Attempts, o.FirstFailure, o.LastFailure, o.LastError = rec.Attempts, rec.FirstFailure, rec.LastFailure, rec.LastError
		}
		if o.Attempts == 0 {
			err = into.Bring(ctx, o, msg.Headers(), msg.Data(), retry.Room{})
		} else {
			err = into.Park(ctx, o, msg.Headers(), msg.Data(), due, retry.Room{}, 0)
			counted = false
		}
		if err != nil {
			return fmt.Errorf("message %d of stream %s: %w", meta.Sequence.Stream, meta.Stream, err)
		}
	}
	if err := msg.DoubleAck(ctx); err != nil {
		return fmt.Errorf("message %d of stream %s is stored for route %s, and was not settled on durable %s: %w (is publishing to $JS.ACK.%[2]s.%[4]s.> allowed?)",
			meta.Sequence.Stream, meta.Stream, m.To, durable, err)
	}
	if ours {
		return nil
	}
	if !counted { // what was brought is counted when it comes
		n.Here[meta.Stream+"/"+m.To]++
	}
	n.Durable++
	m.told()
	return nil
}

// deliveredBy tells of messages of a stream whether a durable of a route, but for one, delivers them, or did.
func deliveredBy(ctx context.Context, stream jetstream.Stream, service, route, but string) (func(string, *jetstream.MsgMetadata) bool, error) {
	var of []*jetstream.ConsumerInfo
	durables := stream.ListConsumers(ctx)
	for info := range durables.Info() {
		if m := provision.MarkOf(info.Config.Metadata); info.Name != but && m.Service == service && len(m.Routes[route]) > 0 {
			of = append(of, info)
		}
	}
	if err := durables.Err(); err != nil {
		return nil, err
	}
	return func(literal string, meta *jetstream.MsgMetadata) bool {
		return slices.ContainsFunc(of, func(info *jetstream.ConsumerInfo) bool {
			if !slices.ContainsFunc(provision.MarkOf(info.Config.Metadata).Routes[route], func(p string) bool { return subject.Matches(p, literal) }) {
				return false
			}
			switch c := info.Config; c.DeliverPolicy {
			case jetstream.DeliverAllPolicy:
				return true
			case jetstream.DeliverByStartSequencePolicy:
				return meta.Sequence.Stream >= c.OptStartSeq
			case jetstream.DeliverByStartTimePolicy:
				return c.OptStartTime != nil && !meta.Timestamp.Before(*c.OptStartTime)
			}
			return !meta.Timestamp.Before(info.Created)
		})
	}, nil
}
