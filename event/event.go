package event

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/relaymq/relay/internal/eventkind"
)

// Kind is what happened:
//
//	key.waiting       a key stopped flowing: its messages wait
//	key.flowing       it flows again
//	key.suspended     a key gave up, and waits for an operator
//	route.waiting     a whole route stopped flowing
//	route.flowing     it flows again
//	route.suspended   it waits for an operator
//	route.holder      another instance has a route of which one instance at a time handles messages
//	route.stopped     no message is to blame: a program is missing, handlers do not return
//	fallback.failing  a second handler fails all it gets
//	fallback.working  it works again
//	dead_letter       a message was dead-lettered
//	replay.done       a replay handed over all it had to
//	replay.stopped    a replay stopped or was cancelled, and can be resumed
//	stream.trouble    a stream, a durable or a bucket is away, or not as it has to be
//	stream.mended     it is there again
//	dlq.filling       the dead letters have used 80 % of dlq.max_bytes or dlq.max_msgs
//	reload.done       an instance runs another configuration
//	reload.failed     it was told to, and goes on with the one it had
//	audit             an operator did something
type Kind string

// Kinds are all of them.
func Kinds() []Kind {
	kinds := make([]Kind, len(eventkind.All))
	for i, k := range eventkind.All {
		kinds[i] = Kind(k)
	}
	return kinds
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
