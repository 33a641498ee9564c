package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/ack"
	"github.com/relaymq/relay/consumer/internal/catchup"
	"github.com/relaymq/relay/consumer/internal/provision"
	"github.com/relaymq/relay/internal/audit"
)

// The first version had one durable for each route on the retry stream, and none with a pin. It ends with an error where it finds others. Whatever was
// written since, it reads: headers and subjects of what waits are those that it wrote.

// Downgraded is what was done, or is to be done, so that the first version can run.
type Downgraded struct {
	// Durables on the retry stream were removed: what they had not delivered comes from that of the first version.
	Durables []string `json:"durables"`
	// Parked messages had failed and waited in such a durable. They are parked, with their attempts and their time.
	Parked int `json:"parked"`
	// Unpinned durables were for one instance at a time. Under the first version all instances pull from them.
	Unpinned []string `json:"unpinned"`
	// Left is what the first version does not know, and what waits until a newer one runs.
	Left []string `json:"left"`
}

// Downgrade prepares what is on the server for the first version, of before [Relay.Change] and these durables. No instance may run. With dry
// nothing is changed. Each step can be done again, so that it may be interrupted. It waits for the server.
func Downgrade(ctx context.Context, js jetstream.JetStream, service string, dry bool) (done Downgraded, err error) {
	service = Config{Service: service}.withDefaults().Service
	done = Downgraded{Durables: []string{}, Unpinned: []string{}, Left: []string{}}
	name := retryStreamOf(service)
	stream, err := js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return done, fmt.Errorf("stream %s does not exist: service %s never ran here", name, service)
	}
	if err != nil {
		return done, err
	}
	if here, err := isHere(ctx, js, service); here || err != nil {
		if err == nil {
			err = fmt.Errorf("an instance of service %s runs: stop all of them first", service)
		}
		return done, err
	}
	retries := ack.NamedRetryStream(js, service, name)
	var former []jetstream.ConsumerConfig
	durables := stream.ListConsumers(ctx)
	var list []*jetstream.ConsumerInfo
	for info := range durables.Info() {
		list = append(list, info)
	}
	if err := durables.Err(); err != nil {
		return done, err
	}
	for _, info := range list {
		route, from, ok := dueOf(service, info.Config.FilterSubject)
		switch {
		case ok && info.Name == ack.DueDurable(route, from):
			n, err := parkDue(ctx, js, stream, retries, service, info, dry)
			done.Parked += n
			if err == nil && !dry {
				err = stream.DeleteConsumer(ctx, info.Name)
			}
			if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
				return done, fmt.Errorf("durable %s on stream %s: %w", info.Name, name, err)
			}
			done.Durables = append(done.Durables, info.Name)
		case info.Config.FilterSubject == retries.OldDueSubjects(info.Name):
			former = append(former, info.Config)
		}
	}
	for _, c := range former { // when nothing else has a part of its filter
		c.FilterSubject = retries.OldFilter(c.Durable)
		if !dry {
			if _, err := stream.UpdateConsumer(ctx, c); err != nil {
				return done, fmt.Errorf("durable %s on stream %s: %w", c.Durable, name, err)
			}
		}
	}
	if done.Unpinned, err = unpinAll(ctx, js, service, dry); err != nil {
		return done, err
	}
	done.Left, err = unknownBefore(ctx, js, retries, service)
	slices.Sort(done.Durables)
	return done, err
}

// dueOf is the route and the stream of a filter of what comes due.
func dueOf(service, filter string) (route, stream string, ok bool) {
	rest, ok := strings.CutPrefix(filter, service+".due.")
	parts := strings.Split(rest, ".")
	if !ok || len(parts) != 3 || parts[2] != ">" {
		return "", "", false
	}
	return parts[0], parts[1], true
}

