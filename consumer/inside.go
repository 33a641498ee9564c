package consumer

import (
	"context"
	"slices"

	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/consumer/internal/upkeep"
	"github.com/relaymq/relay/internal/supervise"
)

// What the engine knows of routes and of what they share; it knows neither handlers nor verdicts by their public names.

// spec is the route as the engine runs it, in the middleware of the Relay.
func (r Route) spec(outer []Middleware) route.Spec {
	r, fault := checked(r)
	s := route.Spec{
		Name: r.Name, Subjects: r.Subjects, Stream: r.Stream, Durable: r.Durable,
		Start:       source.Start{Policy: r.Start.Policy, Since: r.Start.Since, Seq: r.Start.Seq, Text: r.Start.String()},
		Concurrency: r.Concurrency, Limits: r.Limits, Rate: r.Rate, Burst: r.Burst, Key: r.Key, Order: r.Order, Instances: r.Instances,
		Partitions: r.Partitions, Timeout: r.Timeout, AckWait: r.AckWait, Retry: route.Retrying(r.Retry), Supervisor: r.Supervisor,
		Stash:      supervise.Room{Messages: r.Stash.Messages, Bytes: int(r.Stash.Bytes)},
		DeadPrefix: r.DeadLetter.Prefix,
		Reply:      r.Caller.Reply, Interest: r.Caller.Interest, MaxResult: int(r.Caller.MaxResult),
		ExpiredToLetters: r.Deadline.OnExpired == ExpiredDeadLetter,
		Ask:              route.Ask{Timeout: r.Interest.Timeout, DropUnknown: r.Interest.Unknown == UnknownDrop, Every: r.Interest.Every},
		Code:             r.code(outer),
		Fault:            fault,
	}
	if b := r.Batch; b != nil {
		s.Batch = &route.Batching{Size: b.Size, Wait: b.Wait, Bytes: int(b.Bytes)}
	}
	if f := r.Fallback; f != nil {
		s.Fallback = &route.Substitute{
			When: f.When, Waiting: slices.Contains(f.When, FallbackWaiting), Exhausted: slices.Contains(f.When, FallbackExhausted),
			Concurrency: f.Concurrency, Timeout: f.Timeout, Code: r.fallbackCode(outer),
		}
	}
	return s
}

// code is what handles the messages of the route.
func (r Route) code(outer []Middleware) route.Code {
	_, outside := r.Handler.(Outside)
	c := route.Code{Check: r.Check, Outside: outside || r.Outside && r.Factory != nil, Middleware: len(r.Use) > 0}
	c.OwnBytes = r.OwnBytes || c.Outside && len(outer)+len(r.Use) == 0 // a middleware runs here, and may change what it gets
	if r.Handler != nil {
		c.Shared = r.Handler
	}
	if checker, ok := r.Handler.(Checker); ok {
		c.Check = checker.Check
	}
	if r.Factory != nil {
		c.New = func(key string) (any, error) {
			h, err := r.Factory(key)
			if h == nil {
				return nil, err
			}
			return h, err
		}
	}
	c.Wrap = func(handler any) (route.Call, func() int) {
		h, _ := handler.(Handler) // a route with a fault may have none
		if bh, ok := h.(BatchHandler); ok && r.Batch != nil {
			b := newBatcher(bh, *r.Batch, r.Concurrency)
			return calling(r.wrap(b, outer)), b.Hung
		}
		return calling(r.wrap(h, outer)), nil
	}
	return c
}

// fallbackCode is what handles messages in the place of the route's own handler.
func (r Route) fallbackCode(outer []Middleware) route.Code {
	h := r.Fallback.Handler
	_, outside := h.(Outside)
	c := route.Code{Outside: outside, OwnBytes: outside && len(outer)+len(r.Use) == 0}
	if h != nil {
		c.Shared = h
	}
	if checker, ok := h.(Checker); ok {
		c.Check = checker.Check
	}
	c.Wrap = func(handler any) (route.Call, func() int) {
		h, _ := handler.(Handler)
		return calling(r.wrap(h, outer)), nil
	}
	return c
}

// handed is what a handler gets and may keep: the context and the message of one attempt, in one piece.
type handed struct {
	attempt supervise.Attempt
	msg     Msg
}

func (h *handed) Attempt() *supervise.Attempt { return &h.attempt }

func (h *handed) Give(g route.Given) {
	h.msg = Msg{
		ID: g.ID, Route: g.Route, Subject: g.Subject, Data: g.Data, Header: g.Header, Attempt: g.Attempt,
		Stream: g.Stream, Consumer: g.Consumer, Sequence: g.Sequence, Time: g.Time, Replay: g.Replay, Deadline: g.Deadline, Fence: g.Fence,
		result: g.Result, own: g.Own, gate: g.StillWanted,
	}
}

// calling has a handler called with what is handed to it.
func calling(h Handler) route.Call {
	return func(ctx context.Context, m route.Msg) error { return h.Handle(ctx, &m.(*handed).msg) }
}

// inside is what the engine knows of the configuration, which has its defaults.
func (c Config) inside() route.Config {
	return route.Config{
		Config: c.stores(), Domain: c.Domain, Limits: c.Limits,
		Parked: upkeep.Room{Bytes: int64(c.Parked.MaxBytes), Messages: c.Parked.MaxMsgs, Age: c.Parked.MaxAge},
		Drain:  c.Drain, Stalled: c.Stalled, Lease: c.Fleet.lease(), Results: c.Archive.Results, Adopt: c.Adopt, Troubles: c.Troubles, Logger: c.Logger,
		NewMsg: func() route.Msg { return new(handed) }, CalledBackFrom: c.asideMostPending,
	}
}
