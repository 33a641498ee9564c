// Package orphans finds what of relay's waits for a route that is not there, and gives it to one that is, or makes dead letters of it.
package orphans

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/orders"
	"github.com/relaymq/relay/internal/partition"
	"github.com/relaymq/relay/internal/provision"
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
	Retries    = "retries"
	Durable    = "durable"
	Partitions = "partitions"
	Dead       = "dead letters"
)

func (o Orphan) String() string {
	if o.Service != "" {
		of := o.Service
		o.Service = ""
		return "service " + of + ", of which no instance runs: " + o.String()
	}
	switch {
	case o.Kind == Durable:
		return fmt.Sprintf("durable %s on stream %s of route %s: %d messages wait, %d are outstanding; %s", o.Durable, o.Stream, o.Route, o.Messages, o.Outstanding, o.Next)
	case o.Kind == Partitions:
		return fmt.Sprintf("stream %s of the partitions of route %s: %d messages wait, %d are outstanding; %s", o.Stream, o.Route, o.Messages, o.Outstanding, o.Next)
	case o.Route == "":
		return fmt.Sprintf("%d messages of stream %s that no route wanted are in the retry stream; %s", o.Messages, o.Stream, o.Next)
	case o.Kind == Dead:
		return fmt.Sprintf("%d dead letters of route %s; %s", o.Messages, o.Route, o.Next)
	}
	return fmt.Sprintf("%d messages of route %s from stream %s are in the retry stream; %s", o.Messages, o.Route, o.Stream, o.Next)
}

// Search is for what waits for routes that are not there. What another running instance pulls is no orphan.
type Search struct {
	JS      jetstream.JetStream
	Service string // empty: relay
	// Answers tells whether an instance of a service answers now.
	Answers func(ctx context.Context, service string) (bool, error)
	// Used has it find what an instance uses now, too.
	Used bool
}

// Route is a route that is there.
type Route struct {
	Name, Durable string
	Divided       bool // it has partitions
}

// All finds what waits for routes that are not among these. It reads the subjects of the retry stream and of the dead letters, and asks for every
// durable of every stream.
func (s Search) All(ctx context.Context, routes []Route) ([]Orphan, error) {
	s.Service = cmp.Or(s.Service, "relay")
	known, divided := make(map[string]bool), make(map[string]bool)
	reading := make(map[[2]string]bool)
	for _, rt := range routes {
		known[rt.Name], reading[[2]string{rt.Name, rt.Durable}] = true, true
		divided[rt.Name] = rt.Divided
	}
	// A route may be there and read another stream: what it had of the stream before, or what was replayed to it from one that it never
	// read, has no durable, or one from which nobody pulls while it pulls from that of its stream.
	reads, err := s.dueDurables(ctx)
	if err != nil {
		return nil, err
	}
	list, err := s.Retries(ctx, func(route, stream string) bool {
		return known[route] && (stream == "" || takes(reads[route], stream))
	})
	if err != nil {
		return nil, err
	}
	var names, others []string
	streams := s.JS.ListStreams(ctx)
	for info := range streams.Info() {
		if p, ok := partition.Of(info); ok {
			if p.Service == s.Service && !divided[p.Route] {
				left, err := s.Partitions(ctx, p)
				if err != nil {
					return nil, err
				}
				list = append(list, left...)
			}
			continue // its durables go with it
		}
		if other := ServiceOf(info); other == "" {
			names = append(names, info.Config.Name)
		} else if other != s.Service {
			others = append(others, other)
		}
	}
	if err := streams.Err(); err != nil {
		return nil, err
	}
	more, err := s.durablesOn(ctx, names, func(route, durable string) bool { return reading[[2]string{route, durable}] })
	if err != nil {
		return nil, err
	}
	list = append(list, more...)
	for _, other := range others {
		if more, err = s.LeftBy(ctx, other, names); err != nil {
			return nil, err
		}
		list = append(list, more...)
	}
	dead, err := s.deadLetters(ctx)
	if err != nil {
		return nil, err
	}
	for route, n := range dead {
		if !known[route] {
			list = append(list, Orphan{Kind: Dead, Route: route, Messages: n,
				Next: "give them to another route: relay orphans move --from " + route + " --to ROUTE, or publish them again, for the routes that there are: relay dlq replay --route " + route + " --to-subject original"})
		}
	}
	return list, nil
}

// deadLetters counts those of a service by their routes.
func (s Search) deadLetters(ctx context.Context) (map[string]uint64, error) {
	dead := make(map[string]uint64)
	err := retry.Subjects(ctx, s.JS, strings.ToUpper(s.Service)+"_DLQ", s.Service+".dlq.>", func(subject string, n int) {
		route, _, _ := strings.Cut(strings.TrimPrefix(subject, s.Service+".dlq."), ".")
		dead[route] += uint64(n)
	})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		err = nil
	}
	return dead, err
}

