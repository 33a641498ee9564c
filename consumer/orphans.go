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
	"github.com/relaymq/relay/consumer/internal/provision"
)

// Orphan is something of relay's that waits for a route which is not there: one that was renamed, taken away, or given another
// stream or durable.
type Orphan struct {
	// Kind is retries (messages in the retry stream), durable, or dead letters.
	Kind string `json:"kind"`
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
	OrphanRetries = "retries"
	OrphanDurable = "durable"
	OrphanDead    = "dead letters"
)

func (o Orphan) String() string {
	switch {
	case o.Kind == OrphanDurable:
		return fmt.Sprintf("durable %s on stream %s of route %s: %d messages wait, %d are outstanding; %s", o.Durable, o.Stream, o.Route, o.Messages, o.Outstanding, o.Next)
	case o.Route == "":
		return fmt.Sprintf("%d messages of stream %s that no route wanted are in the retry stream; %s", o.Messages, o.Stream, o.Next)
	case o.Kind == OrphanDead:
		return fmt.Sprintf("%d dead letters of route %s; %s", o.Messages, o.Route, o.Next)
	}
	return fmt.Sprintf("%d messages of route %s from stream %s are in the retry stream; %s", o.Messages, o.Route, o.Stream, o.Next)
}

// Orphans finds what waits for routes that are not among these. What another running instance pulls is no orphan. It reads the
// subjects of the retry stream and of the dead letters, and asks for every durable of every stream.
func Orphans(ctx context.Context, js jetstream.JetStream, service string, routes []string) ([]Orphan, error) {
	service = Config{Service: service}.withDefaults().Service
	known := make(map[string]bool)
	for _, name := range routes {
		known[name] = true
	}
	list, err := orphanedRetries(ctx, js, service, func(route, _ string) bool { return known[route] })
	if err != nil {
		return nil, err
	}
	streams := js.ListStreams(ctx)
	for info := range streams.Info() {
		if info.Config.Name == strings.ToUpper(service)+"_RETRY" {
			continue
		}
		stream, err := js.Stream(ctx, info.Config.Name)
		if err != nil {
			return nil, err
		}
		more, err := orphanedDurables(ctx, stream, service, func(route, _ string) bool { return known[route] })
		if err != nil {
			return nil, err
		}
		list = append(list, more...)
	}
	if err := streams.Err(); err != nil {
		return nil, err
	}
	dead := make(map[string]uint64)
	err = ack.Subjects(ctx, js, strings.ToUpper(service)+"_DLQ", service+".dlq.>", func(subject string, n int) {
		route, _, _ := strings.Cut(strings.TrimPrefix(subject, service+".dlq."), ".")
		if !known[route] {
			dead[route] += uint64(n)
		}
	})
	if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, err
	}
	for route, n := range dead {
		list = append(list, Orphan{Kind: OrphanDead, Route: route, Messages: n,
			Next: "replay them (relay dlq replay --route " + route + "), and move what then waits: relay orphans move --from " + route + " --to ROUTE"})
	}
	return list, nil
}

// orphanedRetries are messages in the retry stream of routes that are not known, and that nobody consumes.
func orphanedRetries(ctx context.Context, js jetstream.JetStream, service string, known func(route, stream string) bool) ([]Orphan, error) {
	retries, err := ack.AttachRetryStream(ctx, js, service, strings.ToUpper(service)+"_RETRY")
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
		if known(k.Route, k.Stream) || consumed(ctx, js, retries.Name(), k) {
			continue
		}
		o := Orphan{Kind: OrphanRetries, Route: k.Route, Stream: k.Stream, Messages: uint64(k.Parked + k.Due)}
		switch {
		case k.Route == ack.NoRoute:
			o.Route, o.Next = "", "a route on that stream whose subjects they match gets them when relay starts"
		case k.Stream == "":
			o.Next = "an earlier version of relay handed them over; start the route, or move them: relay orphans move --from " + k.Route + " --to ROUTE --stream STREAM"
		default:
			o.Next = "start the route, or move them: relay orphans move --from " + k.Route + " --to ROUTE --stream " + k.Stream
		}
		list = append(list, o)
	}
	return list, nil
}

// consumed tells whether an instance pulls what comes due of a route.
func consumed(ctx context.Context, js jetstream.JetStream, stream string, k ack.Kept) bool {
	name := k.Route
	if k.Stream != "" {
		name = ack.DueDurable(k.Route, k.Stream)
	}
	durable, err := js.Consumer(ctx, stream, name)
	return err == nil && durable.CachedInfo().NumWaiting > 0
}

