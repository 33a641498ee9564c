package engine

import (
	"context"
	"sync"
	"time"

	"github.com/relaymq/relay/consumer/internal/backlog"
	"github.com/relaymq/relay/internal/looks"
)

const (
	// lookNow is the age at which somebody who asks for the status gets fresh counts, and lookPatience how long they may take.
	lookNow      = time.Second
	lookPatience = 200 * time.Millisecond
)

// lookAgain asks the server about all durables whose counts are old, side by side, and returns soon, with or without answers.
func (r *running) lookAgain() {
	ctx, cancel := context.WithTimeout(context.Background(), lookPatience)
	defer cancel()
	old := time.Now().Add(-lookNow)
	var asking sync.WaitGroup
	for _, s := range r.Sources() {
		asking.Go(func() { s.LookAgain(ctx, old) })
	}
	asking.Wait()
}

// parked are the counts of what the routes have in the retry stream.
func (l *routeList) parked() (list []backlog.Parked) {
	for _, rt := range l.All() {
		if r := rt.Home; !rt.Spec.IsCopy() {
			list = append(list, backlog.Parked{
				Count: &rt.ParkedNow, Stored: rt.Count.Parked.Load() + rt.Count.Aside.Load(),
				Stream: r.Stores.Retries.Name(), Filter: r.Config.Service + ".park." + rt.Name() + ".>",
			})
		}
	}
	return list
}

// waiting are the oldest messages of the durables.
func (r *running) waiting() (list []backlog.Waiting) {
	for _, s := range r.Sources() {
		if l := s.Looked(); !s.Due && l != nil {
			list = append(list, backlog.Waiting{Oldest: &s.Oldest, Look: l, Stream: s.Stream, Patterns: s.Subjects()})
		}
	}
	return list
}

// newAsked is what the server is asked by.
func newAsked(r *Engine) *backlog.Server {
	return &backlog.Server{Conn: r.Conn, API: r.API, Streams: r.streams, Age: func() time.Duration { return r.Stores.AmongMany(looks.ShareFor) }}
}
