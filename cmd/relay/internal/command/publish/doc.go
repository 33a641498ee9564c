// Package publish has the commands that publish a message: relay pub, now or later, and relay call, which waits for its result.
package publish
