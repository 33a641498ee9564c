// Package cli is what the commands of relay stand on: the flags that all take and the configuration they name, the connection to
// NATS in a role, what is printed (tables, JSON, times, progress), the question before something destructive, completion, and
// errors with their exit codes. It has no command of its own, and knows none but by their paths, where it completes arguments.
package cli
