package consumer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/control"
	"github.com/relaymq/relay/internal/dlq"
	"github.com/relaymq/relay/internal/events"
	"github.com/relaymq/relay/internal/fingerprint"
	"github.com/relaymq/relay/internal/subject"
	"github.com/relaymq/relay/supervisor"
)

// Events says whether events are also stored. They are published in any case: see package event.
type Events struct {
	// Store keeps them in the stream <SERVICE>_EVENTS.
	Store bool `koanf:"store"`
	// MaxAge is how long they are kept there. Zero means 168h.
	MaxAge time.Duration `koanf:"max_age"`
	// MaxBytes and MaxMsgs bound them there: the oldest go. Zero means 64 MiB, which the server keeps free for them, and 100,000.
	MaxBytes Bytes `koanf:"max_bytes"`
	MaxMsgs  int   `koanf:"max_msgs"`
}

// WithDefaults fills the zero fields.
func (e Events) WithDefaults() Events {
	e.MaxAge = cmp.Or(e.MaxAge, 168*time.Hour)
	e.MaxBytes = cmp.Or(e.MaxBytes, 64<<20)
	e.MaxMsgs = cmp.Or(e.MaxMsgs, 100_000)
	return e
}

// Events returns the events that this instance publishes; those of a minute that are alike are gathered into one. All calls
// return the same channel. It holds 256 events, and drops further ones while nobody receives. It is closed when Run returns.
func (r *Relay) Events() <-chan event.Event { return r.events.Events() }

func (r *Relay) newEvents() *events.Bus {
	return events.NewBus(r.cfg.Service, r.cfg.Instance, fingerprint.Of, func(e event.Event) error { return events.Publish(r.nc, e) })
}

// handlesEvents tells whether messages of the route are events: those about it are not published.
func (rt *route) handlesEvents() bool {
	return slices.ContainsFunc(rt.cfg.Subjects, func(p string) bool {
		return subject.Overlaps(p, event.Prefix(rt.relay.cfg.Service)+".>")
	})
}

// runEvents publishes events until the function is called that it returns, which waits for the last ones.
func (r *Relay) runEvents() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.events.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// report says what happened to a key or to the route. Of what waits, only the begin and the end are events: each probe that fails
// makes it wait again.
func (rt *route) report(e supervisor.Event) {
	d := event.Data{Route: rt.name(), Key: e.Key, Why: e.Why}
	if e.To == supervisor.Waiting {
		d.Until = time.Now().Add(e.Delay).UTC()
	}
	name := "route " + rt.name()
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
	case e.From == supervisor.Flowing && e.To == supervisor.Waiting:
		d.Text = name + " waits: " + e.Why
		rt.relay.events.Report(kind(event.KeyWaiting, event.RouteWaiting), d)
	case e.To == supervisor.Flowing:
		d.Text = name + " flows again: " + e.Why
		rt.relay.events.Report(kind(event.KeyFlowing, event.RouteFlowing), d)
	case e.To == supervisor.Suspended && e.Route:
		d.Text = fmt.Sprintf("%s is suspended: %s; its messages wait until one succeeds; to resume it now: relay resume %s", name, e.Why, rt.name())
		rt.relay.events.Report(event.RouteSuspended, d)
	case e.To == supervisor.Suspended:
		d.Text = fmt.Sprintf("%s is suspended: %s; once the cause is fixed: relay resume %s", name, e.Why, rt.name())
		rt.relay.events.Report(event.KeySuspended, d)
	}
}

func (rt *route) reportStopped(err error) {
	rt.relay.events.Report(event.RouteStopped, event.Data{
		Route: rt.name(), Why: err.Error(), Text: "route " + rt.name() + " stopped; its messages wait, and the route retries by itself: " + err.Error(),
	})
}

func (rt *route) reportDead(e dlq.Entry) {
	why := e.LastError
	if why == "" {
		why = string(e.Reason)
	}
	rt.relay.events.Report(event.DeadLetter, event.Data{
		Route: rt.name(), Subject: e.Subject, Message: e.ID(), Reason: string(e.Reason), Why: why,
		Text: fmt.Sprintf("dead-lettered by route %s (%s): %s", rt.name(), e.Reason, why),
	})
}

// reportTrouble says of a trouble of this route, or of none, that it began; err nil: that it is over.
func (r *Relay) reportTrouble(route, what string, err error) {
	if err == nil {
		r.events.Report(event.StreamMended, event.Data{Route: route, Why: what, Text: "working again: " + what})
		return
	}
	r.events.Report(event.StreamTrouble, event.Data{Route: route, Why: what + ": " + err.Error(), Text: "not working, retrying: " + what + ": " + err.Error()})
}

func (r *Relay) reportFilling(u dlq.Usage) {
	next := "new ones will be refused, and their messages stay in their streams"
	if r.cfg.DLQ.OnFull == dlq.OnFullDropOldest {
		next = "the oldest will be dropped"
	}
	r.events.Report(event.DLQFilling, event.Data{
		Text: fmt.Sprintf("the dead letters use %d %% of %s (%d of them); at 100 %% %s", int(100*u.Full()), u.Nearest(), u.Entries, next),
	})
}
