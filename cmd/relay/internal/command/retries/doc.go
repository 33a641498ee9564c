// Package retries has the commands relay retries and relay orphans: the messages that failed and wait for their retry, of routes that
// are there and of those that are not. What becomes a dead letter by them is recorded. The console lists the retries.
package retries
