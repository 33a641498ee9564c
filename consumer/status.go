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
