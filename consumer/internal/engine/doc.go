// Package engine is what [Relay] of package consumer is made of: it runs routes, as [Spec]s say, until it is told to end. It starts them, changes them while
// others run, and drains them.
//
//	Engine     what all routes of an instance share
//	  └ Unit   what begins and ends together: a durable and its routes
//	    └ Route
//	      └ Message
//
// It does not know handlers by their public types: a [Spec] has [Code], and each attempt is a [Msg] that the package consumer makes.
//
// [Relay]: https://pkg.go.dev/github.com/relaymq/relay/consumer#Relay
package engine
