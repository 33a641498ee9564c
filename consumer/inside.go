package consumer

import (
	"context"
	"slices"

	"github.com/relaymq/relay/consumer/internal/engine"
	"github.com/relaymq/relay/consumer/internal/route"
	"github.com/relaymq/relay/consumer/internal/source"
	"github.com/relaymq/relay/consumer/internal/stores"
	"github.com/relaymq/relay/consumer/internal/upkeep"
	"github.com/relaymq/relay/internal/supervise"
)

// What the engine knows of routes and of what they share; it knows neither handlers nor verdicts by their public names.

// spec is the route as the engine runs it, in the middleware of the Relay, with what is wrong with it.
func (r Route) spec(outer []Middleware) route.Spec {
	r, fault := checked(r)
	s := r.inside(outer)
	s.Fault = fault
	return s
}

// inside is spec of a route with its defaults, without the check.
func (r Route) inside(outer []Middleware) route.Spec {
	s := route.Spec{
		Name: r.Name, Subjects: r.Subjects, Stream: r.Stream, Durable: r.Durable,
		Start:       source.Start{Policy: r.Start.Policy, Since: r.Start.Since, Seq: r.Start.Seq, Text: r.Start.String()},
		Concurrency: r.Concurrency, Limits: r.Limits, Rate: r.Rate, Burst: r.Burst, Key: r.Key, Order: r.Order, Instances: r.Instances,
		Partitions: r.Partitions, Timeout: r.Timeout, AckWait: r.AckWait, Retry: route.Retry(r.Retry), Supervisor: r.Supervisor,
		Stash:      supervise.Room{Messages: r.Stash.Messages, Bytes: int(r.Stash.Bytes)},
		DeadPrefix: r.DeadLetter.Prefix,
		Reply:      r.Caller.Reply, Interest: r.Caller.Interest, MaxResult: int(r.Caller.MaxResult),
		ExpiredToLetters: r.Deadline.OnExpired == ExpiredDeadLetter,
		Ask:              route.Ask{Timeout: r.Interest.Timeout, DropUnknown: r.Interest.Unknown == UnknownDrop, Every: r.Interest.Every},
		Code:             r.code(outer),
	}
	if b := r.Batch; b != nil {
		s.Batch = &route.Batch{Size: b.Size, Wait: b.Wait, Bytes: int(b.Bytes)}
	}
	if f := r.Fallback; f != nil {
		s.Fallback = &route.Fallback{
			When: f.When, Waiting: slices.Contains(f.When, FallbackWaiting), Exhausted: slices.Contains(f.When, FallbackExhausted),
			Concurrency: f.Concurrency, Timeout: f.Timeout, Code: r.fallbackCode(outer),
		}
	}
	return s
}

// code is what handles the messages of the route.
func (r Route) code(outer []Middleware) route.Code {
	c := codeOf(r.Handler)
	if c.Check == nil {
		c.Check = r.Check
	}
	c.Outside = c.Outside || r.Outside && r.Factory != nil
	c.OwnBytes = r.OwnBytes || c.Outside && len(outer)+len(r.Use) == 0 // a middleware runs here, and may change what it gets
	c.Middleware = len(r.Use) > 0
	if f := r.Factory; f != nil {
		c.New = func(key string) (any, error) { return f(key) }
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
	c := codeOf(r.Fallback.Handler)
	c.OwnBytes = c.Outside && len(outer)+len(r.Use) == 0
	c.Wrap = func(handler any) (route.Call, func() int) {
		h, _ := handler.(Handler)
		return calling(r.wrap(h, outer)), nil
	}
	return c
}

// codeOf is what a handler that all keys share says of itself.
func codeOf(h Handler) (c route.Code) {
	c.Shared = h
	_, c.Outside = h.(Outside)
	if checker, ok := h.(Checker); ok {
		c.Check = checker.Check
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
func (c Config) inside() engine.Config {
	return engine.Config{
		Config: route.Config{
			Config: c.stores(), Parked: upkeep.Room{Bytes: int64(c.Parked.MaxBytes), Messages: c.Parked.MaxMsgs, Age: c.Parked.MaxAge},
			Stalled: c.Stalled, Results: c.Archive.Results, NewMsg: func() route.Msg { return new(handed) }, CalledBackFrom: c.calledBackFrom,
		},
		Domain: c.Domain, Limits: c.Limits, Drain: c.Drain, Lease: c.Fleet.lease(), Adopt: c.Adopt, Troubles: c.Troubles, Logger: c.Logger,
	}
}

// stores is what this says of relay's own streams and buckets.
func (c Config) stores() stores.Config {
	own := stores.Config{Service: c.Service, Instance: c.Instance, Replicas: c.Replicas, Letters: stores.Letters{
		Bounds: stores.Bounds{Age: c.DLQ.MaxAge, Bytes: c.DLQ.MaxBytes, Messages: c.DLQ.MaxMsgs}, OnFull: c.DLQ.OnFull,
	}}
	if e := c.Events; e.Store {
		own.Events = &stores.Bounds{Age: e.MaxAge, Bytes: int64(e.MaxBytes), Messages: int64(e.MaxMsgs)}
	}
	if a := c.Archive; a.Outcomes {
		own.Archive = &stores.Bounds{Age: a.MaxAge, Bytes: int64(a.MaxBytes), Messages: int64(a.MaxMsgs)}
	}
	return own
}

// inside is the change as the engine makes it. Routes with faults are in it too.
func (r *Relay) inside(c Change) engine.Change {
	in := engine.Change{Remove: c.Remove, Limits: c.Limits, DeliverAgain: c.DeliverAgain}
	for _, rt := range c.Add {
		in.Add = append(in.Add, rt.spec(r.use))
	}
	for _, rt := range c.Update {
		in.Update = append(in.Update, rt.spec(r.use))
	}
	return in
}