// parkDue parks what failed again since it came due, and waits in its durable: its attempts are known under the name of that only.
func parkDue(ctx context.Context, js jetstream.JetStream, stream jetstream.Stream, retries *ack.RetryStream, service string, info *jetstream.ConsumerInfo, dry bool) (n int, err error) {
	if info.NumAckPending == 0 {
		return 0, nil
	}
	var failed []ack.Waiting
	err = ack.ListWaiting(ctx, js, strings.ToUpper(service)+"_ATTEMPTS", info.Stream, info.Name, func(w ack.Waiting) bool {
		if w.Err == nil && w.Made.UnixNano() == info.Created.UnixNano() && w.Attempts > 0 {
			failed = append(failed, w)
		}
		return true
	})
	if err != nil || dry {
		return len(failed), err
	}
	for _, w := range failed {
		m, err := stream.GetMsg(ctx, w.Sequence)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue // it was settled
		}
		if err != nil {
			return n, err
		}
		o, header, err := ack.Unwrap(m.Header)
		if err != nil {
			continue // whoever takes it next says so
		}
		o.Attempts, o.LastFailure, o.LastError = max(o.Attempts, w.Attempts), w.LastFailure, w.LastError
		if o.FirstFailure.IsZero() {
			o.FirstFailure = w.FirstFailure
		}
		due := w.Due
		if due.Before(time.Now()) {
			due = time.Now()
		}
		if err := retries.Park(ctx, o, header, m.Data, due, ack.Room{}, retries.OwnAt(m.Subject, w.Sequence, o)); err != nil {
			return n, fmt.Errorf("message %d: %w", w.Sequence, err)
		}
		if err := stream.DeleteMsg(ctx, w.Sequence); err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
			return n, fmt.Errorf("removing message %d, which is parked: %w", w.Sequence, err)
		}
		n++
	}
	return n, nil
}

// unpinAll has all instances pull from the durables of a service that were for one at a time.
func unpinAll(ctx context.Context, js jetstream.JetStream, service string, dry bool) (list []string, err error) {
	list = []string{}
	streams := js.ListStreams(ctx)
	for info := range streams.Info() {
		stream, err := js.Stream(ctx, info.Config.Name)
		if err != nil {
			return list, err
		}
		durables := stream.ListConsumers(ctx)
		for c := range durables.Info() {
			have := c.Config
			own := provision.MarkOf(have.Metadata).Service == service || c.Stream == retryStreamOf(service)
			if !own || have.PriorityPolicy != jetstream.PriorityPolicyPinned {
				continue
			}
			list = append(list, c.Stream+"/"+c.Name)
			if dry {
				continue
			}
			if len(have.PriorityGroups) > 0 {
				if err := stream.UnpinConsumer(ctx, c.Name, have.PriorityGroups[0]); err != nil {
					return list, fmt.Errorf("durable %s on stream %s: %w", c.Name, c.Stream, err)
				}
			}
			have.PriorityPolicy, have.PriorityGroups, have.PinnedTTL = jetstream.PriorityPolicyNone, nil, 0
			if _, err := stream.UpdateConsumer(ctx, have); err != nil {
				return list, fmt.Errorf("durable %s on stream %s: %w", c.Name, c.Stream, err)
			}
		}
		if err := durables.Err(); err != nil {
			return list, err
		}
	}
	return list, streams.Err()
}

// unknownBefore is what waits, and what the first version does not know.
func unknownBefore(ctx context.Context, js jetstream.JetStream, retries *ack.RetryStream, service string) (list []string, err error) {
	list = []string{}
	kept, err := retries.Kept(ctx)
	if err != nil {
		return list, err
	}
	for _, k := range kept {
		if k.Route == ack.NoRoute {
			list = append(list, fmt.Sprintf("%d messages of stream %s that no route wanted, in the retry stream", k.Parked+k.Due, k.Stream))
		}
	}
	for _, suffix := range []string{"_LATER", "_LATER_IN"} {
		s, err := js.Stream(ctx, strings.ToUpper(service)+suffix)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue
		}
		if err != nil {
			return list, err
		}
		if n := s.CachedInfo().State.Msgs; n > 0 {
			list = append(list, fmt.Sprintf("%d delayed messages, in stream %s", n, s.CachedInfo().Config.Name))
		}
	}
	kv, err := js.KeyValue(ctx, audit.Bucket(service))
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return list, nil
	}
	if err != nil {
		return list, err
	}
	keys, err := kv.ListKeysFiltered(ctx, audit.CatchUpKeys)
	if err != nil {
		return list, err
	}
	defer keys.Stop()
	for key := range keys.Keys() {
		e, err := kv.Get(ctx, key)
		if err != nil {
			continue
		}
		var r catchup.Record
		if json.Unmarshal(e.Value(), &r) == nil && !r.IsDone() {
			list = append(list, "messages that a durable had passed when a route joined it, and that were not handed over yet: run this version until relay status shows no more of them (catches up)")
			break
		}
	}
	return list, nil
}
