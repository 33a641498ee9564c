package orphans

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/retry"
)

// What services have left of which no instance runs: one that was renamed, or taken away.

// ServiceOf is the service whose retry stream this is; empty for any other stream.
func ServiceOf(info *jetstream.StreamInfo) string {
	for _, s := range info.Config.Subjects {
		service, ok := strings.CutSuffix(s, ".park.>")
		if ok && info.Config.Name == retry.StreamName(service) && info.Config.AllowMsgSchedules {
			return service
		}
	}
	return ""
}

// LeftBy is what a service has left of which no instance runs: it was renamed, or taken away. Its durables are looked for on these streams.
func (s Search) LeftBy(ctx context.Context, service string, streams []string) (list []Orphan, err error) {
	s.Service, s.Used = service, false
	if runs, err := s.isRunning(ctx); err != nil || runs {
		return nil, err
	}
	retries, err := retry.AttachStream(ctx, s.JS, service, retry.StreamName(service))
	if err != nil {
		return nil, err
	}
	kept, err := retries.Kept(ctx)
	if err != nil {
		return nil, err
	}
	move := func(route, stream string) string {
		return "start an instance of that service, or give them to a route of this one: relay orphans move --of-service " + service + " --from " + route + " --to ROUTE" + stream
	}
	for _, k := range kept {
		o := Orphan{Kind: Retries, Service: service, Route: k.Route, Stream: k.Stream, Messages: uint64(k.Parked + k.Due), Next: "start an instance of that service"}
		if k.Route != retry.NoRoute && k.Stream != "" {
			o.Next = move(k.Route, " --stream "+k.Stream)
		}
		list = append(list, o)
	}
	dead, err := s.deadLetters(ctx)
	if err != nil {
		return nil, err
	}
	for _, route := range slices.Sorted(maps.Keys(dead)) {
		list = append(list, Orphan{Kind: Dead, Service: service, Route: route, Messages: dead[route], Next: move(route, "")})
	}
	durables, err := s.durablesOn(ctx, streams, func(string, string) bool { return false })
	for _, o := range durables {
		o.Service = service
		o.Next = strings.Replace(o.Next, "relay orphans move --from", "relay orphans move --of-service "+service+" --from", 1)
		if o.Messages+uint64(o.Outstanding) > 0 {
			list = append(list, o)
		}
	}
	return list, err
}

// seenFor is for how long a service counts as running after an instance, that did not end, wrote to its ledger last.
const seenFor = 2 * time.Minute

// isRunning tells whether an instance of a service runs, or ran a moment ago.
func (s Search) isRunning(ctx context.Context) (bool, error) {
	if here, err := s.isHere(ctx); here || err != nil {
		return here, err
	}
	if book, err := audit.Attach(ctx, s.JS, s.Service); err == nil {
		all, _, err := book.List(ctx)
		if err != nil {
			return false, err
		}
		for _, record := range all {
			for _, i := range record.Instances {
				if time.Since(i.At) < seenFor {
					return true, nil
				}
			}
		}
	}
	return false, nil
}

// isHere tells whether an instance of a service pulls or answers now.
func (s Search) isHere(ctx context.Context) (bool, error) {
	stream, err := s.JS.Stream(ctx, retry.StreamName(s.Service))
	if err != nil {
		return false, err
	}
	durables := stream.ListConsumers(ctx)
	for info := range durables.Info() {
		if info.NumWaiting > 0 {
			return true, nil
		}
	}
	if err := durables.Err(); err != nil {
		return false, err
	}
	return s.Answers(ctx, s.Service)
}
