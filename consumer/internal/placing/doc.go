// Package placing finds where the messages of routes are before anything is pulled: the stream of each route, and which routes share a durable. It
// also finds what must not be: subjects that no stream holds, or two streams, and messages that two routes would handle.
//
// A start, a change and relay plan ask it. For relay plan some streams do not exist yet ([Placing.Assume]).
package placing
