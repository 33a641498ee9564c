// Package eventkind names the kinds of events that relay publishes. They are words on the wire: a program that reads package event compares
// with the words, which its documentation lists.
package eventkind

// The kinds there are. A new one also belongs to All, and to the comment of event.Kind.
const (
	KeyWaiting     = "key.waiting"     // a key stopped flowing: its messages wait
	KeyFlowing     = "key.flowing"     // it flows again
	KeySuspended   = "key.suspended"   // a key gave up, and waits for an operator
	RouteWaiting   = "route.waiting"   // a whole route stopped flowing
	RouteFlowing   = "route.flowing"   // it flows again
	RouteSuspended = "route.suspended" // it waits for an operator
	RouteHolder    = "route.holder"    // another instance has a route of which one instance at a time handles messages
	RouteStopped   = "route.stopped"   // no message is to blame: a program is missing, handlers do not return
	// A second handler fails all it gets, or works again.
	FallbackFailing = "fallback.failing"
	FallbackWorking = "fallback.working"

	DeadLetter    = "dead_letter"    // a message was dead-lettered
	ReplayDone    = "replay.done"    // a replay handed over all it had to
	ReplayStopped = "replay.stopped" // a replay stopped or was cancelled, and can be resumed
	StreamTrouble = "stream.trouble" // a stream, a durable or a bucket is away, or not as it has to be
	StreamMended  = "stream.mended"  // it is there again
	DLQFilling    = "dlq.filling"    // the dead letters have used 80 % of dlq.max_bytes or dlq.max_msgs
	ReloadDone    = "reload.done"    // an instance runs another configuration
	ReloadFailed  = "reload.failed"  // it was told to, and goes on with the one it had
	Audit         = "audit"          // an operator did something
)

// All are all of them.
var All = []string{
	KeyWaiting, KeyFlowing, KeySuspended, RouteWaiting, RouteFlowing, RouteSuspended, RouteHolder, RouteStopped, FallbackFailing, FallbackWorking, DeadLetter,
	ReplayDone, ReplayStopped, StreamTrouble, StreamMended, DLQFilling, ReloadDone, ReloadFailed, Audit,
}

// ContentType is that of an event on the wire.
const ContentType = "application/cloudevents+json"
