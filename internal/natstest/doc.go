// Package natstest runs real NATS servers for tests: one server, a cluster, and a TCP proxy that stalls and cuts. [Eventually] waits for
// what they bring about.
//
// The servers of a test process run in another process, natsd, one for all of them. They are real servers at full speed while the race detector looks at
// relay: it slows every access to memory. The tests of package consumer took half as much of the processor's time again when the servers were in their own
// process. Test binaries are smaller by the server, too, and what servers leave behind is nothing to goleak. A server starts in milliseconds, stores in
// t.TempDir(), and is shut down by t.Cleanup and waited for. natsd ends with the test process. What cannot start fails the test at once.
//
// A server keeps its port over [Server.Restart], and connections made by [Server.Conn] find it again.
package natstest
