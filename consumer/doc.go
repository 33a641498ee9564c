// Package consumer is the Go API of relay: [New] and [Relay.Run] are all that a program needs to embed it. It has what routes are, what handlers are and
// what they may say. What runs the routes is in internal/engine.
//
// # The way of a message
//
//	source (internal/source)  one per durable: asks for as many messages as its routes have room for
//	  └ ack.Session           the delivery and its lease
//	  └ admit                 what is known of it: the attempts of a redelivery, the origin of a due one
//	route (internal/route)    one per route: a supervise.Group
//	  └ message               Enter: it goes to its group. Do: the handler
//	  └ settle.Path           ack, NAK, or the slow path, on the route's own pool: record and NAK, park, or dead letter and ack
//
// Each route pulls from two durables: its own on its stream, perhaps shared with other routes, and one on the retry
// stream, where parked messages come due and replayed ones arrive.
//
// A route's slow path may block, on a full dead-letter stream for instance, so that each route has a pool of its own for
// it: no route waits for another's trouble.
//
// # The end
//
// Run ends when its context does: nothing is pulled any more, what was not started goes back with plain NAKs, handlers
// get Config.Drain to finish, and settlements are confirmed before it returns.
package consumer
