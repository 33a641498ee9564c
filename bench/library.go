package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/relaymq/relay/consumer"
	"github.com/relaymq/relay/supervisor"
)

// library is relay inside a Go program, with everything at its default but what the job is about.
func library(t *turn) (func(), error) { return libraryWith(t, consumer.Config{}, nil) }

// limited is library with a limit that never binds.
func limited(t *turn) (func(), error) {
	return libraryWith(t, consumer.Config{Limits: map[string]consumer.Limit{"wide": {Concurrency: 1_000_000}}}, func(rt *consumer.Route) { rt.Limits = []string{"wide"} })
}

// archived is library with a record of each message.
func archived(t *turn) (func(), error) {
	return libraryWith(t, consumer.Config{Archive: consumer.Archive{Outcomes: true}}, nil)
}

// narrowSlots is how many messages narrow and limited20 have in handlers at once.
const narrowSlots = 20

// narrow is library with few slots.
func narrow(t *turn) (func(), error) {
	return libraryWith(t, consumer.Config{}, func(rt *consumer.Route) { rt.Concurrency = narrowSlots })
}

// limited20 is library with the slots of the job, and a limit that lets no more than narrow's run.
func limited20(t *turn) (func(), error) {
	return libraryWith(t, consumer.Config{Limits: map[string]consumer.Limit{"narrow": {Concurrency: narrowSlots}}}, func(rt *consumer.Route) { rt.Limits = []string{"narrow"} })
}

// singleton is library with one instance at a time, of which there is one.
func singleton(t *turn) (func(), error) {
	return libraryWith(t, consumer.Config{}, func(rt *consumer.Route) { rt.Instances = consumer.InstancesOne })
}

// ordered is library with one message of a key at a time, in the order of the stream.
func ordered(t *turn) (func(), error) {
	return libraryWith(t, consumer.Config{}, func(rt *consumer.Route) { rt.Order = supervisor.OrderKey })
}

func libraryWith(t *turn, cfg consumer.Config, change func(*consumer.Route)) (func(), error) {
	cfg.Replicas = t.Replicas
	h, err := t.relayHandler()
	if err != nil {
		return nil, err
	}
	var routes []consumer.Route
	for i, subjects := range t.Routes {
		rt := consumer.Route{
			Name: fmt.Sprintf("%s-%d", t.Run, i), Subjects: subjects, Stream: t.Stream, Durable: t.Run,
			Start: consumer.Start{Policy: "all"}, Concurrency: t.Concurrency, Handler: h,
		}
		if t.Start > 0 {
			rt.Start = consumer.Start{Policy: "seq", Seq: t.Start}
		}
		if d := t.Handler.Delay; d > 0 {
			rt.Retry.Backoff = supervisor.Backoff{Policy: "constant", Min: d, Max: d}
			rt.Retry.ParkAfter = max(10*time.Minute, 2*d)
		}
		if t.Handler.Kind == "refuse" {
			// Nothing but failures is an outage to relay. Here it is the state that the job begins with.
			never := 0
			rt.Supervisor.TripAfter, rt.Supervisor.RouteTrip.Of = &never, &never
		}
		if t.Batch > 0 {
			rt.Batch = &consumer.Batch{Size: t.Batch}
		}
		if change != nil {
			change(&rt)
		}
		routes = append(routes, rt)
	}
	r, err := consumer.New(t.nc, cfg, routes...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		err := r.Run(ctx)
		if err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		ended <- err
	}()
	return func() {
		cancel()
		<-ended
	}, nil
}
