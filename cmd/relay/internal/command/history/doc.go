// Package history has the commands that tell what became of messages: relay trace of one message, relay events of what happened, and
// relay audit of all messages of a route, counted. The console shows traces and outcomes.
package history
