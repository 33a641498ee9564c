// Package natstest runs real NATS servers for tests: one server, a cluster, and a TCP proxy that stalls and cuts. [Eventually] waits for
// what they bring about.
//
// Everything lives in the test's own process and is gone when the test ends: a server stores in t.TempDir(), is shut
// down by t.Cleanup and waited for, so that goleak finds nothing. What cannot start fails the test at once.
//
// A server does not listen unless it is told to ([WithListen]): connections made by [Server.Conn] go through memory,
// start in a millisecond, and find the server again after [Server.Restart], because the connection asks for the
// *current* server each time it dials.
package natstest
