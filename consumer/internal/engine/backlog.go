package engine

import (
	"context"
	"sync"
	"time"

	"github.com/relaymq/relay/consumer/internal/backlog"
	"github.com/relaymq/relay/internal/control"
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

// backlog is what waits for the route; nil while its durable is not known.
func (rt *Route) backlog() *control.Backlog {
	var b *control.Backlog
	due := uint64(0)
	for _, s := range rt.Engine.Running.Sources() {
		l := s.Looked()
		if !s.Serves(&rt.Source) || l == nil {
			continue
		}
		if s.Due {
			due = l.Pending
			if b != nil {
				b.Outstanding += l.Outstanding
			}
			continue
		}
		b = &control.Backlog{Stream: l.Pending, Outstanding: l.Outstanding, At: l.At}
	}
	if b == nil {
		return nil
	}
	if c := rt.parkedNow.Last(); c != nil {
		n := c.N + due
		b.Parked = &n
	}
	return b
}

// parked are the counts of what the routes have in the retry stream.
func (l *routeList) parked() (list []backlog.Parked) {
	for _, rt := range l.All() {
		if r := rt.Engine; !rt.Spec.isCopy() {
			list = append(list, backlog.Parked{
				Count: &rt.parkedNow, Stored: rt.Count.Parked.Load() + rt.Count.Aside.Load(),
				Stream: r.Stores.Retries.Name(), Filter: r.Config.Service + ".park." + rt.name() + ".>",
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

// oldest is when the oldest message that waits for the route was published; the zero time when none does.
func (rt *Route) Oldest() (at time.Time, known bool) {
	for _, s := range rt.Engine.Running.Sources() {
		if !s.Serves(&rt.Source) || s.Due {
			continue
		}
		if found, ok := s.Oldest.Last(); ok && !s.IsLost() {
			at, known = found, true
		}
	}
	if c := rt.parkedNow.Last(); known && c != nil && !c.Oldest.IsZero() && (at.IsZero() || c.Oldest.Before(at)) {
		at = c.Oldest
	}
	return at, known
}
