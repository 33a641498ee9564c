package event

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Kind is what happened.
type Kind string

// The kinds there are.
const (
	KeyWaiting     Kind = "key.waiting"     // a key stopped flowing: its messages wait
	KeyFlowing     Kind = "key.flowing"     // it flows again
	KeySuspended   Kind = "key.suspended"   // a key gave up, and waits for an operator
	RouteWaiting   Kind = "route.waiting"   // a whole route stopped flowing
	RouteFlowing   Kind = "route.flowing"   // it flows again
	RouteSuspended Kind = "route.suspended" // it waits for an operator
	RouteHolder    Kind = "route.holder"    // another instance has a route of which one instance at a time handles messages
	RouteStopped   Kind = "route.stopped"   // no message is to blame: a program is missing, handlers do not return
	// A second handler fails all it gets, or works again.
	FallbackFailing Kind = "fallback.failing"
	FallbackWorking Kind = "fallback.working"

	DeadLetter    Kind = "dead_letter"    // a message was dead-lettered
	ReplayDone    Kind = "replay.done"    // a replay handed over all it had to
	ReplayStopped Kind = "replay.stopped" // a replay stopped or was cancelled, and can be resumed
	StreamTrouble Kind = "stream.trouble" // a stream, a durable or a bucket is away, or not as it has to be
	StreamMended  Kind = "stream.mended"  // it is there again
	DLQFilling    Kind = "dlq.filling"    // the dead letters have used 80 % of dlq.max_bytes or dlq.max_msgs
	ReloadDone    Kind = "reload.done"    // an instance runs another configuration
	ReloadFailed  Kind = "reload.failed"  // it was told to, and goes on with the one it had
	Audit         Kind = "audit"          // an operator did something
)

// Kinds are all of them.
func Kinds() []Kind {
	return []Kind{
		KeyWaiting, KeyFlowing, KeySuspended, RouteWaiting, RouteFlowing, RouteSuspended, RouteHolder, RouteStopped, FallbackFailing, FallbackWorking, DeadLetter,
		ReplayDone, ReplayStopped, StreamTrouble, StreamMended, DLQFilling, ReloadDone, ReloadFailed, Audit,
	}
}

// Event is one thing that happened, or several of one group within a minute.
type Event struct {
	ID      string
	Kind    Kind
	Service string
	// Instance is which relay says so, or who runs a replay.
	Instance string
	// Time is when it happened; of several, the last time.
	Time time.Time
	Data
}

// Data is what a CloudEvent has as its data.
type Data struct {
	Route string `json:"route,omitempty"`
	// Text is a line for people.
	Text string `json:"text"`
	// Count is of how many the event tells, and First when the first of them was. The other fields are those of the last one.
	Count int       `json:"count"`
	First time.Time `json:"first"`
	Key   string    `json:"key,omitempty"`
	Why   string    `json:"why,omitempty"`
	// Until is the next try of what waits.
	Until time.Time `json:"until,omitzero"`
	// Message is the id of a message, Subject its subject, and Reason why it is dead.
	Message string `json:"message,omitempty"`
	Subject string `json:"subject,omitempty"`
	Reason  string `json:"reason,omitempty"`
	// Job is that of a replay.
	Job string `json:"job,omitempty"`
	// By is the operator, as the operator says, and User the NATS user, as the server told the command.
	By   string `json:"by,omitempty"`
	User string `json:"user,omitempty"`
}

// ContentType of an event on the wire.
const ContentType = "application/cloudevents+json"

// noRoute stands for the route in the subject of an event that has none.
const noRoute = "~"

// Prefix begins the subjects of a service's events, without the dot behind it.
func Prefix(service string) string { return service + ".event" }

// Subject is where the event is published.
func (e Event) Subject() string {
	route := e.Route
	if route == "" {
		route = noRoute
	}
	return Prefix(e.Service) + "." + string(e.Kind) + "." + route
}

// typePrefix begins the type of a CloudEvent, as the specification asks for: a name in reverse order.
const typePrefix = "relay."

// cloud is an event on the wire.
type cloud struct {
	SpecVersion string    `json:"specversion"`
	ID          string    `json:"id"`
	Source      string    `json:"source"`
	Type        string    `json:"type"`
	Subject     string    `json:"subject,omitempty"`
	Time        time.Time `json:"time"`
	ContentType string    `json:"datacontenttype"`
	Data        Data      `json:"data"`
}

// MarshalJSON writes the event as a CloudEvent in structured mode.
func (e Event) MarshalJSON() ([]byte, error) {
	return json.Marshal(cloud{
		SpecVersion: "1.0", ID: e.ID, Source: "/relay/" + e.Service + "/" + e.Instance, Type: typePrefix + string(e.Kind), Subject: e.Route,
		Time: e.Time.UTC(), ContentType: "application/json", Data: e.Data,
	})
}

var errNoEvent = errors.New("it is no event of relay")

// UnmarshalJSON reads what MarshalJSON wrote. Others may publish on the subjects of events: what it holds is not to be trusted.
func (e *Event) UnmarshalJSON(b []byte) error {
	var c cloud
	if err := json.Unmarshal(b, &c); err != nil {
		return fmt.Errorf("%w: %w", errNoEvent, err)
	}
	kind, isOurs := strings.CutPrefix(c.Type, typePrefix)
	service, instance, hasBoth := strings.Cut(strings.TrimPrefix(c.Source, "/relay/"), "/")
	if c.SpecVersion != "1.0" || !isOurs || !strings.HasPrefix(c.Source, "/relay/") || !hasBoth {
		return errNoEvent
	}
	*e = Event{ID: c.ID, Kind: Kind(kind), Service: service, Instance: instance, Time: c.Time, Data: c.Data}
	return nil
}
