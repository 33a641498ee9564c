// Package event says what an operator may want to know: that a key began to wait, that messages were dead-lettered, that a replay
// is done.
//
// # On the wire
//
// An event is a message on <service>.event.<kind>.<route>, a CloudEvent in structured mode (application/cloudevents+json) whose
// data is the rest of [Event]. An event that belongs to no route has ~ in its place.
//
// # What is left out
//
// Events are best effort, and cost relay next to nothing: they wait in a bounded queue, nothing waits for them, and what does not fit is counted and
// dropped. Whatever must not be lost is a message, a dead letter or a metric.
//
// Events of one group (kind, route, and the fingerprint of the reason) are gathered: the first is published at once, and those that
// follow within a minute as one at its end, with how many there were. A storm of a million failures is one event a minute.
//
// A route that handles events would report what becomes of them as events, for ever: its own events are not published.
package event