// durablesOn is [Search.Durables] for streams.
func (s Search) durablesOn(ctx context.Context, names []string, known func(route, durable string) bool) (list []Orphan, err error) {
	for _, name := range names {
		stream, err := s.JS.Stream(ctx, name)
		if err != nil {
			return nil, err
		}
		more, err := s.Durables(ctx, stream, known)
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
func (s Search) dueDurables(ctx context.Context) (map[string]map[string]bool, error) {
	list := make(map[string]map[string]bool)
	stream, err := s.JS.Stream(ctx, retry.StreamName(s.Service))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return list, nil
	}
	if err != nil {
		return nil, err
	}
	durables := stream.ListConsumers(ctx)
	for info := range durables.Info() {
		rest, _ := strings.CutPrefix(info.Config.FilterSubject, s.Service+".due.")
		if parts := strings.Split(rest, "."); len(parts) == 3 && parts[2] == ">" {
			if list[parts[0]] == nil {
				list[parts[0]] = make(map[string]bool)
			}
			list[parts[0]][parts[1]] = info.NumWaiting > 0
		}
	}
	return list, durables.Err()
}

// Retries are messages in the retry stream of routes that are not known, and that nobody consumes.
func (s Search) Retries(ctx context.Context, known func(route, stream string) bool) ([]Orphan, error) {
	retries, err := retry.AttachStream(ctx, s.JS, s.Service, retry.StreamName(s.Service))
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
		if known(k.Route, k.Stream) || !s.Used && consumed(ctx, s.JS, retries.Name(), k.Route, k.Stream) {
			continue
		}
		o := Orphan{Kind: Retries, Route: k.Route, Stream: k.Stream, Messages: uint64(k.Parked + k.Due)}
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
func (s Search) inUse(ctx context.Context, info *jetstream.ConsumerInfo, routes []string) bool {
	if book, err := audit.Attach(ctx, s.JS, s.Service); err == nil {
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
	bucket, err := s.JS.KeyValue(ctx, orders.Name(s.Service))
	if err != nil {
		return false
	}
	for _, name := range routes {
		var order orders.Order
		e, err := bucket.Get(ctx, orders.Order{Route: name}.BucketKey())
		if err == nil && json.Unmarshal(e.Value(), &order) == nil && order.State == orders.Paused {
			return true
		}
	}
	return false
}

// Durables are those of a stream that relay made, for routes that are not known, and that nobody pulls from.
func (s Search) Durables(ctx context.Context, stream jetstream.Stream, known func(route, durable string) bool) (list []Orphan, err error) {
	if partition.Is(stream.CachedInfo().Config) {
		return nil, nil // its durables go with it
	}
	durables := stream.ListConsumers(ctx)
	for info := range durables.Info() {
		m := provision.MarkOf(info.Config.Metadata)
		if m.Service != s.Service || !s.Used && info.NumWaiting > 0 {
			continue
		}
		var names []string
		wanted := false
		for name := range m.Routes {
			names = append(names, name)
			wanted = wanted || known(name, info.Name)
		}
		if wanted || !s.Used && s.inUse(ctx, info, names) {
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
			Kind: Durable, Route: strings.Join(names, " "), Stream: info.Stream, Durable: info.Name, Messages: info.NumPending, Outstanding: info.NumAckPending, Next: next,
		})
	}
	return list, durables.Err()
}

// Partitions is the stream of partitions of a route that has none any more, unless an instance works on it still.
func (s Search) Partitions(ctx context.Context, p *partition.Stream) ([]Orphan, error) {
	o := Orphan{Kind: Partitions, Route: p.Route, Stream: p.Name()}
	there := 0
	for n := range p.Count {
		durable, err := s.JS.Consumer(ctx, p.Name(), p.DurableOf(n))
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		info := durable.CachedInfo()
		if !s.Used && (info.NumWaiting > 0 || s.inUse(ctx, info, []string{p.Route})) {
			return nil, nil
		}
		there++
		o.Messages, o.Outstanding = o.Messages+info.NumPending, o.Outstanding+info.NumAckPending
	}
	if there < p.Count {
		o.Messages = p.Info.State.Msgs
	}
	copying := ""
	if p.Sources() {
		copying = fmt.Sprintf(", to which the server copies what comes to %s", p.Stream)
	}
	o.Next = fmt.Sprintf("start the route with partitions again, or remove the stream%s, once nothing of it is wanted any more: nats stream rm %s", copying, p.Name())
	return []Orphan{o}, nil
}

// NewSearch is one that asks for the status of the instances of a service, to know which of them are there.
func NewSearch(js jetstream.JetStream, service string) Search {
	return Search{JS: js, Service: service, Answers: AnyAnswers(js)}
}

// AnyAnswers is the Answers of a [Search]: it asks for the status of the instances of a service.
func AnyAnswers(js jetstream.JetStream) func(ctx context.Context, service string) (bool, error) {
	return func(ctx context.Context, service string) (bool, error) {
		_, err := control.AskStatus(ctx, js.Conn(), service)
		if errors.Is(err, control.ErrNobody) {
			return false, nil
		}
		return err == nil, err
	}
}
