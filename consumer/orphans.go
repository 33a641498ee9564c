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

	"github.com/relaymq/relay/consumer/internal/provision"
	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/partition"
	"github.com/relaymq/relay/internal/retry"
)

// Orphan is something of relay's that waits for a route which is not there: one that was renamed, taken away, or given another
// stream or durable.
type Orphan struct {
	// Kind is retries (messages in the retry stream), durable, partitions (a stream of relay's own to which the server copies), or dead letters.
	Kind string `json:"kind"`
	// Service is that whose it is, when it is another one's of which no instance runs: one that was renamed. Empty: this one's.
	Service string `json:"service,omitempty"`
	// Route is empty for messages that no route has ever wanted. A durable may have several, with spaces between.
	Route   string `json:"route,omitempty"`
	Stream  string `json:"stream,omitempty"`
	Durable string `json:"durable,omitempty"`
	// Messages that wait; of a durable those that it has not delivered yet, and Outstanding those without a settlement.
	Messages    uint64 `json:"messages"`
	Outstanding int    `json:"outstanding,omitempty"`
	// Next says what can be done.
	Next string `json:"next"`
}

// The kinds of an Orphan.
const (
	OrphanRetries    = "retries"
	OrphanDurable    = "durable"
	OrphanPartitions = "partitions"
	OrphanDead       = "dead letters"
)

func (o Orphan) String() string {
	if o.Service != "" {
		of := o.Service
		o.Service = ""
		return "service " + of + ", of which no instance runs: " + o.String()
	}
	switch {
	case o.Kind == OrphanDurable:
		return fmt.Sprintf("durable %s on stream %s of route %s: %d messages wait, %d are outstanding; %s", o.Durable, o.Stream, o.Route, o.Messages, o.Outstanding, o.Next)
	case o.Kind == OrphanPartitions:
		return fmt.Sprintf("stream %s of the partitions of route %s: %d messages wait, %d are outstanding; %s", o.Stream, o.Route, o.Messages, o.Outstanding, o.Next)
	case o.Route == "":
		return fmt.Sprintf("%d messages of stream %s that no route wanted are in the retry stream; %s", o.Messages, o.Stream, o.Next)
	case o.Kind == OrphanDead:
		return fmt.Sprintf("%d dead letters of route %s; %s", o.Messages, o.Route, o.Next)
	}
	return fmt.Sprintf("%d messages of route %s from stream %s are in the retry stream; %s", o.Messages, o.Route, o.Stream, o.Next)
}

// Orphans finds what waits for routes that are not among these, of which the names and durables count. What another running instance pulls is no
// orphan. It reads the subjects of the retry stream and of the dead letters, and asks for every durable of every stream.
func Orphans(ctx context.Context, js jetstream.JetStream, service string, routes []Route) ([]Orphan, error) {
	return orphansOf(ctx, js, service, routes, whatNobodyUses)
}

// usage says whether what an instance uses now is looked for, too.
type usage bool

const (
	whatNobodyUses usage = false
	whateverIsUsed usage = true
)

func orphansOf(ctx context.Context, js jetstream.JetStream, service string, routes []Route, of usage) ([]Orphan, error) {
	service = Config{Service: service}.withDefaults().Service
	known, divided := make(map[string]bool), make(map[string]bool)
	reading := make(map[[2]string]bool)
	for _, rt := range routes {
		rt = rt.WithDefaults()
		known[rt.Name], reading[[2]string{rt.Name, rt.Durable}] = true, true
		divided[rt.Name] = rt.Partitions > 0
	}
	// A route may be there and read another stream: what it had of the stream before, or what was replayed to it from one that it never
	// read, has no durable, or one from which nobody pulls while it pulls from that of its stream.
	reads, err := dueDurables(ctx, js, service)
	if err != nil {
		return nil, err
	}
	list, err := orphanedRetries(ctx, js, service, of, func(route, stream string) bool {
		return known[route] && (stream == "" || takes(reads[route], stream))
	})
	if err != nil {
		return nil, err
	}
	var names, others []string
	streams := js.ListStreams(ctx)
	for info := range streams.Info() {
		if s, ok := partition.Of(info); ok {
			if s.Service == service && !divided[s.Route] {
				if list, err = orphanedPartitions(ctx, js, s, of, list); err != nil {
					return nil, err
				}
			}
			continue // its durables go with it
		}
		if other := serviceOf(info); other == "" {
			names = append(names, info.Config.Name)
		} else if other != service {
			others = append(others, other)
		}
	}
	if err := streams.Err(); err != nil {
		return nil, err
	}
	more, err := durablesOn(ctx, js, names, service, of, func(route, durable string) bool { return reading[[2]string{route, durable}] })
	if err != nil {
		return nil, err
	}
	list = append(list, more...)
	for _, other := range others {
		if more, err = leftBy(ctx, js, other, names); err != nil {
			return nil, err
		}
		list = append(list, more...)
	}
	dead, err := deadLetters(ctx, js, service)
	if err != nil {
		return nil, err
	}
	for route, n := range dead {
		if !known[route] {
			list = append(list, Orphan{Kind: OrphanDead, Route: route, Messages: n,
				Next: "give them to another route: relay orphans move --from " + route + " --to ROUTE, or publish them again, for the routes that there are: relay dlq replay --route " + route + " --to-subject original"})
		}
	}
	return list, nil
}

