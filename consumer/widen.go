package consumer

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/supervisor"
)

// Giving a durable more subjects, and writing down what it passes by that. Package catchup keeps the account.

// mayWiden tells whether it was chosen where a route begins whose subjects the durable has passed.
func (s *setup) mayWiden(ctx context.Context, stream jetstream.Stream, have jetstream.ConsumerConfig) error {
	queue := stream.CachedInfo().Config.Retention == jetstream.WorkQueuePolicy
	for _, g := range s.catchUp.Gap(have, 0) {
		rt := s.routeOfPattern(g.Pattern)
		if policy := rt.cfg.Start.Policy; policy == "all" || policy != "" && !queue || s.catchUp.Had() {
			continue
		}
		n, err := s.catchUp.Holds(ctx, g)
		if err != nil {
			return err
		}
		switch {
		case n == 0:
		case queue:
			return fmt.Errorf("start: stream %s is a work queue and holds %d messages for %s, which durable %s has passed: nobody else can have them, so set start: all for route %s",
				s.stream, n, g.Pattern, s.durable, rt.cfg.Name)
		default:
			return fmt.Errorf("start: stream %s already holds %d messages for %s, which durable %s has passed: say where route %s begins with them (start: all, new, {since: <time>} or {seq: <n>})",
				s.stream, n, g.Pattern, s.durable, rt.cfg.Name)
		}
	}
	return nil
}

// changeAlone changes a durable while no other instance does, and writes down what it passes by that. Without it, two instances that read the same
// configuration would each take away what the other one has added.
func (s *setup) changeAlone(ctx context.Context, stream jetstream.Stream, have, want jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	change, err := s.catchUp.Change(ctx, stream, have, want, func() (jetstream.Consumer, error) { return s.update(ctx, stream, have, want) })
	if change != nil && change.SomebodyElse {
		return s.compare(ctx, stream, change.Consumer)
	}
	if change == nil {
		return nil, err
	}
	for _, g := range change.Passed {
		rt := s.routeOfPattern(g.Pattern)
		rt.log.Info("the durable has passed messages that the route wants now; they are handed over to it through the retry stream",
			"subjects", g.Pattern, "start", rt.cfg.Start.String(), "held", g.Held)
		if rt.cfg.Order == supervisor.OrderKey {
			rt.log.Warn("messages that are handed over are not in order with those that the durable delivers", "subjects", g.Pattern)
		}
	}
	return change.Consumer, err
}
