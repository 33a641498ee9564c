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
	// relay status --json.
	RouteStatus = control.RouteStatus
	// ConfigStatus says which configuration an instance runs. Whoever embeds a [Relay] may say it with [Relay.TellConfig].
	ConfigStatus = control.ConfigStatus
	// ConfigDigest tells settings apart without revealing them.
	ConfigDigest = control.ConfigDigest
)

// Status is a snapshot of this instance. It changes nothing and asks nobody: counts of the server are up to some seconds old.
func (r *Relay) Status() Status { return r.engine.Status(control.StatusRequest{}) }

// The states of a route on an instance. Only in the first do all messages start as they come.
const (
	RouteFlowing      = control.StateFlowing
	RouteStarting     = control.StateStarting     // or waiting for something that is away
	RouteWaiting      = control.StateWaiting      // for its backoff
	RouteProbing      = control.StateProbing      // one message at a time
	RoutePaused       = control.StatePaused       // by an operator
	RouteSuspended    = control.StateSuspended    // nearly all was dead: it asks with a few messages, until one succeeds
	RouteStopped      = control.StateStopped      // something has to be mended
	RouteStalled      = control.StateStalled      // messages wait, and none has started for a while
	RouteDisconnected = control.StateDisconnected // from NATS
	RouteLimited      = control.StateLimited      // messages wait for room in a limit; as many as it allows start
	RouteStandby      = control.StateStandby      // another instance has it
	RouteDraining     = control.StateDraining     // the instance ends
)

// TellConfig makes the status say which configuration this is.
func (r *Relay) TellConfig(c ConfigStatus) { r.engine.TellConfig(c) }