// deadLetters counts those of a service by their routes.
func deadLetters(ctx context.Context, js jetstream.JetStream, service string) (map[string]uint64, error) {
	dead := make(map[string]uint64)
	err := retry.Subjects(ctx, js, strings.ToUpper(service)+"_DLQ", service+".dlq.>", func(subject string, n int) {
		route, _, _ := strings.Cut(strings.TrimPrefix(subject, service+".dlq."), ".")
		dead[route] += uint64(n)
	})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		err = nil
	}
	return dead, err
}

// durablesOn is orphanedDurables for streams.
func durablesOn(ctx context.Context, js jetstream.JetStream, names []string, service string, of usage, known func(route, durable string) bool) (list []Orphan, err error) {
	for _, name := range names {
		stream, err := js.Stream(ctx, name)
		if err != nil {
			return nil, err
		}
		more, err := orphanedDurables(ctx, js, stream, service, of, known)
		if err != nil {
			return nil, err
		}
		list = append(list, more...)
	}
	return list, nil
}

// takes tells whether a route with these durables gets what comes due of a stream, now or when it runs.
func takes(pulled map[string]bool, stream string) bool {
	asked, there := pulled[stream]
	if !there || asked {
		return asked
	}
	for _, elsewhere := range pulled {
		if elsewhere {
			return false // it runs, and reads another stream
		}
	}
	return true
}

// dueDurables are the durables that take what comes due, by route and stream, with whether an instance pulls from them.
func dueDurables(ctx context.Context, js jetstream.JetStream, service string) (map[string]map[string]bool, error) {
	list := make(map[string]map[string]bool)
	stream, err := js.Stream(ctx, strings.ToUpper(service)+"_RETRY")
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return list, nil
	}
	if err != nil {
		return nil, err
	}
	durables := stream.ListConsumers(ctx)
	for info := range durables.Info() {
		rest, _ := strings.CutPrefix(info.Config.FilterSubject, service+".due.")
		if parts := strings.Split(rest, "."); len(parts) == 3 && parts[2] == ">" {
			if list[parts[0]] == nil {
				list[parts[0]] = make(map[string]bool)
			}
			list[parts[0]][parts[1]] = info.NumWaiting > 0
		}
	}
	return list, durables.Err()
}

// orphanedRetries are messages in the retry stream of routes that are not known, and that nobody consumes.
func orphanedRetries(ctx context.Context, js jetstream.JetStream, service string, of usage, known func(route, stream string) bool) ([]Orphan, error) {
	retries, err := retry.AttachStream(ctx, js, service, strings.ToUpper(service)+"_RETRY")
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	kept, err := retries.Kept(ctx)
	if err != nil {
		return nil, err
	}
	var list []Orphan
	for _, k := range kept {
		if known(k.Route, k.Stream) || of == whatNobodyUses && consumed(ctx, js, retries.Name(), k.Route, k.Stream) {
			continue
		}
		o := Orphan{Kind: OrphanRetries, Route: k.Route, Stream: k.Stream, Messages: uint64(k.Parked + k.Due)}
		switch {
		case k.Route == retry.NoRoute:
			o.Route, o.Next = "", "a route on that stream whose subjects they match gets them when relay starts"
		default:
			o.Next = "start the route on that stream, or move them: relay orphans move --from " + k.Route + " --to ROUTE --stream " + k.Stream +
				", or make dead letters of them: relay orphans return --from " + k.Route + " --stream " + k.Stream
		}
		list = append(list, o)
	}
	return list, nil
}

// consumed tells whether an instance pulls what comes due of a route and stream from the retry stream, which is named first.
func consumed(ctx context.Context, js jetstream.JetStream, retries, route, stream string) bool {
	durable, err := js.Consumer(ctx, retries, retry.DueDurable(route, stream))
	return err == nil && durable.CachedInfo().NumWaiting > 0
}

// usedFor is for how long an instance that did not end counts as one that uses its durable, after it wrote last what it counted there.
const usedFor = time.Hour

// inUse tells whether an instance seems to use a durable though it does not pull from it just now: it has as much in hand as it may, or its
// route is paused. What advises to remove a durable had better be late than wrong.
func inUse(ctx context.Context, js jetstream.JetStream, service string, info *jetstream.ConsumerInfo, routes []string) bool {
	if book, err := audit.Attach(ctx, js, service); err == nil {
		record, err := book.Get(ctx, info.Stream, info.Name)
		if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
			return true // nobody knows
		}
		if err == nil {
			for _, i := range record.Instances { // those that ended are not there
				if time.Since(i.At) < usedFor {
					return true
				}
			}
		}
	}
	orders, err := js.KeyValue(ctx, strings.ToUpper(service)+"_STATE")
	if err != nil {
		return false
	}
	for _, name := range routes {
		var order Order
		e, err := orders.Get(ctx, Order{Route: name}.bucketKey())
		if err == nil && json.Unmarshal(e.Value(), &order) == nil && order.State == OrderPaused {
			return true
		}
	}
	return false
}