// orphanedDurables are those of a stream that relay made, for routes that are not known, and that nobody pulls from.
func orphanedDurables(ctx context.Context, stream jetstream.Stream, service string, known func(route, durable string) bool) (list []Orphan, err error) {
	durables := stream.ListConsumers(ctx)
	for info := range durables.Info() {
		m := provision.MarkOf(info.Config.Metadata)
		if m.Service != service || info.NumWaiting > 0 {
			continue
		}
		var names []string
		wanted := false
		for name := range m.Routes {
			names = append(names, name)
			wanted = wanted || known(name, info.Name)
		}
		if wanted {
			continue
		}
		list = append(list, Orphan{
			Kind: OrphanDurable, Route: strings.Join(names, " "), Stream: info.Stream, Durable: info.Name, Messages: info.NumPending, Outstanding: info.NumAckPending,
			Next: fmt.Sprintf("give a route this durable, or begin another one behind it (start: {seq: %d}) and remove it: nats consumer rm %s %s", info.AckFloor.Stream+1, info.Stream, info.Name),
		})
	}
	return list, durables.Err()
}

// MoveOrphans gives messages of a route in the retry stream to another route of the same stream, which must have been started
// once. It returns how many were moved, with an error that ended it; a second call goes on.
func MoveOrphans(ctx context.Context, js jetstream.JetStream, service, from, to, stream string, moved func()) (int, error) {
	service = Config{Service: service}.withDefaults().Service
	retries, err := ack.AttachRetryStream(ctx, js, service, strings.ToUpper(service)+"_RETRY")
	if err != nil {
		return 0, err
	}
	if _, err := js.Consumer(ctx, retries.Name(), ack.DueDurable(to, stream)); err != nil {
		return 0, fmt.Errorf("route %s gets nothing of stream %s: start relay with that route first (%w)", to, stream, err)
	}
	if consumed(ctx, js, retries.Name(), ack.Kept{Route: from, Stream: stream}) {
		return 0, fmt.Errorf("an instance of relay runs route %s on stream %s: stop it first", from, stream)
	}
	return retries.Move(ctx, ack.Move{From: from, Stream: stream, To: func(ack.Origin) string { return to }, Moved: moved})
}

// findOrphans gives messages that no route wanted to those that want them now, and says what still waits for nobody.
func (r *Relay) findOrphans(ctx context.Context) {
	own := make(map[[2]string]bool)
	var found []Orphan
	for _, s := range r.openSources() {
		if s.due {
			continue
		}
		for _, rt := range s.routes {
			own[[2]string{rt.cfg.Name, s.stream}] = true
			own[[2]string{rt.cfg.Name, ""}] = true
		}
		n, err := r.retries.Move(ctx, ack.Move{From: ack.NoRoute, Stream: s.stream, To: func(o ack.Origin) string {
			if rt := s.routeOf(o.Subject); rt != nil && o.Consumer == s.durable {
				return rt.cfg.Name
			}
			return ""
		}})
		if n > 0 {
			s.log.Info("messages that no route wanted when they came go to the routes that want them now", "count", n)
		}
		if err != nil {
			s.log.Debug("messages that no route wanted could not be searched", "error", err)
		}
		if stream, err := r.js.Stream(ctx, s.stream); err == nil {
			list, _ := orphanedDurables(ctx, stream, r.cfg.Service, func(_, durable string) bool { return r.has(s.stream, durable) })
			found = append(found, list...)
		}
	}
	list, err := orphanedRetries(ctx, r.js, r.cfg.Service, func(route, stream string) bool { return own[[2]string{route, stream}] })
	if err != nil {
		r.log.Debug("the retry stream could not be searched for messages that wait for no route", "error", err)
		return
	}
	found = append(found, list...)
	for _, o := range found {
		r.log.Warn("something waits for a route that is not here", "orphan", o.String())
	}
	r.orphans.Store(&found)
}

// has tells whether a durable is one of this instance.
func (r *Relay) has(stream, durable string) bool {
	return slices.ContainsFunc(r.openSources(), func(s *source) bool { return s.stream == stream && s.durable == durable })
}

// watchOrphans looks for them at the start and hourly.
func (r *Relay) watchOrphans(ctx context.Context) {
	tick := time.NewTicker(time.Hour)
	defer tick.Stop()
	for {
		r.findOrphans(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// orphaned is what was found last.
func (r *Relay) orphaned() []Orphan {
	if list := r.orphans.Load(); list != nil {
		return *list
	}
	return nil
}
