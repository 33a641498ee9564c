// Package run has the service, relay run, from its first line in the log to its last: what it starts in which order, reloads, the
// demo, what systemd is told. The commands beside it ask a service, or look at what one would do: relay reload, ui and plan.
package run
