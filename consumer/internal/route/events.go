package route

import (
	"slices"
	"time"

	"github.com/relaymq/relay/consumer/internal/peers"
	"github.com/relaymq/relay/event"
	"github.com/relaymq/relay/internal/subject"
	"github.com/relaymq/relay/internal/supervise"
)

// HandlesEvents tells whether messages of the route are events of the service: those about it are not published.
func (r Spec) HandlesEvents(service string) bool {
	return slices.ContainsFunc(r.Subjects, func(p string) bool {
		return subject.Overlaps(p, event.Prefix(service)+".>")
	})
}

// event logs and reports what happened to a key or to the route.
func (rt *Route) event(e supervise.Event) {
	rt.Count.Moves[e.To].Add(1)
	rt.Home.Reports.Moved(rt.Name(), e)
	attrs := []any{"from", e.From, "to", e.To, "why", e.Why}
	what := "route"
	if !e.Route {
		what = "key"
		attrs = append(attrs, "key", e.Key, "child", e.Child)
	}
	if e.To == supervise.Waiting {
		attrs = append(attrs, "delay", e.Delay.Round(time.Millisecond), "restarts", e.Restarts)
	}
	switch e.To {
	case supervise.Waiting:
		rt.Log.Warn(what+" waits", attrs...)
	case supervise.Suspended:
		rt.Log.Error(what+" is suspended", attrs...)
	case supervise.Flowing:
		rt.Log.Info(what+" flows again", attrs...)
	default:
		rt.Log.Info(what+" is "+e.To.String(), attrs...)
	}
}

// hint tells the other instances.
func (rt *Route) hint(h supervise.Hint) {
	if !rt.Spec.HandlesEvents(rt.Home.Config.Service) && !rt.Spec.Leased() {
		rt.Home.Hints().Tell(rt.Spec.Name, h)
	}
}

// Hints is how this instance and the others tell each other of outages.
func (r *Home) Hints() peers.Hints {
	return peers.Hints{Conn: r.Conn, Service: r.Config.Service, Instance: r.Config.Instance}
}
