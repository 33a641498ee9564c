// Package waiting lists the messages that failed and wait for their retry, wherever that is: in their durable, or parked in the retry
// stream. The commands relay retries and relay trace, and the console, show them.
package waiting
