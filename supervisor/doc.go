// Package supervisor has the settings of supervision: when a key or a whole route waits, what becomes of its messages meanwhile, and
// how long to wait after each failure. They are fields of consumer.Route; docs/supervision.md explains what they do.
//
// A [Backoff] can be used by itself: its delays are pure functions of the number of failures.
package supervisor
