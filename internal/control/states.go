package control

// The states of a route on an instance. Only in the first do all messages start as they come.
const (
	StateFlowing      = "flowing"
	StateStarting     = "starting"     // or waiting for something that is away
	StateWaiting      = "waiting"      // for its backoff
	StateProbing      = "probing"      // one message at a time
	StatePaused       = "paused"       // by an operator
	StateSuspended    = "suspended"    // nearly all was dead: it asks with a few messages, until one succeeds
	StateStopped      = "stopped"      // something has to be mended
	StateStalled      = "stalled"      // messages wait, and none has started for a while
	StateDisconnected = "disconnected" // from NATS
	StateLimited      = "limited"      // messages wait for room in a limit; as many as it allows start
	StateStandby      = "standby"      // another instance has it
	StateDraining     = "draining"     // the instance ends
)

// States are all of them.
var States = []string{
	StateFlowing, StateStarting, StateWaiting, StateProbing, StatePaused, StateSuspended, StateStopped, StateStalled, StateDisconnected, StateLimited, StateStandby, StateDraining,
}
