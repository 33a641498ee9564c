package consumer

import (
	"github.com/relaymq/relay/internal/control"
)

type (
	// Status is what one instance says of itself: what is wrong, its routes and its limits. As JSON it is what the
	// command relay status --json prints of an instance, and most fields are named as there: HeldMessages of a route is held_messages, but Stored is
	// dead_letters.
	Status = control.Status
	// RouteStatus is a route on one instance: its state and why, what it holds, what waits for it and what it did. As JSON it is one of the routes in
	// relay status --json. Its field State is flowing when all messages start as they come, and else one of:
	//
	//	starting      or it waits for something that is away
	//	waiting       for its backoff
	//	probing       one message at a time
	//	paused        by an operator
	//	suspended     nearly all was dead: it asks with a few messages, until one succeeds
	//	stopped       something has to be mended
	//	stalled       messages wait, and none has started for a while
	//	disconnected  from NATS
	//	limited       messages wait for room in a limit; as many as it allows start
	//	standby       another instance has it
	//	draining      the instance ends
	RouteStatus = control.RouteStatus
)

// Status is a snapshot of this instance. It changes nothing and asks nobody: counts of the server are up to some seconds old.
func (r *Relay) Status() Status { return r.engine.Status(control.StatusRequest{}) }

// TellConfig makes the status say which configuration this is.
func (r *Relay) TellConfig(c control.ConfigStatus) { r.engine.TellConfig(c) }