// orphanedDurables are those of a stream that relay made, for routes that are not known, and that nobody pulls from.
func orphanedDurables(ctx context.Context, js jetstream.JetStream, stream jetstream.Stream, service string, of usage, known func(route, durable string) bool) (list []Orphan, err error) {
	if partition.Is(stream.CachedInfo().Config) {
		return nil, nil // its durables go with it
	}
	durables := stream.ListConsumers(ctx)
	for info := range durables.Info() {
		m := provision.MarkOf(info.Config.Metadata)
		if m.Service != service || of == whatNobodyUses && info.NumWaiting > 0 {
			continue
		}
		var names []string
		wanted := false
		for name := range m.Routes {
			names = append(names, name)
			wanted = wanted || known(name, info.Name)
		}
		if wanted || of == whatNobodyUses && inUse(ctx, js, service, info, names) {
			continue
		}
		slices.Sort(names)
		next := fmt.Sprintf("give a route this durable (durable: %s)", info.Name)
		if stream.CachedInfo().Config.Retention != jetstream.WorkQueuePolicy { // which lets no other durable begin beside it
			if len(names) == 1 {
				next += fmt.Sprintf(", or give what it has not handled to another route: relay orphans move --from %s --to ROUTE --stream %s", names[0], info.Stream)
			}
			next += fmt.Sprintf(", or begin another one behind it (start: {seq: %d}) and then remove it: nats consumer rm %s %s", info.AckFloor.Stream+1, info.Stream, info.Name)
		}
		list = append(list, Orphan{
			Kind: OrphanDurable, Route: strings.Join(names, " "), Stream: info.Stream, Durable: info.Name, Messages: info.NumPending, Outstanding: info.NumAckPending, Next: next,
		})
	}
	return list, durables.Err()
}

// orphanedPartitions adds the stream of partitions of a route that has none any more, unless an instance works on it still.
func orphanedPartitions(ctx context.Context, js jetstream.JetStream, s *partition.Stream, of usage, list []Orphan) ([]Orphan, error) {
	o := Orphan{Kind: OrphanPartitions, Route: s.Route, Stream: s.Name()}
	there := 0
	for n := range s.Count {
		durable, err := js.Consumer(ctx, s.Name(), s.DurableOf(n))
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			continue
		}
		if err != nil {
			return list, err
		}
		info := durable.CachedInfo()
		if of == whatNobodyUses && (info.NumWaiting > 0 || inUse(ctx, js, s.Service, info, []string{s.Route})) {
			return list, nil
		}
		there++
		o.Messages, o.Outstanding = o.Messages+info.NumPending, o.Outstanding+info.NumAckPending
	}
	if there < s.Count {
		o.Messages = s.Info.State.Msgs
	}
	copying := ""
	if s.Sources() {
		copying = fmt.Sprintf(", to which the server copies what comes to %s", s.Stream)
	}
	o.Next = fmt.Sprintf("start the route with partitions again, or remove the stream%s, once nothing of it is wanted any more: nats stream rm %s", copying, s.Name())
	return append(list, o), nil
}

// ReturnOrphans makes dead letters of what waits in the retry stream for a route from one stream, parked or due: also of what was replayed
// to it, and of what it would get only if it read that stream. Each is stored before it is taken out, so that nothing is lost when this is
// interrupted, and another call goes on. prefix is that of the route's dead letters (empty: the usual one), and by is noted as the
// instance that gave them up. returned, if not nil, is told of each. It returns how many there were, with an error that ended it.
func ReturnOrphans(ctx context.Context, js jetstream.JetStream, service, route, stream, prefix, by string, returned func(retry.Parked)) (int, error) {
	service = Config{Service: service}.withDefaults().Service
	retries, err := retry.AttachStream(ctx, js, service, strings.ToUpper(service)+"_RETRY")
	if err != nil {
		return 0, err
	}
	if consumed(ctx, js, retries.Name(), route, stream) {
		return 0, fmt.Errorf("an instance of relay runs route %s on stream %s and takes them: relay retries discard is for those", route, stream)
	}
	store, err := dlq.Attach(ctx, js, service)
	if err != nil {
		return 0, err
	}
	return retries.TakeOut(ctx, route, stream, func(p retry.Parked) error {
		e := dlq.Entry{Origin: p.Origin, Reason: dlq.Operator, Instance: by, Header: p.Header, Data: p.Data}
		if e.LastError == "" {
			e.LastError = fmt.Sprintf("no instance takes what waits for route %s of stream %s: taken back from the retry stream", route, stream)
		}
		if dlq.BodyElsewhere(p.Wrapped()) {
			var err error
			if e.Header, e.Data, err = store.Body(ctx, p.Wrapped()); err != nil {
				return err
			}
		}
		err := store.Put(ctx, prefix, e)
		if err == nil && returned != nil {
			returned(p)
		}
		return err
	})
}
