package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/supervisor"
)

const (
	partitions         = 16
	partitionInstances = 3
)

// partitioned is one of the instances among which the partitions of an ordered route are divided.
func partitioned(t *turn) (func(), error) {
	return libraryWith(t, consumer.Config{}, func(rt *consumer.Route) { rt.Order, rt.Partitions = supervisor.OrderKey, partitions })
}

// overInstances drains a backlog in the order of keys: by one instance, or by several with partitions, which have the stream copied at the same
// time. All is measured from the first message that is settled.
func (b *bench) overInstances(ctx context.Context, j *job) error {
	w, err := newCluster(ctx, max(j.replicas, 1), j.streamSubjects()...)
	if err != nil {
		return err
	}
	defer w.close()
	n := b.size(j.n)
	if err := w.fill(ctx, n, j.subjects, j.size, b.seed); err != nil {
		return err
	}
	return b.inTurns(ctx, j, func(who string, round int) (r sample, err error) {
		s := b.spec(w, j, who, round)
		s.Replicas = j.replicas
		instances := 1
		if who == "partitioned" {
			instances = partitionInstances
		}
		var all []*contestant
		defer func() {
			for _, c := range all {
				if err != nil {
					c.giveUp()
				}
			}
		}()
		for i := range instances {
			one := *s
			if i > 0 {
				one.Profile = ""
			}
			c, err := b.enter(ctx, &one)
			if err != nil {
				return r, err
			}
			all = append(all, c)
		}
		look := func() (m mark, err error) {
			m.at = time.Now()
			m.server = w.serverCPU()
			for _, c := range all {
				cpu, e := c.cpu()
				m.cpu, err = m.cpu+cpu, errors.Join(err, e)
			}
			if err == nil {
				m.left, err = w.unsettled(ctx, s, n)
			}
			return m, err
		}
		begun := time.Now()
		start := mark{at: begun, server: w.serverCPU(), left: n}
		for _, c := range all {
			cpu, err := c.cpu()
			if err != nil {
				return r, err
			}
			start.cpu += cpu
		}
		var from, to mark
		for to.at.IsZero() || to.left > 0 && to.at.Sub(from.at) < b.atMost(j.atMost) {
			select {
			case <-ctx.Done():
				return r, ctx.Err()
			case <-all[0].ended:
				return r, all[0].failure()
			case <-time.After(100 * time.Millisecond):
			}
			m, err := look()
			switch {
			case errors.Is(err, context.DeadlineExceeded) && time.Since(begun) < 2*time.Minute: // a cluster that makes many durables, or is busy
			case err != nil:
				return r, err
			case m.left == n || from.at.IsZero() && m.left > 0: // nothing is settled yet, or this is the first look
				from = m
			default:
				to = m
			}
		}
		if from.at.IsZero() { // a tiny job, over before the first look
			from = start
		}
		r = sample{Messages: from.left - to.left, Seconds: to.at.Sub(from.at).Seconds(), CPU: to.cpu - from.cpu, ServerCPU: to.server - from.server, Capped: to.left > 0}
		for _, c := range all {
			r.RSS = max(r.RSS, c.peakRSS())
			said, err := c.leave(ctx)
			if err != nil {
				return r, err
			}
			r.Mallocs += said.Mallocs
		}
		r.Handled = n - to.left
		return r, w.forgetPartitions(ctx, s)
	})
}

// unsettled is how many of n messages are not settled, by the durable of the route or by those of its partitions.
func (w *world) unsettled(ctx context.Context, s *spec, n int) (left int, err error) {
	stream, durables := streamName, []string{s.Run}
	if s.Contestant == "partitioned" {
		if stream, err = w.copyOf(ctx, s); err != nil || stream == "" {
			return n, err
		}
		durables = nil
		for i := range partitions {
			durables = append(durables, fmt.Sprintf("%s-%d", s.Run, i))
		}
	}
	settled := 0
	for _, d := range durables {
		c, err := w.js.Consumer(ctx, stream, d)
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			continue // to be made
		}
		if err != nil {
			return n, err
		}
		settled += int(c.CachedInfo().Delivered.Consumer) - c.CachedInfo().NumAckPending
	}
	return n - settled, nil
}

// copyOf is the stream of the route's partitions; empty: there is none yet.
func (w *world) copyOf(ctx context.Context, s *spec) (string, error) {
	var all []string
	names := w.js.StreamNames(ctx)
	for name := range names.Name() {
		if strings.HasSuffix(name, "_G1") {
			all = append(all, name)
		}
	}
	i := slices.IndexFunc(all, func(name string) bool { return strings.Contains(strings.ToLower(name), s.Run) })
	if names.Err() != nil || i < 0 {
		return "", names.Err()
	}
	return all[i], nil
}

func (w *world) forgetPartitions(ctx context.Context, s *spec) error {
	name, err := w.copyOf(ctx, s)
	if err == nil && name != "" {
		err = w.js.DeleteStream(ctx, name)
	}
	err = errors.Join(err, w.js.DeleteConsumer(ctx, streamName, s.Run))
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return nil
	}
	return err
}
