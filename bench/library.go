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
func library(t *turn) (func(), error) {
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
			rt.Supervisor.TripAfter, rt.Supervisor.RouteTripAfter = &never, &never
		}
		routes = append(routes, rt)
	}
	r, err := consumer.New(t.nc, consumer.Config{}, routes...)
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
