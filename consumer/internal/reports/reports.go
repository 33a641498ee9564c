// Package reports says in events what happens to an instance, its routes and their messages: which kind each is, and its line for people.
package reports

import (
	"context"
	"fmt"
	"time"

	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/eventkind"
	"github.com/relaymq/relay/internal/events"
	"github.com/relaymq/relay/internal/supervise"
)

// Reports are the events of an instance.
type Reports struct{ *events.Bus }

// Begin publishes events until stop is called, which waits for the last ones.
func (r Reports) Begin() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// Moved says what happened to a key of a route, or to the route. Of what waits, only the begin and the end are events: each probe that fails
// makes it wait again.
func (r Reports) Moved(route string, e supervise.Event) {
	d := event.Data{Route: route, Key: e.Key, Why: e.Why}
	if e.To == supervise.Waiting {
		d.Until = time.Now().Add(e.Delay).UTC()
	}
	name := "route " + route
	if !e.Route {
		name = fmt.Sprintf("key %q of %s", control.Cut(e.Key, control.MaxKey), name)
	}
	kind := func(ofKey, ofRoute event.Kind) event.Kind {
		if e.Route {
			return ofRoute
		}
		return ofKey
	}
	switch {
	case e.From == supervise.Flowing && e.To == supervise.Waiting:
		d.Text = name + " waits: " + e.Why
		r.Report(kind(eventkind.KeyWaiting, eventkind.RouteWaiting), d)
	case e.To == supervise.Flowing:
		d.Text = name + " flows again: " + e.Why
		r.Report(kind(eventkind.KeyFlowing, eventkind.RouteFlowing), d)
	case e.To == supervise.Suspended && e.Route:
		d.Text = fmt.Sprintf("%s is suspended: %s; its messages wait until one succeeds; to resume it now: relay resume %s", name, e.Why, route)
		r.Report(eventkind.RouteSuspended, d)
	case e.To == supervise.Suspended:
		d.Text = fmt.Sprintf("%s is suspended: %s; once the cause is fixed: relay resume %s", name, e.Why, route)
		r.Report(eventkind.KeySuspended, d)
	}
}

// Stopped says that a route stopped.
func (r Reports) Stopped(route string, err error) {
	r.Report(eventkind.RouteStopped, event.Data{
		Route: route, Why: err.Error(), Text: "route " + route + " stopped; its messages wait, and the route retries by itself: " + err.Error(),
	})
}

// Dead says that a message of a route is a dead letter.
func (r Reports) Dead(route string, e dlq.Entry) {
	why := e.LastError
	if why == "" {
		why = string(e.Reason)
	}
	r.Report(eventkind.DeadLetter, event.Data{
		Route: route, Subject: e.Subject, Message: e.ID(), Reason: string(e.Reason), Why: why,
		Text: fmt.Sprintf("dead-lettered by route %s (%s): %s", route, e.Reason, why),
	})
}

// Fallback says that the fallback of a route fails all it gets, or, with nil, that it works again.
func (r Reports) Fallback(route string, err error) {
	name := "the fallback of route " + route
	if err == nil {
		r.Report(eventkind.FallbackWorking, event.Data{Route: route, Text: name + " works again"})
		return
	}
	r.Report(eventkind.FallbackFailing, event.Data{
		Route: route, Why: err.Error(), Text: fmt.Sprintf("%s fails; its messages wait as if there were no fallback: %v", name, err),
	})
}

// Holder says that an instance has a route now, or the part of it that is called so.
func (r Reports) Holder(route, called, instance string, fence uint64) {
	r.Report(eventkind.RouteHolder, event.Data{Route: route, Text: fmt.Sprintf("instance %s has route %s now (fence %d)", instance, called, fence)})
}

// Trouble says of a trouble of a route, or of none, that it began; err nil: that it is over.
func (r Reports) Trouble(route, what string, err error) {
	if err == nil {
		r.Report(eventkind.StreamMended, event.Data{Route: route, Why: what, Text: "working again: " + what})
		return
	}
	r.Report(eventkind.StreamTrouble, event.Data{Route: route, Why: what + ": " + err.Error(), Text: "not working, retrying: " + what + ": " + err.Error()})
}

// Filling says that the dead letters come near to their bound, and what is done there.
func (r Reports) Filling(u dlq.Usage, onFull string) {
	next := "new ones will be refused, and their messages stay in their streams"
	if onFull == dlq.OnFullDropOldest {
		next = "the oldest will be dropped"
	}
	r.Report(eventkind.DLQFilling, event.Data{
		Text: fmt.Sprintf("the dead letters use %d %% of %s (%d of them); at 100 %% %s", int(100*u.Full()), u.Nearest(), u.Entries, next),
	})
}
