package consumer

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/audit"
	"github.com/relaymq/relay/internal/retry"
)

// What services have left of which no instance runs: one that was renamed, or taken away.

// serviceOf is the service whose retry stream this is; empty for any other stream.
func serviceOf(info *jetstream.StreamInfo) string {
	for _, s := range info.Config.Subjects {
		service, ok := strings.CutSuffix(s, ".park.>")
		if ok && info.Config.Name == retryStreamOf(service) && info.Config.AllowMsgSchedules {
			return service
		}
	}
	return ""
}

// leftBy is what a service has left of which no instance runs: it was renamed, or taken away. Its durables are looked for on these streams.
func leftBy(ctx context.Context, js jetstream.JetStream, service string, streams []string) (list []Orphan, err error) {
	if runs, err := isRunning(ctx, js, service); err != nil || runs {
		return nil, err
	}
	retries, err := retry.AttachStream(ctx, js, service, retryStreamOf(service))
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
		o := Orphan{Kind: OrphanRetries, Service: service, Route: k.Route, Stream: k.Stream, Messages: uint64(k.Parked + k.Due), Next: "start an instance of that service"}
		if k.Route != retry.NoRoute && k.Stream != "" {
			o.Next = move(k.Route, " --stream "+k.Stream)
		}
		list = append(list, o)
	}
	dead, err := deadLetters(ctx, js, service)
	if err != nil {
		return nil, err
	}
	for _, route := range slices.Sorted(maps.Keys(dead)) {
		list = append(list, Orphan{Kind: OrphanDead, Service: service, Route: route, Messages: dead[route], Next: move(route, "")})
	}
	durables, err := durablesOn(ctx, js, streams, service, whatNobodyUses, func(string, string) bool { return false })
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
func isRunning(ctx context.Context, js jetstream.JetStream, service string) (bool, error) {
	if here, err := isHere(ctx, js, service); here || err != nil {
		return here, err
	}
	if book, err := audit.Attach(ctx, js, service); err == nil {
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
func isHere(ctx context.Context, js jetstream.JetStream, service string) (bool, error) {
	stream, err := js.Stream(ctx, retryStreamOf(service))
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
	switch _, err := AskStatus(ctx, js.Conn(), service); {
	case errors.Is(err, ErrNobody):
		return false, nil
	case err != nil:
		return false, err
	}
	return true, nil
}
