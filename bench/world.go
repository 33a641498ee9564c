package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relaymq/relay/internal/freeport"
)

const streamName = "BENCH"

// world is a nats-server in a process of its own, or a cluster of such, and a connection to the first.
type world struct {
	server   *process
	others   []*process // of a cluster
	url      string
	nc       *nats.Conn
	js       jetstream.JetStream
	stored   int  // messages that were published here
	replicas int  // of the stream; 0 is one
	retries  bool // what waits on relay's retry stream counts as pending
}

func newWorld(ctx context.Context, subjects ...string) (w *world, err error) {
	w = &world{}
	if w.server, err = play(ctx, "server", nil); err != nil {
		return nil, err
	}
	return w, w.connect(ctx, subjects)
}

// newCluster is the same with so many servers; the stream is kept by each of them.
func newCluster(ctx context.Context, servers int, subjects ...string) (*world, error) {
	if servers == 1 {
		return newWorld(ctx, subjects...)
	}
	ports, err := freeport.Some(servers)
	if err != nil {
		return nil, err
	}
	w := &world{replicas: servers}
	for i, port := range ports {
		p, err := play(ctx, "server", node{Name: fmt.Sprintf("bench-%d", i), Port: port, Routes: ports})
		if err != nil {
			w.close()
			return nil, err
		}
		if i == 0 {
			w.server = p
		} else {
			w.others = append(w.others, p)
		}
	}
	for _, p := range w.others {
		var url string
		if err := p.hear(&url, 15*time.Second); err != nil {
			w.close()
			return nil, fmt.Errorf("nats-server: %w", err)
		}
	}
	return w, w.connect(ctx, subjects)
}

// connect waits for the server, and makes the stream if it has subjects. It closes the world when it fails.
func (w *world) connect(ctx context.Context, subjects []string) (err error) {
	begun := time.Now()
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if err := w.server.hear(&w.url, 15*time.Second); err != nil {
		return fmt.Errorf("nats-server: %w", err)
	}
	if w.nc, err = nats.Connect(w.url); err != nil {
		return err
	}
	if w.js, err = jetstream.New(w.nc); err != nil || len(subjects) == 0 {
		return err
	}
	for { // a cluster is not ready for streams at once
		err := w.stream(ctx, subjects...)
		if err == nil || w.replicas <= 1 || ctx.Err() != nil || time.Since(begun) > 20*time.Second {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (w *world) close() {
	if w.nc != nil {
		w.nc.Close()
	}
	for _, p := range append(w.others, w.server) {
		if p != nil {
			p.stop(nil)
		}
	}
}

// serverCPU is what all servers have used.
func (w *world) serverCPU() (sum time.Duration) {
	for _, p := range append(w.others, w.server) {
		cpu, _ := p.cpu()
		sum += cpu
	}
	return sum
}

// allSubjects are those of the stream; a route for each of them covers it.
func allSubjects() []string {
	var all []string
	for i := range routesOf {
		all = append(all, fmt.Sprintf("bench.%d.>", i))
	}
	return all
}

// stream makes the stream with these subjects.
func (w *world) stream(ctx context.Context, subjects ...string) error {
	_, err := w.js.CreateStream(ctx, jetstream.StreamConfig{Name: streamName, Subjects: subjects, Replicas: max(w.replicas, 1)})
	return err
}

// fill stores n messages over so many subjects.
func (w *world) fill(ctx context.Context, n, subjects, size int, seed uint64) error {
	p, err := newPublisher(w.nc, subjects, size, seed)
	if err != nil {
		return err
	}
	defer func() { _ = p.answers.Unsubscribe() }()
	for i := 0; i < n && ctx.Err() == nil; i++ {
		if err := p.send(time.Now()); err != nil {
			return err
		}
	}
	if err := p.wait(30 * time.Second); err != nil {
		return err
	}
	w.stored += n
	return ctx.Err()
}

// state is that of all durables of a turn together.
type state struct {
	pending   int // not delivered yet
	out       int // delivered and not settled; redeliveries are among them
	delivered int // how many deliveries there ever were
}

func (s state) left() int { return s.pending + s.out }

// state asks the server. A durable that was made this moment may say that nothing is pending.
func (w *world) state(ctx context.Context, durables []string) (s state, err error) {
	for _, d := range durables {
		c, err := w.js.Consumer(ctx, streamName, d)
		if err != nil {
			return state{}, err
		}
		info := c.CachedInfo()
		s.pending += int(info.NumPending)
		s.out += info.NumAckPending
		s.delivered += int(info.Delivered.Consumer)
	}
	if w.retries {
		parked, err := w.parked(ctx)
		if err != nil {
			return state{}, err
		}
		s.pending += parked
	}
	return s, nil
}

// forget removes the durables of a turn, those of relay on its retry stream as well.
func (w *world) forget(ctx context.Context, durables []string) error {
	var errs []error
	for _, d := range durables {
		if err := w.js.DeleteConsumer(ctx, streamName, d); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			errs = append(errs, err)
		}
	}
	retry, err := w.js.Stream(ctx, "RELAY_RETRY")
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return errors.Join(errs...)
	}
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	names := retry.ConsumerNames(ctx)
	for name := range names.Name() {
		errs = append(errs, w.js.DeleteConsumer(ctx, "RELAY_RETRY", name))
	}
	return errors.Join(append(errs, names.Err())...)
}
