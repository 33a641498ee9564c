package consumer

import "github.com/relaymq/relay/internal/control"

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
